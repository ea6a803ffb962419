//go:build linux && cgo

package ibverbs

// #include "shim.h"
import "C"

import (
	"errors"
	"syscall"
	"unsafe"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// pd is a protection domain. The kernel counts what is made from it.
type pd struct {
	d *device
	c *C.struct_ibv_pd
}

func (d *device) AllocPD() (verbs.PD, error) {
	c, err := C.hw_alloc_pd(d.lib, d.context)
	if c == nil {
		return nil, refused("ibv_alloc_pd", d.name, err)
	}
	d.users.Add(1)
	return &pd{d, c}, nil
}

func (p *pd) Close() error {
	if err := p.d.check("ibv_dealloc_pd", C.hw_dealloc_pd(p.d.lib, p.c)); err != nil {
		return err
	}
	p.d.users.Add(-1)
	return nil
}

// mr is a registered memory region.
type mr struct {
	d *device
	c *C.struct_ibv_mr
}

func (p *pd) RegisterMemory(mem []byte, access verbs.Access) (verbs.MR, error) {
	const call = "ibv_reg_mr"
	if len(mem) == 0 {
		return nil, refused(call, p.d.name, syscall.EINVAL)
	}
	c, err := C.hw_reg_mr(p.d.lib, p.c, unsafe.Pointer(&mem[0]), C.size_t(len(mem)), C.int(access))
	if c != nil {
		return &mr{p.d, c}, nil
	}
	failed := refused(call, p.d.name, err)
	if errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EAGAIN) {
		return nil, memlock(len(mem), failed)
	}
	return nil, failed
}

func (m *mr) LKey() uint32 { return uint32(m.c.lkey) }
func (m *mr) RKey() uint32 { return uint32(m.c.rkey) }
func (m *mr) Close() error { return m.d.check("ibv_dereg_mr", C.hw_dereg_mr(m.d.lib, m.c)) }
