//go:build linux && cgo

#define _GNU_SOURCE
#include "shim.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

// The header hides these calls behind macros that would link the library or
// pick another call: the table has the plain ones.
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

#define V1_0 "IBVERBS_1.0"
#define V1_1 "IBVERBS_1.1"
#define CALLS(X)                       \
	X(ibv_get_device_list, V1_1)       \
	X(ibv_free_device_list, V1_1)      \
	X(ibv_open_device, V1_1)           \
	X(ibv_close_device, V1_1)          \
	X(ibv_query_device, V1_1)          \
	X(ibv_query_port, V1_1)            \
	X(ibv_get_async_event, V1_1)       \
	X(ibv_ack_async_event, V1_1)       \
	X(ibv_create_comp_channel, V1_0)   \
	X(ibv_destroy_comp_channel, V1_0)  \
	X(ibv_get_cq_event, V1_1)          \
	X(ibv_ack_cq_events, V1_1)         \
	X(ibv_create_cq, V1_1)             \
	X(ibv_destroy_cq, V1_1)            \
	X(ibv_alloc_pd, V1_1)              \
	X(ibv_dealloc_pd, V1_1)            \
	X(ibv_reg_mr, V1_1)                \
	X(ibv_dereg_mr, V1_1)              \
	X(ibv_create_srq, V1_1)            \
	X(ibv_destroy_srq, V1_1)           \
	X(ibv_create_qp, V1_1)             \
	X(ibv_destroy_qp, V1_1)            \
	X(ibv_modify_qp, V1_1)             \
	X(ibv_query_qp, V1_1)

struct hw_lib {
#define X(call, version) __typeof__(call) *call;
	CALLS(X)
#undef X
	__typeof__(_ibv_query_gid_table) *query_gid_table; // since IBVERBS_1.11
};

// Go passes these numbers as they are.
_Static_assert(IBV_ACCESS_LOCAL_WRITE == 1 && IBV_ACCESS_REMOTE_WRITE == 2 && IBV_ACCESS_REMOTE_READ == 4, "access");
_Static_assert(IBV_WC_SUCCESS == 0 && IBV_WC_LOC_LEN_ERR == 1 && IBV_WC_LOC_QP_OP_ERR == 2 && IBV_WC_LOC_PROT_ERR == 4 &&
	IBV_WC_WR_FLUSH_ERR == 5 && IBV_WC_BAD_RESP_ERR == 7 && IBV_WC_LOC_ACCESS_ERR == 8 && IBV_WC_REM_INV_REQ_ERR == 9 &&
	IBV_WC_REM_ACCESS_ERR == 10 && IBV_WC_REM_OP_ERR == 11 && IBV_WC_RETRY_EXC_ERR == 12 && IBV_WC_RNR_RETRY_EXC_ERR == 13 &&
	IBV_WC_REM_ABORT_ERR == 16 && IBV_WC_FATAL_ERR == 19 && IBV_WC_RESP_TIMEOUT_ERR == 20 && IBV_WC_GENERAL_ERR == 21, "status");
_Static_assert(IBV_QPS_RESET == 0 && IBV_QPS_INIT == 1 && IBV_QPS_RTR == 2 && IBV_QPS_RTS == 3 && IBV_QPS_SQD == 4 &&
	IBV_QPS_SQE == 5 && IBV_QPS_ERR == 6, "queue pair state");
_Static_assert(IBV_MTU_256 == 1 && IBV_MTU_512 == 2 && IBV_MTU_1024 == 3 && IBV_MTU_2048 == 4 && IBV_MTU_4096 == 5, "MTU");
_Static_assert(IBV_LINK_LAYER_UNSPECIFIED == 0 && IBV_LINK_LAYER_INFINIBAND == 1 && IBV_LINK_LAYER_ETHERNET == 2, "link layer");
_Static_assert(IBV_GID_TYPE_IB == 0 && IBV_GID_TYPE_ROCE_V1 == 1 && IBV_GID_TYPE_ROCE_V2 == 2, "GID type");
_Static_assert(sizeof(hw_send_wr) == 48 && sizeof(hw_recv_wr) == 24 && sizeof(hw_wc) == 32, "layout");
_Static_assert(sizeof(struct ibv_wc) == 48 && sizeof(struct ibv_send_wr) == 128 && sizeof(struct ibv_sge) == 16, "libibverbs' ABI");

