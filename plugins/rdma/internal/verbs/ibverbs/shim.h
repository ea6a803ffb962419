// What Go calls. Each call is libibverbs' of the same name, through the table
// that hw_load filled, or through the device's own operations.
//
// Calls that return int return 0 or an errno. Calls that return a pointer
// return NULL and set errno.
#ifndef HAWSER_IBVERBS_SHIM_H
#define HAWSER_IBVERBS_SHIM_H

#include <infiniband/verbs.h>

typedef struct hw_lib hw_lib;

// hw_load opens the library. On failure it returns NULL and a text to free.
hw_lib *hw_load(const char *file, char **error);

struct ibv_device **hw_get_device_list(hw_lib *lib, int *count);
void hw_free_device_list(hw_lib *lib, struct ibv_device **list);
struct ibv_context *hw_open_device(hw_lib *lib, struct ibv_device *device);
int hw_close_device(hw_lib *lib, struct ibv_context *context);
int hw_query_device(hw_lib *lib, struct ibv_context *context, struct ibv_device_attr *attr);
int hw_query_port(hw_lib *lib, struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr);

// hw_query_gid_table returns how many valid entries all ports have, or a
// negative errno; -ENOSYS where the library is older than the call.
ssize_t hw_query_gid_table(hw_lib *lib, struct ibv_context *context, struct ibv_gid_entry *entries, size_t max);

// An asynchronous event, acknowledged already.
typedef struct {
	int type;
	uint32_t qp; // of events about a queue pair
	int port;    // of events about a port
} hw_event;

// EAGAIN without one.
int hw_get_async_event(hw_lib *lib, struct ibv_context *context, hw_event *event);

struct ibv_comp_channel *hw_create_comp_channel(hw_lib *lib, struct ibv_context *context);
int hw_destroy_comp_channel(hw_lib *lib, struct ibv_comp_channel *channel);
// Takes one event and acknowledges it. EAGAIN without one.
int hw_get_cq_event(hw_lib *lib, struct ibv_comp_channel *channel);

struct ibv_cq *hw_create_cq(hw_lib *lib, struct ibv_context *context, int entries, struct ibv_comp_channel *channel);
int hw_destroy_cq(hw_lib *lib, struct ibv_cq *cq);
struct ibv_pd *hw_alloc_pd(hw_lib *lib, struct ibv_context *context);
int hw_dealloc_pd(hw_lib *lib, struct ibv_pd *pd);
struct ibv_mr *hw_reg_mr(hw_lib *lib, struct ibv_pd *pd, void *addr, size_t length, int access);
int hw_dereg_mr(hw_lib *lib, struct ibv_mr *mr);
struct ibv_srq *hw_create_srq(hw_lib *lib, struct ibv_pd *pd, uint32_t wrs);
int hw_destroy_srq(hw_lib *lib, struct ibv_srq *srq);

typedef struct {
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_srq *srq;
	uint32_t send_wrs, sges, inline_bytes;
} hw_qp_init;

struct ibv_qp *hw_create_qp(hw_lib *lib, struct ibv_pd *pd, const hw_qp_init *init);
int hw_destroy_qp(hw_lib *lib, struct ibv_qp *qp);
int hw_modify_qp(hw_lib *lib, struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int hw_query_qp_state(hw_lib *lib, struct ibv_qp *qp, int *state);

// The layouts of verbs.SendWR, verbs.RecvWR and verbs.WC; layout.go compares them.
typedef struct {
	uint64_t id, addr, remote_at;
	uint32_t lkey, length, rkey, imm;
	uint8_t op, is_signaled, is_inline, is_fenced, is_solicited;
} hw_send_wr;

typedef struct {
	uint64_t id, addr;
	uint32_t lkey, length;
} hw_recv_wr;

typedef struct {
	uint64_t id;
	uint32_t qp, length, imm;
	uint8_t status;
	uint32_t vendor;
	uint8_t is_recv, has_imm;
} hw_wc;

// How many were posted or polled, and the errno of what stopped it.
typedef struct {
	int n, error;
} hw_done;

hw_done hw_post_send(struct ibv_qp *qp, const hw_send_wr *wrs, int n);
hw_done hw_post_srq_recv(struct ibv_srq *srq, const hw_recv_wr *wrs, int n);
hw_done hw_poll_cq(struct ibv_cq *cq, hw_wc *wcs, int n);
int hw_req_notify_cq(struct ibv_cq *cq);

#endif
