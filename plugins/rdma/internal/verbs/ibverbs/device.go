//go:build linux && cgo

package ibverbs

// #include "shim.h"
import "C"

import (
	"net/netip"
	"sync/atomic"
	"syscall"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// device is an open context.
type device struct {
	lib     *C.hw_lib
	host    host
	name    string
	context *C.struct_ibv_context
	events  *waiter
	users   atomic.Int32 // domains, channels, queues: the library does not count them
}

func (d *device) Name() string { return d.name }

func (d *device) check(call string, rc C.int) error { return check(call, d.name, rc) }

func (d *device) attr() (a C.struct_ibv_device_attr, err error) {
	err = d.check("ibv_query_device", C.hw_query_device(d.lib, d.context, &a))
	return a, err
}

func (d *device) Limits() (verbs.Limits, error) {
	a, err := d.attr()
	if err != nil {
		return verbs.Limits{}, err
	}
	return verbs.Limits{
		QPs: int(a.max_qp), CQs: int(a.max_cq), MRs: int(a.max_mr), SRQs: int(a.max_srq),
		QPWRs: int(a.max_qp_wr), CQEntries: int(a.max_cqe), SRQWRs: int(a.max_srq_wr),
		RDAtomic: int(a.max_qp_rd_atom), InitRDAtomic: int(a.max_qp_init_rd_atom),
	}, nil
}

func (d *device) Ports() ([]verbs.Port, error) {
	a, err := d.attr()
	if err != nil {
		return nil, err
	}
	ports := make([]verbs.Port, int(a.phys_port_cnt))
	entries := 0
	for i := range ports {
		var c C.struct_ibv_port_attr
		if err := d.check("ibv_query_port", C.hw_query_port(d.lib, d.context, C.uint8_t(i+1), &c)); err != nil {
			return nil, err
		}
		ports[i] = verbs.Port{
			Number: i + 1, Active: c.state == C.IBV_PORT_ACTIVE, State: portState(int(c.state)),
			Link: verbs.LinkLayer(c.link_layer), MTU: mtuOf(c.active_mtu),
			LID: uint16(c.lid), SMLID: uint16(c.sm_lid),
			Gbps: gbps(int(c.active_width), int(c.active_speed)), PkeyCount: int(c.pkey_tbl_len),
		}
		entries += int(c.gid_tbl_len)
	}
	return ports, d.addGIDs(ports, entries)
}

func (d *device) addGIDs(ports []verbs.Port, entries int) error {
	if entries == 0 {
		return nil
	}
	table := make([]C.struct_ibv_gid_entry, entries)
	n := C.hw_query_gid_table(d.lib, d.context, &table[0], C.size_t(entries))
	switch {
	case n == -C.ENOSYS || n == -C.EOPNOTSUPP:
		for i := range ports {
			ports[i].GIDs = d.host.gids(d.name, ports[i].Number, ports[i].Link)
		}
		return nil
	case n < 0:
		return refused("ibv_query_gid_table", d.name, syscall.Errno(-n))
	}
	for _, e := range table[:n] {
		if e.port_num < 1 || int(e.port_num) > len(ports) {
			continue
		}
		p := &ports[e.port_num-1]
		p.GIDs = append(p.GIDs, verbs.GID{
			Index: int(e.gid_index), Addr: netip.AddrFrom16(e.gid), Type: verbs.GIDType(e.gid_type),
		})
	}
	return nil
}

func (d *device) Event() (verbs.Event, error) {
	var e C.hw_event
	err := d.events.wait(func() syscall.Errno {
		return syscall.Errno(C.hw_get_async_event(d.lib, d.context, &e))
	})
	if err == verbs.ErrClosed {
		return verbs.Event{}, err
	}
	if err != nil {
		return verbs.Event{}, refused("ibv_get_async_event", d.name, err)
	}
	return verbs.Event{Type: eventTypes[e._type], QP: uint32(e.qp), Port: int(e.port)}, nil
}

// eventTypes holds the events that the transport knows; others are EventOther.
var eventTypes = map[C.int]verbs.EventType{
	C.IBV_EVENT_PORT_ACTIVE:         verbs.PortActive,
	C.IBV_EVENT_PORT_ERR:            verbs.PortError,
	C.IBV_EVENT_GID_CHANGE:          verbs.GIDChange,
	C.IBV_EVENT_LID_CHANGE:          verbs.LIDChange,
	C.IBV_EVENT_QP_FATAL:            verbs.QPFatal,
	C.IBV_EVENT_QP_REQ_ERR:          verbs.QPRequestError,
	C.IBV_EVENT_QP_ACCESS_ERR:       verbs.QPAccessError,
	C.IBV_EVENT_COMM_EST:            verbs.CommEstablished,
	C.IBV_EVENT_QP_LAST_WQE_REACHED: verbs.LastWQEReached,
	C.IBV_EVENT_DEVICE_FATAL:        verbs.DeviceFatal,
	C.IBV_EVENT_CQ_ERR:              verbs.CQError,
	C.IBV_EVENT_SRQ_ERR:             verbs.SRQError,
}

func (d *device) Interrupt() { d.events.interrupt() }

func (d *device) Close() error {
	const call = "ibv_close_device"
	if d.users.Load() > 0 {
		return refused(call, d.name, syscall.EBUSY)
	}
	if d.context == nil {
		return refused(call, d.name, syscall.EINVAL)
	}
	if err := d.check(call, C.hw_close_device(d.lib, d.context)); err != nil {
		return err
	}
	d.context = nil
	d.events.close()
	return nil
}
