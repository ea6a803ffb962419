//go:build linux && cgo

package ibverbs

// #cgo noescape hw_poll_cq
// #cgo nocallback hw_poll_cq
// #cgo nocallback hw_req_notify_cq
// #include "shim.h"
import "C"

import (
	"syscall"
	"unsafe"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// channel is a completion channel.
type channel struct {
	d      *device
	c      *C.struct_ibv_comp_channel
	events *waiter
}

func (d *device) CreateChannel() (verbs.Channel, error) {
	const call = "ibv_create_comp_channel"
	c, err := C.hw_create_comp_channel(d.lib, d.context)
	if c == nil {
		return nil, refused(call, d.name, err)
	}
	events, err := newWaiter(int(c.fd), d.name+" completions")
	if err != nil {
		C.hw_destroy_comp_channel(d.lib, c)
		return nil, refused(call, d.name, err)
	}
	d.users.Add(1)
	return &channel{d, c, events}, nil
}

func (c *channel) Wait() error {
	err := c.events.wait(func() syscall.Errno {
		return syscall.Errno(C.hw_get_cq_event(c.d.lib, c.c))
	})
	if err == nil || err == verbs.ErrClosed {
		return err
	}
	return refused("ibv_get_cq_event", c.d.name, err)
}

func (c *channel) Interrupt() { c.events.interrupt() }

func (c *channel) Close() error {
	if err := c.d.check("ibv_destroy_comp_channel", C.hw_destroy_comp_channel(c.d.lib, c.c)); err != nil {
		return err
	}
	c.events.close()
	c.d.users.Add(-1)
	return nil
}

// cq is a completion queue.
type cq struct {
	d *device
	c *C.struct_ibv_cq
}

func (d *device) CreateCQ(entries int, ch verbs.Channel) (verbs.CQ, error) {
	const call = "ibv_create_cq"
	var events *C.struct_ibv_comp_channel
	if ch != nil {
		of, isOurs := ch.(*channel)
		if !isOurs || of.d != d {
			return nil, refused(call, d.name, syscall.EINVAL)
		}
		events = of.c
	}
	c, err := C.hw_create_cq(d.lib, d.context, C.int(entries), events)
	if c == nil {
		return nil, refused(call, d.name, err)
	}
	d.users.Add(1)
	return &cq{d, c}, nil
}

func (c *cq) Poll(wcs []verbs.WC) (int, error) {
	if len(wcs) == 0 {
		return 0, nil
	}
	done := C.hw_poll_cq(c.c, (*C.hw_wc)(unsafe.Pointer(&wcs[0])), C.int(len(wcs)))
	return int(done.n), c.d.check("ibv_poll_cq", done.error)
}

func (c *cq) Arm() error { return c.d.check("ibv_req_notify_cq", C.hw_req_notify_cq(c.c)) }

func (c *cq) Close() error {
	if err := c.d.check("ibv_destroy_cq", C.hw_destroy_cq(c.d.lib, c.c)); err != nil {
		return err
	}
	c.d.users.Add(-1)
	return nil
}