static void *find(void *so, const char *name, const char *version)
{
#ifdef __GLIBC__
	void *p = dlvsym(so, name, version);
	if (p)
		return p;
#endif
	return dlsym(so, name);
}

hw_lib *hw_load(const char *file, char **error)
{
	void *so = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	if (!so) {
		*error = strdup(dlerror());
		return NULL;
	}
	hw_lib *lib = calloc(1, sizeof(*lib));
	if (!lib) {
		*error = strdup("out of memory");
		return NULL;
	}
#define X(call, version)                            \
	lib->call = find(so, #call, version);           \
	if (!lib->call) {                               \
		*error = strdup(#call " is not in " V1_1);  \
		free(lib);                                  \
		return NULL;                                \
	}
	CALLS(X)
#undef X
	lib->query_gid_table = find(so, "_ibv_query_gid_table", "IBVERBS_1.11");
	return lib;
}

// Drivers return an errno, a negative one, or -1 and set it.
static int code(int rc)
{
	if (rc == 0)
		return 0;
	if (rc == -1)
		return errno ? errno : EIO;
	return rc < 0 ? -rc : rc;
}

struct ibv_device **hw_get_device_list(hw_lib *lib, int *count) { return lib->ibv_get_device_list(count); }
void hw_free_device_list(hw_lib *lib, struct ibv_device **list) { lib->ibv_free_device_list(list); }
struct ibv_context *hw_open_device(hw_lib *lib, struct ibv_device *device) { return lib->ibv_open_device(device); }
int hw_close_device(hw_lib *lib, struct ibv_context *context) { return code(lib->ibv_close_device(context)); }

int hw_query_device(hw_lib *lib, struct ibv_context *context, struct ibv_device_attr *attr)
{
	return code(lib->ibv_query_device(context, attr));
}

// As the header's wrapper: the plain call fills the fields of old only.
int hw_query_port(hw_lib *lib, struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
	struct verbs_context *v = verbs_get_ctx_op(context, query_port);
	memset(attr, 0, sizeof(*attr));
	if (v)
		return code(v->query_port(context, port, attr, sizeof(*attr)));
	return code(lib->ibv_query_port(context, port, (struct _compat_ibv_port_attr *)attr));
}

ssize_t hw_query_gid_table(hw_lib *lib, struct ibv_context *context, struct ibv_gid_entry *entries, size_t max)
{
	if (!lib->query_gid_table)
		return -ENOSYS;
	return lib->query_gid_table(context, entries, max, 0, sizeof(*entries));
}

// Taking and acknowledging is one call, so that destroying an object never
// waits for an event that Go holds. Until then the object exists.
int hw_get_async_event(hw_lib *lib, struct ibv_context *context, hw_event *event)
{
	struct ibv_async_event e;
	errno = 0;
	if (lib->ibv_get_async_event(context, &e))
		return errno ? errno : EIO;
	memset(event, 0, sizeof(*event));
	event->type = e.event_type;
	switch (e.event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		event->qp = e.element.qp->qp_num;
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_GID_CHANGE:
	case IBV_EVENT_LID_CHANGE:
		event->port = e.element.port_num;
		break;
	default:
		break;
	}
	lib->ibv_ack_async_event(&e);
	return 0;
}

struct ibv_comp_channel *hw_create_comp_channel(hw_lib *lib, struct ibv_context *context)
{
	return lib->ibv_create_comp_channel(context);
}

int hw_destroy_comp_channel(hw_lib *lib, struct ibv_comp_channel *channel)
{
	return code(lib->ibv_destroy_comp_channel(channel));
}

int hw_get_cq_event(hw_lib *lib, struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq;
	void *context;
	errno = 0;
	if (lib->ibv_get_cq_event(channel, &cq, &context))
		return errno ? errno : EIO;
	lib->ibv_ack_cq_events(cq, 1);
	return 0;
}

struct ibv_cq *hw_create_cq(hw_lib *lib, struct ibv_context *context, int entries, struct ibv_comp_channel *channel)
{
	return lib->ibv_create_cq(context, entries, NULL, channel, 0);
}

int hw_destroy_cq(hw_lib *lib, struct ibv_cq *cq) { return code(lib->ibv_destroy_cq(cq)); }
struct ibv_pd *hw_alloc_pd(hw_lib *lib, struct ibv_context *context) { return lib->ibv_alloc_pd(context); }
int hw_dealloc_pd(hw_lib *lib, struct ibv_pd *pd) { return code(lib->ibv_dealloc_pd(pd)); }

// The header would call ibv_reg_mr_iova2 for access that is no constant. That
// is needed for optional flags, of which there are none here.
struct ibv_mr *hw_reg_mr(hw_lib *lib, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return lib->ibv_reg_mr(pd, addr, length, access);
}

int hw_dereg_mr(hw_lib *lib, struct ibv_mr *mr) { return code(lib->ibv_dereg_mr(mr)); }

struct ibv_srq *hw_create_srq(hw_lib *lib, struct ibv_pd *pd, uint32_t wrs)
{
	struct ibv_srq_init_attr attr = {.attr = {.max_wr = wrs, .max_sge = 1}};
	return lib->ibv_create_srq(pd, &attr);
}

int hw_destroy_srq(hw_lib *lib, struct ibv_srq *srq) { return code(lib->ibv_destroy_srq(srq)); }

struct ibv_qp *hw_create_qp(hw_lib *lib, struct ibv_pd *pd, const hw_qp_init *init)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = init->send_cq,
		.recv_cq = init->recv_cq,
		.srq = init->srq,
		.qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = init->send_wrs,
			.max_send_sge = init->sges,
			.max_inline_data = init->inline_bytes,
			// One receive that is never posted: not every driver makes an empty queue.
			.max_recv_wr = init->srq ? 0 : 1,
			.max_recv_sge = init->srq ? 0 : 1,
		},
	};
	return lib->ibv_create_qp(pd, &attr);
}

