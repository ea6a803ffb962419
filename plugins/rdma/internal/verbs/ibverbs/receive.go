//go:build linux && cgo

package ibverbs

// #cgo noescape hw_post_srq_recv
// #cgo nocallback hw_post_srq_recv
// #include "shim.h"
import "C"

import (
	"unsafe"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// srq is a shared receive queue.
type srq struct {
	d *device
	c *C.struct_ibv_srq
}

func (p *pd) CreateSRQ(wrs int) (verbs.SRQ, error) {
	c, err := C.hw_create_srq(p.d.lib, p.c, C.uint32_t(wrs))
	if c == nil {
		return nil, refused("ibv_create_srq", p.d.name, err)
	}
	return &srq{p.d, c}, nil
}

func (s *srq) Post(wrs []verbs.RecvWR) (int, error) {
	if len(wrs) == 0 {
		return 0, nil
	}
	done := C.hw_post_srq_recv(s.c, (*C.hw_recv_wr)(unsafe.Pointer(&wrs[0])), C.int(len(wrs)))
	return int(done.n), s.d.check("ibv_post_srq_recv", done.error)
}

func (s *srq) Close() error { return s.d.check("ibv_destroy_srq", C.hw_destroy_srq(s.d.lib, s.c)) }
