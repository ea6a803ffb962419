package simverbs

import (
	"sync"
	"syscall"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// device is one open context of a device.
type device struct {
	n  *nic
	p  *Provider
	mu *sync.Mutex // the provider's

	pds      map[*pd]bool
	channels map[*channel]bool
	cqs      map[*cq]bool
	srqs     map[*srq]bool
	mrs      map[uint32]*mr
	qps      map[*qp]bool

	keys          uint32
	events        []event
	wake          *sync.Cond
	isInterrupted bool
	isLost        bool // DeviceFatal
	isClosed      bool
}

type event struct {
	verbs.Event
	of *qp // nil if it is not about a queue pair
}

func newDevice(n *nic) *device {
	d := &device{
		n: n, p: n.p, mu: &n.p.mu, wake: sync.NewCond(&n.p.mu),
		pds: map[*pd]bool{}, channels: map[*channel]bool{}, cqs: map[*cq]bool{},
		srqs: map[*srq]bool{}, mrs: map[uint32]*mr{}, qps: map[*qp]bool{},
		keys: 0x100,
	}
	n.opened[d] = true
	return d
}

func (n *nic) port(number int) string { return PortName{n.p.options.Host, n.name, number}.String() }

// tellPort raises the events of what changed on a port.
func (n *nic) tellPort(number int, before, after *fabricPort) {
	if before == nil || after == nil {
		return
	}
	tell := func(t verbs.EventType) {
		for d := range n.opened {
			d.raise(event{Event: verbs.Event{Type: t, Port: number}})
		}
	}
	if !sameGIDs(before.GIDs, after.GIDs) {
		tell(verbs.GIDChange)
	}
	if before.LID != after.LID {
		tell(verbs.LIDChange)
	}
	switch {
	case !before.Down && after.Down:
		tell(verbs.PortError)
	case before.Down && !after.Down:
		tell(verbs.PortActive)
	}
}

func sameGIDs(a, b []verbs.GID) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func (d *device) Name() string { return d.n.name }

// begin is the start of every call on the device that the kernel would see.
func (d *device) begin(call string) error {
	if err := d.p.inject(call, d.n.name); err != nil {
		return err
	}
	if d.isClosed || d.p.isClosed {
		d.p.fault("%s on %s after it was closed", call, d.n.name)
		return refuse(call, d.n.name, syscall.EINVAL)
	}
	if d.isLost {
		return refuse(call, d.n.name, syscall.EIO)
	}
	return nil
}

func (d *device) Limits() (verbs.Limits, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin("ibv_query_device"); err != nil {
		return verbs.Limits{}, err
	}
	return d.n.config.Limits, nil
}

func (d *device) Ports() ([]verbs.Port, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin("ibv_query_port"); err != nil {
		return nil, err
	}
	ports := []verbs.Port{}
	for i, c := range d.n.config.Ports {
		at := d.p.fabric.Ports[d.n.port(i+1)]
		p := verbs.Port{
			Number: i + 1, Active: !at.Down, State: "active",
			Link: c.Link, MTU: c.MTU, LID: at.LID, SMLID: c.SMLID, Gbps: c.Gbps,
			GIDs: append([]verbs.GID(nil), at.GIDs...), PkeyCount: 1,
		}
		if at.Down {
			p.State = "down"
		}
		ports = append(ports, p)
	}
	return ports, nil
}

func (d *device) raise(e event) {
	d.events = append(d.events, e)
	d.wake.Broadcast()
}

func (d *device) Event() (verbs.Event, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		switch {
		case d.isInterrupted || d.isClosed || d.p.isClosed:
			return verbs.Event{}, verbs.ErrClosed
		case len(d.events) > 0:
			e := d.events[0]
			d.events = d.events[1:]
			return e.Event, nil
		}
		d.wake.Wait()
	}
}

func (d *device) Interrupt() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.isInterrupted = true
	d.wake.Broadcast()
}

func (d *device) wakeAll() {
	d.wake.Broadcast()
	for c := range d.channels {
		c.wake.Broadcast()
	}
}

// lose is a fatal error of the device: nothing on it completes any more.
func (d *device) lose() {
	d.isLost = true
	for q := range d.qps {
		q.stopTimer()
		q.state = verbs.Err
	}
	d.raise(event{Event: verbs.Event{Type: verbs.DeviceFatal}})
}

func (d *device) AllocPD() (verbs.PD, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin("ibv_alloc_pd"); err != nil {
		return nil, err
	}
	p := &pd{d: d}
	d.pds[p] = true
	return p, nil
}

func (d *device) Close() error {
	const call = "ibv_close_device"
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isClosed {
		d.p.fault("%s was closed twice", d.n.name)
		return refuse(call, d.n.name, syscall.EINVAL)
	}
	if err := d.p.inject(call, d.n.name); err != nil {
		return err
	}
	if len(d.pds)+len(d.channels)+len(d.cqs) > 0 {
		return refuse(call, d.n.name, syscall.EBUSY)
	}
	d.isClosed = true
	delete(d.n.opened, d)
	return nil
}
