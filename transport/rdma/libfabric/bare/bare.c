//go:build ofi && cgo && linux

#include "bare.h"

#include <stdlib.h>
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

struct end {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct fid_mr *mr;
	char name[256];
};

struct bare {
	struct end end[2]; // who reads and writes, and whose memory it is
	fi_addr_t to;
	uintptr_t near, far;
	uint64_t base;
	uint64_t flags;
	struct fi_context2 context;
};

static int open_end(struct end *e, const char *provider, const char *node)
{
	struct fi_info *hints = fi_allocinfo();
	hints->caps = FI_MSG | FI_RMA;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup(provider);
	int err = fi_getinfo(FI_VERSION(1, 14), node, NULL, node ? FI_SOURCE : 0, hints, &e->info);
	fi_freeinfo(hints);
	struct fi_av_attr av = {.type = FI_AV_TABLE};
	struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_CONTEXT};
	size_t len = sizeof e->name;
	if (err || (err = fi_fabric(e->info->fabric_attr, &e->fabric, NULL)) ||
	    (err = fi_domain(e->fabric, e->info, &e->domain, NULL)) ||
	    (err = fi_av_open(e->domain, &av, &e->av, NULL)) ||
	    (err = fi_cq_open(e->domain, &cq, &e->cq, NULL)) ||
	    (err = fi_endpoint(e->domain, e->info, &e->ep, NULL)) ||
	    (err = fi_ep_bind(e->ep, &e->av->fid, 0)) ||
	    (err = fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV)) ||
	    (err = fi_enable(e->ep)))
		return err;
	return fi_getname(&e->ep->fid, e->name, &len);
}

static void close_end(struct end *e)
{
	struct fid *all[] = {
		e->ep ? &e->ep->fid : NULL, e->mr ? &e->mr->fid : NULL, e->cq ? &e->cq->fid : NULL,
		e->av ? &e->av->fid : NULL, e->domain ? &e->domain->fid : NULL, e->fabric ? &e->fabric->fid : NULL,
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (all[i])
			fi_close(all[i]);
	if (e->info)
		fi_freeinfo(e->info);
}

static int grant(struct bare *b, size_t len, uint64_t key)
{
	struct end *far = &b->end[1];
	return fi_mr_reg(far->domain, (void *)b->far, len, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, key, 0, &far->mr, NULL);
}

int bare_open(const char *provider, const char *node, uintptr_t near, uintptr_t far, size_t len, struct bare **out)
{
	struct bare *b = *out = calloc(1, sizeof *b);
	int err;
	b->near = near;
	b->far = far;
	if ((err = open_end(&b->end[0], provider, node)) || (err = open_end(&b->end[1], provider, node)) ||
	    (err = grant(b, len, 4711)))
		return err;
	if (fi_av_insert(b->end[0].av, b->end[1].name, 1, &b->to, 0, NULL) != 1)
		return -FI_EADDRNOTAVAIL;
	fi_addr_t back;
	if (fi_av_insert(b->end[1].av, b->end[0].name, 1, &back, 0, NULL) != 1)
		return -FI_EADDRNOTAVAIL;
	b->base = b->end[1].info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? far : 0;
	b->flags = FI_COMPLETION | (strcmp(provider, "shm") ? FI_DELIVERY_COMPLETE : 0);
	return 0;
}

// once starts one operation and waits for its end, polling both ends.
static int once(struct bare *b, int put, size_t len)
{
	struct iovec local = {(void *)b->near, len};
	struct fi_rma_iov remote = {b->base, len, fi_mr_key(b->end[1].mr)};
	struct fi_msg_rma m = {
		.msg_iov = &local, .iov_count = 1, .addr = b->to,
		.rma_iov = &remote, .rma_iov_count = 1, .context = &b->context,
	};
	struct fi_cq_entry done[8];
	for (;;) {
		ssize_t r = put ? fi_writemsg(b->end[0].ep, &m, b->flags) : fi_readmsg(b->end[0].ep, &m, FI_COMPLETION);
		if (r == 0)
			break;
		if (r != -FI_EAGAIN)
			return r;
		fi_cq_read(b->end[0].cq, done, 8);
		fi_cq_read(b->end[1].cq, done, 8);
	}
	for (;;) {
		ssize_t n = fi_cq_read(b->end[0].cq, done, 8);
		if (n > 0)
			return 0;
		if (n < 0 && n != -FI_EAGAIN)
			return n;
		fi_cq_read(b->end[1].cq, done, 8);
	}
}

int bare_run(struct bare *b, int what, size_t len, int times)
{
	static uint64_t key = 5000;
	for (int i = 0; i < times; i++) {
		int err;
		if (what == BARE_PULL && ((err = fi_close(&b->end[1].mr->fid)) || (err = grant(b, len, key++))))
			return err;
		if ((err = once(b, what == BARE_PUT, len)))
			return err;
	}
	return 0;
}

void bare_close(struct bare *b)
{
	close_end(&b->end[0]);
	close_end(&b->end[1]);
	free(b);
}