int hw_destroy_qp(hw_lib *lib, struct ibv_qp *qp) { return code(lib->ibv_destroy_qp(qp)); }

int hw_modify_qp(hw_lib *lib, struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	return code(lib->ibv_modify_qp(qp, attr, mask));
}

int hw_query_qp_state(hw_lib *lib, struct ibv_qp *qp, int *state)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	int rc = code(lib->ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	if (!rc)
		*state = attr.qp_state;
	return rc;
}

// Work requests are chained on the stack, so many at a time.
enum { CHUNK = 32 };

// posted counts a chunk of which a call returned rc. A driver that fails
// without naming the request has queued them all and failed at the doorbell:
// they count as posted, because they may leave the host.
static int posted(int rc, int n, ptrdiff_t bad, int has_bad)
{
	if (!rc)
		return n;
	return has_bad && bad >= 0 && bad < n ? (int)bad : n;
}

hw_done hw_post_send(struct ibv_qp *qp, const hw_send_wr *wrs, int n)
{
	static const enum ibv_wr_opcode ops[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};
	hw_done done = {0, 0};
	// Drivers differ in the states before RTS: some queue the request and say
	// that it was refused, some say nothing.
	if (qp->state < IBV_QPS_RTS) {
		done.error = EINVAL;
		return done;
	}
	while (done.n < n && !done.error) {
		struct ibv_send_wr chain[CHUNK], *bad = NULL;
		struct ibv_sge sges[CHUNK];
		int k = n - done.n < CHUNK ? n - done.n : CHUNK;
		for (int i = 0; i < k; i++) {
			const hw_send_wr *w = &wrs[done.n + i];
			struct ibv_send_wr *c = &chain[i];
			if (w->op >= sizeof(ops) / sizeof(ops[0])) {
				k = i;
				done.error = EINVAL;
				break;
			}
			sges[i] = (struct ibv_sge){.addr = w->addr, .length = w->length, .lkey = w->lkey};
			memset(c, 0, sizeof(*c));
			c->wr_id = w->id;
			c->sg_list = &sges[i];
			c->num_sge = w->length ? 1 : 0;
			c->opcode = ops[w->op];
			c->send_flags = (w->is_signaled ? IBV_SEND_SIGNALED : 0) | (w->is_inline ? IBV_SEND_INLINE : 0) |
				(w->is_fenced ? IBV_SEND_FENCE : 0) | (w->is_solicited ? IBV_SEND_SOLICITED : 0);
			c->imm_data = htonl(w->imm);
			c->wr.rdma.remote_addr = w->remote_at;
			c->wr.rdma.rkey = w->rkey;
			if (i > 0)
				chain[i - 1].next = c;
		}
		if (k == 0)
			break;
		int rc = code(qp->context->ops.post_send(qp, chain, &bad));
		done.n += posted(rc, k, bad - chain, bad != NULL);
		if (rc)
			done.error = rc;
	}
	return done;
}

