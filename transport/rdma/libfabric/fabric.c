//go:build ofi && cgo && linux

#include "fabric.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int find(struct mpiv_fabric *f, const struct mpiv_options *o, int mr_mode)
{
	struct fi_info *hints = fi_allocinfo();
	if (!hints)
		return -FI_ENOMEM;
	hints->caps = FI_MSG | FI_RMA | FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = mr_mode;
	hints->domain_attr->threading = FI_THREAD_SAFE;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	hints->tx_attr->msg_order = FI_ORDER_SAS;
	hints->rx_attr->msg_order = FI_ORDER_SAS;
	hints->fabric_attr->prov_name = strdup(o->provider);
	int err = fi_getinfo(FI_VERSION(1, 14), o->node, NULL, o->node ? FI_SOURCE : 0, hints, &f->info);
	fi_freeinfo(hints);
	return err;
}

static int open_queue(struct mpiv_fabric *f, int lane, int naps)
{
	struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD};
	attr.size = f->info->domain_attr->cq_cnt > 8192 ? 8192 : 0;
	f->fd[lane] = -1;
	if (!naps && fi_cq_open(f->domain, &attr, &f->cq[lane], NULL) == 0)
		return fi_control(&f->cq[lane]->fid, FI_GETWAIT, &f->fd[lane]);
	attr.wait_obj = FI_WAIT_NONE;
	return fi_cq_open(f->domain, &attr, &f->cq[lane], NULL);
}

static int open_endpoint(struct mpiv_fabric *f, int lane, int naps, const char **what)
{
	int err;
	*what = "open a completion queue";
	if ((err = open_queue(f, lane, naps)))
		return err;
	*what = "make an endpoint";
	if ((err = fi_endpoint(f->domain, f->info, &f->ep[lane], NULL)))
		return err;
	*what = "bind an endpoint to its addresses";
	if ((err = fi_ep_bind(f->ep[lane], &f->av->fid, 0)))
		return err;
	*what = "bind an endpoint to its completions";
	if ((err = fi_ep_bind(f->ep[lane], &f->cq[lane]->fid, FI_TRANSMIT | FI_RECV)))
		return err;
	*what = "enable an endpoint";
	return fi_enable(f->ep[lane]);
}

// tune tells ofi_rxm what it asks the environment for, once in a process, as who runs the program may. What is longer
// than its buffers it cuts, which doubles the time, and the pieces arrive only while the sender polls: no less will do.
// Of them it makes, and clears, as many for each endpoint as the provider below has places, which take 100 MB of tcp's.
static void tune(void)
{
	enum { RXM_BUFFER = 36 << 10 };
	_Static_assert(RXM_BUFFER > MPIV_SLOT + 1024, "with ofi_rxm's own header");
	const char *size = getenv("FI_OFI_RXM_BUFFER_SIZE");
	if (!size || strtoul(size, NULL, 0) < RXM_BUFFER) {
		char least[16];
		snprintf(least, sizeof least, "%d", RXM_BUFFER);
		setenv("FI_OFI_RXM_BUFFER_SIZE", least, 1);
	}
	setenv("FI_OFI_RXM_MSG_RX_SIZE", "128", 0);
	setenv("FI_OFI_RXM_MSG_TX_SIZE", "128", 0);
}

static int open_all(struct mpiv_fabric *f, const struct mpiv_options *o, const char **what)
{
	const int cope = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	int err;
	tune();
	*what = "find the provider";
	if ((err = find(f, o, cope)) && (err = find(f, o, cope | FI_MR_LOCAL)))
		return err;
	int mode = f->info->domain_attr->mr_mode;
	f->local = o->local || (mode & FI_MR_LOCAL);
	f->virt_addr = !!(mode & FI_MR_VIRT_ADDR);
	size_t key = f->info->domain_attr->mr_key_size;
	f->key_mask = key < 8 ? (1ULL << 8 * key) - 1 : ~0ULL;
	f->inject = f->info->tx_attr->inject_size;
	f->max_message = f->info->ep_attr->max_msg_size;
	f->receives = f->info->rx_attr->size;
	// Provider shm copies within the post, from one place at a time: to fetch a
	// second word with a read takes it three times as long. A write that has ended
	// is there, with it; others are told to confirm that, so that who then hears
	// of it by a message finds the data.
	int shm = !strcmp(o->provider, "shm");
	f->checks = !shm && f->info->tx_attr->rma_iov_limit > 1 && f->info->tx_attr->iov_limit > 1;
	f->write_flags = shm ? 0 : FI_DELIVERY_COMPLETE;
	f->at_once = shm;
	*what = "open the fabric";
	if ((err = fi_fabric(f->info->fabric_attr, &f->fabric, NULL)))
		return err;
	*what = "open the domain";
	if ((err = fi_domain(f->fabric, f->info, &f->domain, NULL)))
		return err;
	*what = "open the address vector";
	struct fi_av_attr av = {.type = FI_AV_TABLE};
	if ((err = fi_av_open(f->domain, &av, &f->av, NULL)))
		return err;
	for (int lane = 0; lane < MPIV_LANES; lane++)
		if ((err = open_endpoint(f, lane, o->naps, what)))
			return err;
	return 0;
}

int mpiv_open(struct mpiv_fabric *f, const struct mpiv_options *o, const char **what)
{
	int err = open_all(f, o, what);
	if (err)
		mpiv_close(f);
	return err;
}

void mpiv_close_endpoints(struct mpiv_fabric *f)
{
	for (int lane = 0; lane < MPIV_LANES; lane++) {
		if (f->ep[lane])
			fi_close(&f->ep[lane]->fid);
		f->ep[lane] = NULL;
		if (f->cq[lane])
			fi_close(&f->cq[lane]->fid);
		f->cq[lane] = NULL;
	}
	if (f->av)
		fi_close(&f->av->fid);
	f->av = NULL;
}

