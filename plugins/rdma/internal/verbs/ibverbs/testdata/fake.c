// A libibverbs.so.1 with one device and no hardware, for what no device can be
// made to do. Work requests say by their id what happens to them; what was
// posted completes at once, and its completion shows what arrived here.
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <unistd.h>

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

enum {
	REFUSED = 0xbad,  // this one is refused, as drivers should
	DOORBELL = 0xd00, // queued, and the call fails without naming one
	EVENT = 0xe00,    // raises the event of this number
};

static struct ibv_wc done[256];
static int ndone, nsent;
static int async[2], unacked;
static int completions[2];
static struct ibv_cq the_cq;

static void complete(struct ibv_wc wc)
{
	if (ndone < 256)
		done[ndone++] = wc;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	int rc = 0;
	nsent++;
	for (; wr; wr = wr->next) {
		if (wr->wr_id == REFUSED) {
			*bad = wr;
			return -ENOMEM;
		}
		if (wr->wr_id == DOORBELL)
			rc = EIO;
		if ((wr->wr_id & ~0xff) == EVENT) {
			struct ibv_async_event e = {.event_type = wr->wr_id & 0xff, .element.qp = qp};
			if (e.event_type == IBV_EVENT_PORT_ERR)
				e.element.port_num = 3;
			if (write(async[1], &e, sizeof(e)) != sizeof(e))
				return EIO;
		}
		struct ibv_wc wc = {.wr_id = wr->wr_id, .qp_num = qp->qp_num, .status = wr->wr.rdma.rkey};
		wc.opcode = wr->opcode == IBV_WR_SEND_WITH_IMM ? IBV_WC_RECV : IBV_WC_SEND;
		wc.wc_flags = wr->opcode == IBV_WR_SEND_WITH_IMM ? IBV_WC_WITH_IMM : 0;
		wc.imm_data = wr->imm_data;
		wc.byte_len = wr->num_sge ? wr->sg_list->length : 0;
		wc.vendor_err = wr->opcode << 16 | wr->send_flags << 8 | wr->num_sge << 4 | nsent;
		complete(wc);
	}
	return rc;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	for (; wr; wr = wr->next) {
		if (wr->wr_id == REFUSED) {
			*bad = wr;
			return ENOMEM;
		}
		complete((struct ibv_wc){.wr_id = wr->wr_id, .opcode = IBV_WC_RECV, .byte_len = wr->sg_list->length});
	}
	return 0;
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	int k = 0;
	for (; k < n && k < ndone; k++)
		wc[k] = done[k];
	for (int i = k; i < ndone; i++)
		done[i - k] = done[i];
	ndone -= k;
	return k;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
	return write(completions[1], "x", 1) == 1 ? 0 : -1;
}

static struct ibv_device device = {.name = "fake0", .dev_name = "uverbs0"};
static struct ibv_device *list[] = {&device, NULL};
static struct ibv_context context;
static struct ibv_comp_channel channel;
static struct ibv_pd pd;
static struct ibv_mr mr = {.lkey = 11, .rkey = 22};
static struct ibv_srq srq;
static struct ibv_qp qp;

struct ibv_device **ibv_get_device_list(int *n) { *n = 1; return list; }
void ibv_free_device_list(struct ibv_device **l) {}

struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	if (pipe(async) || pipe(completions))
		return NULL;
	context = (struct ibv_context){.device = d, .async_fd = async[0]};
	context.ops.post_send = post_send;
	context.ops.post_srq_recv = post_srq_recv;
	context.ops.poll_cq = poll_cq;
	context.ops.req_notify_cq = req_notify_cq;
	return &context;
}

int ibv_close_device(struct ibv_context *c)
{
	for (int i = 0; i < 2; i++)
		close(async[i]), close(completions[i]);
	return 0;
}

int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a)
{
	*a = (struct ibv_device_attr){.phys_port_cnt = 1, .max_qp = 7, .max_srq_wr = 9};
	return 0;
}

int ibv_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *compat)
{
	struct ibv_port_attr *a = (void *)compat;
	a->state = IBV_PORT_ACTIVE;
	a->active_mtu = IBV_MTU_2048;
	a->link_layer = IBV_LINK_LAYER_ETHERNET;
	a->gid_tbl_len = 4;
	a->active_width = 2;
	a->active_speed = 32;
	return 0;
}

int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e)
{
	if (read(c->async_fd, e, sizeof(*e)) != sizeof(*e))
		return -1;
	unacked++;
	return 0;
}

void ibv_ack_async_event(struct ibv_async_event *e) { unacked--; }

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
	channel.fd = completions[0];
	return &channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *c) { return 0; }

int ibv_get_cq_event(struct ibv_comp_channel *c, struct ibv_cq **cq, void **context)
{
	char x;
	if (read(c->fd, &x, 1) != 1)
		return -1;
	*cq = &the_cq;
	unacked++;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n) { unacked -= n; }

struct ibv_cq *ibv_create_cq(struct ibv_context *c, int n, void *x, struct ibv_comp_channel *ch, int vector)
{
	the_cq.context = c;
	return &the_cq;
}

// The real one waits for ever.
int ibv_destroy_cq(struct ibv_cq *cq) { return unacked ? EDEADLK : 0; }
struct ibv_pd *ibv_alloc_pd(struct ibv_context *c) { return &pd; }
int ibv_dealloc_pd(struct ibv_pd *p) { errno = EBUSY; return -1; }

struct ibv_mr *ibv_reg_mr(struct ibv_pd *p, void *addr, size_t n, int access)
{
	if (n > 1 << 20) {
		errno = ENOMEM;
		return NULL;
	}
	return &mr;
}

int ibv_dereg_mr(struct ibv_mr *m) { return 0; }
struct ibv_srq *ibv_create_srq(struct ibv_pd *p, struct ibv_srq_init_attr *a) { srq.context = &context; return &srq; }
int ibv_destroy_srq(struct ibv_srq *s) { return 0; }

struct ibv_qp *ibv_create_qp(struct ibv_pd *p, struct ibv_qp_init_attr *a)
{
	qp = (struct ibv_qp){.context = &context, .qp_num = 77};
	return &qp;
}

int ibv_destroy_qp(struct ibv_qp *q) { return unacked ? EDEADLK : 0; }
int ibv_modify_qp(struct ibv_qp *q, struct ibv_qp_attr *a, int mask) { q->state = a->qp_state; return 0; }

#ifndef WITHOUT_QUERY_QP
int ibv_query_qp(struct ibv_qp *q, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *i)
{
	a->qp_state = q->state;
	return 0;
}
#endif