hw_done hw_post_srq_recv(struct ibv_srq *srq, const hw_recv_wr *wrs, int n)
{
	hw_done done = {0, 0};
	while (done.n < n && !done.error) {
		struct ibv_recv_wr chain[CHUNK], *bad = NULL;
		struct ibv_sge sges[CHUNK];
		int k = n - done.n < CHUNK ? n - done.n : CHUNK;
		for (int i = 0; i < k; i++) {
			const hw_recv_wr *w = &wrs[done.n + i];
			sges[i] = (struct ibv_sge){.addr = w->addr, .length = w->length, .lkey = w->lkey};
			chain[i] = (struct ibv_recv_wr){.wr_id = w->id, .sg_list = &sges[i], .num_sge = 1};
			if (i > 0)
				chain[i - 1].next = &chain[i];
		}
		done.error = code(srq->context->ops.post_srq_recv(srq, chain, &bad));
		done.n += posted(done.error, k, bad - chain, bad != NULL);
	}
	return done;
}

hw_done hw_poll_cq(struct ibv_cq *cq, hw_wc *wcs, int n)
{
	hw_done done = {0, 0};
	while (done.n < n) {
		struct ibv_wc got[CHUNK];
		int want = n - done.n < CHUNK ? n - done.n : CHUNK;
		errno = 0;
		int k = cq->context->ops.poll_cq(cq, want, got);
		if (k < 0) {
			done.error = code(k);
			break;
		}
		for (int i = 0; i < k; i++) {
			const struct ibv_wc *from = &got[i];
			// Of a failed one nothing else is defined.
			int ok = from->status == IBV_WC_SUCCESS, is_recv = ok && (from->opcode & IBV_WC_RECV);
			int has_imm = is_recv && (from->wc_flags & IBV_WC_WITH_IMM);
			wcs[done.n + i] = (hw_wc){
				.id = from->wr_id,
				.qp = from->qp_num,
				.length = is_recv ? from->byte_len : 0,
				.imm = has_imm ? ntohl(from->imm_data) : 0,
				.status = from->status,
				.vendor = ok ? 0 : from->vendor_err,
				.is_recv = is_recv != 0,
				.has_imm = has_imm != 0,
			};
		}
		done.n += k;
		if (k < want)
			break;
	}
	return done;
}

int hw_req_notify_cq(struct ibv_cq *cq) { return code(cq->context->ops.req_notify_cq(cq, 0)); }
