//go:build ofi && cgo && linux

// The part that is C: libfabric's calls are inline functions over tables, and each
// crossing from Go costs, so one call does all that PollCQ or a post needs.

#ifndef MPIV_FABRIC_H
#define MPIV_FABRIC_H

#include <stdint.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

enum {
	MPIV_LANES = 2,
	MPIV_BATCH = 64,
	MPIV_HEAD = 72, // see frame.go
	MPIV_SLOT = MPIV_HEAD + (32 << 10)
};

enum { MPIV_RECV, MPIV_SEND, MPIV_ACCESS };

// What to open. local registers all memory, also where the provider does not ask;
// naps wants no descriptors to wait for.
struct mpiv_options {
	const char *provider, *node; // node may be null
	int local, naps;
};

struct mpiv_fabric {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq[MPIV_LANES];
	struct fid_ep *ep[MPIV_LANES];
	int fd[MPIV_LANES]; // of the completion queues; -1: they have none
	int local, virt_addr, checks;
	int at_once; // an access has mostly ended when it is posted
	uint64_t write_flags, key_mask;
	uint64_t max_message, inject, receives;
};

// An op is what libfabric gives back when something has ended.
struct mpiv_op {
	struct fi_context2 context; // the provider's, while the op is under way
	uint32_t kind, index;       // index: a send's queue pair, an access's place in Go's table
};

// A slot is an op with the memory of one message.
struct mpiv_slot {
	struct mpiv_op op;
	uint32_t lane;
	char *buf;
	void *desc;
};

struct mpiv_event {
	struct mpiv_op *op; // a receive's or send's is a slot's
	uint64_t len;
	int64_t err; // libfabric's number; 0: none
};

// A batch is receives to post, and what has completed.
struct mpiv_batch {
	uint32_t posts, posted, events;
	uint32_t lanes; // bits of those to look at
	uint32_t busy;  // and of those where something was
	uint32_t again; // of those to look at once more when nothing has ended
	struct mpiv_slot *post[MPIV_BATCH];
	struct mpiv_event event[MPIV_LANES * MPIV_BATCH];
};

// An access is an op with one read or write.
struct mpiv_access {
	struct mpiv_op op;
	uint64_t word;   // of a read: the grant as it was after the data
	void *word_desc;
	void *desc;      // of local
	uintptr_t local;
	uint64_t len, remote, key;
	uint64_t grant, grant_key; // to fetch after the data, if check says so
	fi_addr_t to;
	int write, check;
};

// A region is memory that is registered, or why it is not.
struct mpiv_region {
	struct fid_mr *mr;
	uint64_t key;
	int err;
};

// All return 0 or libfabric's negative number; what names what was tried.
int mpiv_open(struct mpiv_fabric *f, const struct mpiv_options *o, const char **what);
void mpiv_close_endpoints(struct mpiv_fabric *f); // before memory is deregistered
void mpiv_close(struct mpiv_fabric *f);
int mpiv_name(struct mpiv_fabric *f, int lane, void *name, size_t *len);
int mpiv_insert(struct mpiv_fabric *f, const void *name, fi_addr_t *addr);
int mpiv_remove(struct mpiv_fabric *f, fi_addr_t addr);
struct mpiv_region mpiv_register(struct mpiv_fabric *f, uintptr_t buf, size_t len, uint64_t access, uint64_t key);
void *mpiv_desc(struct fid_mr *mr);
int mpiv_deregister(struct fid_mr *mr);
// What a message needs takes numbers for pointers: cgo looks at pointers each time.
int mpiv_progress(uintptr_t fabric, uintptr_t batch);
int mpiv_may_sleep(struct mpiv_fabric *f);
// mpiv_send returns 1 when the slot is free again at once.
int mpiv_send(uintptr_t fabric, uintptr_t slot, fi_addr_t to, size_t len);
// mpiv_access posts an access. With a batch it then looks at the bulk lane, for
// those that have ended at once.
int mpiv_access(uintptr_t fabric, uintptr_t access, uintptr_t batch);

#endif
