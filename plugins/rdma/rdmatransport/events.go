package rdmatransport

import (
	"errors"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/sdk"
)

// listen takes the device's events until the device closes.
func (d *device) listen() {
	for {
		ev, err := d.dev.Event()
		if errors.Is(err, verbs.ErrClosed) {
			return
		}
		if err != nil {
			d.fail(err)
			return
		}
		d.heard(ev)
	}
}

func (d *device) heard(ev verbs.Event) {
	switch ev.Type {
	case verbs.LastWQEReached:
		d.inError(ev.QP, func(e *endpoint) {
			e.emptied = true
			e.breakLocked(sdk.Errorf(sdk.Unavailable, "the queue pair to %s is in the error state", e.peer))
		})
	case verbs.QPFatal, verbs.QPRequestError, verbs.QPAccessError:
		d.inError(ev.QP, func(e *endpoint) {
			e.breakLocked(sdk.Errorf(sdk.Unavailable, "the queue pair to %s failed", e.peer))
		})
	case verbs.PortError:
		d.log.Warn("port is down", "port", ev.Port)
		d.portsChanged() // first, so that its endpoints' ends are no failures
		d.portDown(ev.Port)
	case verbs.PortActive:
		d.log.Info("port is up", "port", ev.Port)
		d.portsChanged()
	case verbs.GIDChange, verbs.LIDChange:
		d.portsChanged()
	case verbs.DeviceFatal:
		d.fail(errors.New("the device reported a fatal error"))
	case verbs.CQError:
		d.fail(errors.New("its completion queue overran"))
	case verbs.SRQError:
		d.fail(errors.New("its shared receive queue failed"))
	}
}

// inError calls do for the endpoint of a queue pair that is in the error state:
// an event may be about an earlier one of the same number.
func (d *device) inError(number uint32, do func(*endpoint)) {
	d.table.mu.Lock()
	defer d.table.mu.Unlock()
	e := d.table.m[number]
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over {
		return // its queue pair may be gone
	}
	if state, err := e.qp.State(); err == nil && state != verbs.Err {
		return
	}
	do(e)
	e.kick()
}

// portDown ends the endpoints of a port: their sends would only fail later.
func (d *device) portDown(number int) {
	d.table.each(func(e *endpoint) {
		if e.port == number {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.breakLocked(sdk.Errorf(sdk.Unavailable, "port %d of device %s is down", number, d.name))
		}
	})
}

func (d *device) portsChanged() {
	if err := d.refreshPorts(); err != nil {
		d.log.Warn("ports cannot be asked for their state", "error", err)
	}
	d.changed()
}