void mpiv_close(struct mpiv_fabric *f)
{
	mpiv_close_endpoints(f);
	if (f->domain)
		fi_close(&f->domain->fid);
	if (f->fabric)
		fi_close(&f->fabric->fid);
	if (f->info)
		fi_freeinfo(f->info);
	memset(f, 0, sizeof *f);
}

int mpiv_name(struct mpiv_fabric *f, int lane, void *name, size_t *len)
{
	return fi_getname(&f->ep[lane]->fid, name, len);
}

int mpiv_insert(struct mpiv_fabric *f, const void *name, fi_addr_t *addr)
{
	int n = fi_av_insert(f->av, name, 1, addr, 0, NULL);
	return n == 1 ? 0 : n < 0 ? n : -FI_EINVAL;
}

int mpiv_remove(struct mpiv_fabric *f, fi_addr_t addr)
{
	return fi_av_remove(f->av, &addr, 1, 0);
}

struct mpiv_region mpiv_register(struct mpiv_fabric *f, uintptr_t buf, size_t len, uint64_t access, uint64_t key)
{
	struct mpiv_region r = {0};
	r.err = fi_mr_reg(f->domain, (void *)buf, len, access, 0, key, 0, &r.mr, NULL);
	if (r.err == 0)
		r.key = fi_mr_key(r.mr);
	return r;
}

void *mpiv_desc(struct fid_mr *mr) { return fi_mr_desc(mr); }

int mpiv_deregister(struct fid_mr *mr) { return fi_close(&mr->fid); }

static void note(struct mpiv_batch *b, void *context, uint64_t len, int64_t err)
{
	struct mpiv_op *op = context;
	if (op)
		b->event[b->events++] = (struct mpiv_event){op, len, err};
}

static int look(struct mpiv_fabric *f, struct mpiv_batch *b, int lane)
{
	struct fi_cq_msg_entry entry[MPIV_BATCH];
	ssize_t n = fi_cq_read(f->cq[lane], entry, MPIV_BATCH);
	if (n != -FI_EAGAIN)
		b->busy |= 1 << lane;
	for (ssize_t i = 0; i < n; i++)
		note(b, entry[i].op_context, entry[i].len, 0);
	if (n == -FI_EAVAIL) {
		struct fi_cq_err_entry bad = {0};
		if (fi_cq_readerr(f->cq[lane], &bad, 0) == 1)
			note(b, bad.op_context, 0, bad.err ? bad.err : FI_EOTHER);
		return 0;
	}
	return n < 0 && n != -FI_EAGAIN && n != -FI_EINTR ? (int)n : 0;
}

int mpiv_progress(uintptr_t fabric, uintptr_t batch)
{
	struct mpiv_fabric *f = (void *)fabric;
	struct mpiv_batch *b = (void *)batch;
	int err = 0;
	b->events = b->busy = 0;
	for (b->posted = 0; b->posted < b->posts; b->posted++) {
		struct mpiv_slot *s = b->post[b->posted];
		if (fi_recv(f->ep[s->lane], s->buf, MPIV_SLOT, s->desc, FI_ADDR_UNSPEC, &s->op))
			break; // later
	}
	for (int lane = 0; lane < MPIV_LANES; lane++)
		if (b->lanes & 1 << lane && !err)
			err = look(f, b, lane);
	for (int lane = 0; lane < MPIV_LANES; lane++)
		if (b->lanes & b->again & 1 << lane && b->events == 0 && !err)
			err = look(f, b, lane);
	return err;
}

int mpiv_may_sleep(struct mpiv_fabric *f)
{
	struct fid *queues[MPIV_LANES];
	for (int lane = 0; lane < MPIV_LANES; lane++)
		queues[lane] = &f->cq[lane]->fid;
	return fi_trywait(f->fabric, queues, MPIV_LANES) == FI_SUCCESS;
}

int mpiv_send(uintptr_t fabric, uintptr_t slot, fi_addr_t to, size_t len)
{
	struct mpiv_fabric *f = (void *)fabric;
	struct mpiv_slot *s = (void *)slot;
	if (len <= f->inject) {
		int err = fi_inject(f->ep[s->lane], s->buf, len, to);
		return err ? err : 1;
	}
	return fi_send(f->ep[s->lane], s->buf, len, s->desc, to, &s->op);
}

static int post(struct mpiv_fabric *f, struct mpiv_access *a)
{
	int n = a->check ? 2 : 1;
	void *desc[2] = {a->desc, a->word_desc};
	struct iovec local[2] = {{(void *)a->local, a->len}, {&a->word, sizeof a->word}};
	struct fi_rma_iov remote[2] = {{a->remote, a->len, a->key}, {a->grant, sizeof a->word, a->grant_key}};
	struct fi_msg_rma m = {
		.msg_iov = local, .desc = desc, .iov_count = n, .addr = a->to,
		.rma_iov = remote, .rma_iov_count = n, .context = a,
	};
	return a->write ? fi_writemsg(f->ep[1], &m, FI_COMPLETION | f->write_flags) : fi_readmsg(f->ep[1], &m, FI_COMPLETION);
}

int mpiv_access(uintptr_t fabric, uintptr_t access, uintptr_t batch)
{
	struct mpiv_fabric *f = (void *)fabric;
	struct mpiv_batch *b = (void *)batch;
	int err = post(f, (void *)access);
	if (b) {
		b->events = b->busy = 0;
		look(f, b, 1); // what is wrong with the queue the next progress finds too
	}
	return err;
}
