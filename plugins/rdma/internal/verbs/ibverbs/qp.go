//go:build linux && cgo

package ibverbs

// #cgo noescape hw_post_send
// #cgo nocallback hw_post_send
// #include "shim.h"
import "C"

import (
	"syscall"
	"unsafe"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// qp is a queue pair.
type qp struct {
	d   *device
	c   *C.struct_ibv_qp
	num uint32
}

func (p *pd) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	const call = "ibv_create_qp"
	send, isOurs := init.SendCQ.(*cq)
	recv, isToo := init.RecvCQ.(*cq)
	if !isOurs || !isToo {
		return nil, refused(call, p.d.name, syscall.EINVAL)
	}
	c := C.hw_qp_init{
		send_cq: send.c, recv_cq: recv.c,
		send_wrs: C.uint32_t(init.SendWRs), sges: C.uint32_t(init.MaxSGE), inline_bytes: C.uint32_t(init.MaxInline),
	}
	if s, isOurs := init.SRQ.(*srq); isOurs {
		c.srq = s.c
	} else if init.SRQ != nil {
		return nil, refused(call, p.d.name, syscall.EINVAL)
	}
	q, err := C.hw_create_qp(p.d.lib, p.c, &c)
	if q == nil {
		return nil, refused(call, p.d.name, err)
	}
	return &qp{p.d, q, uint32(q.qp_num)}, nil
}

func (q *qp) Num() uint32 { return q.num }

func (q *qp) modify(to uint32, a C.struct_ibv_qp_attr, mask C.int) error {
	a.qp_state = to
	call := "ibv_modify_qp(" + verbs.QPState(to).String() + ")"
	return q.d.check(call, C.hw_modify_qp(q.d.lib, q.c, &a, mask|C.IBV_QP_STATE))
}

func (q *qp) ToInit(i verbs.InitAttr) error {
	return q.modify(C.IBV_QPS_INIT, C.struct_ibv_qp_attr{
		port_num: C.uint8_t(i.Port), pkey_index: C.uint16_t(i.PkeyIndex), qp_access_flags: C.uint(i.Access),
	}, C.IBV_QP_PKEY_INDEX|C.IBV_QP_PORT|C.IBV_QP_ACCESS_FLAGS)
}

func (q *qp) ToRTR(r verbs.RTRAttr) error {
	if !r.MTU.Valid() {
		return refused("ibv_modify_qp(RTR)", q.d.name, syscall.EINVAL)
	}
	a := C.struct_ibv_qp_attr{
		path_mtu: mtuCode(r.MTU), dest_qp_num: C.uint32_t(r.PeerQP), rq_psn: C.uint32_t(r.PeerPSN),
		max_dest_rd_atomic: C.uint8_t(r.MaxDestRD), min_rnr_timer: C.uint8_t(r.MinRNRTimer),
	}
	ah := &a.ah_attr
	ah.port_num, ah.dlid, ah.sl = C.uint8_t(r.Port), C.uint16_t(r.PeerLID), C.uint8_t(r.ServiceLevel)
	if r.Global {
		ah.is_global = 1
		ah.grh.dgid = r.PeerGID
		ah.grh.sgid_index = C.uint8_t(r.SGIDIndex)
		ah.grh.hop_limit = C.uint8_t(r.HopLimit)
		ah.grh.traffic_class = C.uint8_t(r.TrafficClass)
		ah.grh.flow_label = C.uint32_t(r.FlowLabel)
	}
	return q.modify(C.IBV_QPS_RTR, a, C.IBV_QP_AV|C.IBV_QP_PATH_MTU|C.IBV_QP_DEST_QPN|C.IBV_QP_RQ_PSN|
		C.IBV_QP_MAX_DEST_RD_ATOMIC|C.IBV_QP_MIN_RNR_TIMER)
}

func (q *qp) ToRTS(r verbs.RTSAttr) error {
	return q.modify(C.IBV_QPS_RTS, C.struct_ibv_qp_attr{
		timeout: C.uint8_t(r.Timeout), retry_cnt: C.uint8_t(r.RetryCnt), rnr_retry: C.uint8_t(r.RNRRetry),
		sq_psn: C.uint32_t(r.PSN), max_rd_atomic: C.uint8_t(r.MaxRD),
	}, C.IBV_QP_TIMEOUT|C.IBV_QP_RETRY_CNT|C.IBV_QP_RNR_RETRY|C.IBV_QP_SQ_PSN|C.IBV_QP_MAX_QP_RD_ATOMIC)
}

func (q *qp) ToError() error { return q.modify(C.IBV_QPS_ERR, C.struct_ibv_qp_attr{}, 0) }
func (q *qp) ToReset() error { return q.modify(C.IBV_QPS_RESET, C.struct_ibv_qp_attr{}, 0) }

func (q *qp) State() (verbs.QPState, error) {
	var s C.int
	err := q.d.check("ibv_query_qp", C.hw_query_qp_state(q.d.lib, q.c, &s))
	return verbs.QPState(s), err
}

func (q *qp) Post(wrs []verbs.SendWR) (int, error) {
	if len(wrs) == 0 {
		return 0, nil
	}
	done := C.hw_post_send(q.c, (*C.hw_send_wr)(unsafe.Pointer(&wrs[0])), C.int(len(wrs)))
	return int(done.n), q.d.check("ibv_post_send", done.error)
}

func (q *qp) Close() error { return q.d.check("ibv_destroy_qp", C.hw_destroy_qp(q.d.lib, q.c)) }
