package simverbs

import (
	"sync"
	"syscall"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// channel is a completion channel.
type channel struct {
	d             *device
	wake          *sync.Cond
	pending       int
	waiting       int
	users         int
	isInterrupted bool
	isClosed      bool
}

func (d *device) CreateChannel() (verbs.Channel, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin("ibv_create_comp_channel"); err != nil {
		return nil, err
	}
	c := &channel{d: d, wake: sync.NewCond(d.mu)}
	d.channels[c] = true
	return c, nil
}

func (c *channel) Wait() error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.waiting++
	defer func() { c.waiting-- }()
	for {
		switch {
		case c.isInterrupted || c.isClosed || c.d.p.isClosed:
			return verbs.ErrClosed
		case c.pending > 0:
			c.pending--
			return nil
		}
		c.wake.Wait()
	}
}

func (c *channel) Interrupt() {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.isInterrupted = true
	c.wake.Broadcast()
}

func (c *channel) Close() error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	return c.d.closing("ibv_destroy_comp_channel", &c.isClosed, c.users, func() {
		if c.waiting > 0 {
			c.d.p.fault("a channel was closed under a call that waits")
			c.wake.Broadcast()
		}
		delete(c.d.channels, c)
	})
}

// cq is a completion queue.
type cq struct {
	d         *device
	ch        *channel
	cap       int
	entries   []entry
	armed     bool
	isOverrun bool
	users     int // counts a queue pair for each direction
	isClosed  bool
}

// entry is a completion and what its polling sets free.
type entry struct {
	verbs.WC
	of      *qp
	slots   int // of the send queue
	receive *receive
}

func (d *device) CreateCQ(entries int, ch verbs.Channel) (verbs.CQ, error) {
	const call = "ibv_create_cq"
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin(call); err != nil {
		return nil, err
	}
	c, _ := ch.(*channel)
	if entries < 1 || entries > d.n.config.Limits.CQEntries || ch != nil && (c == nil || c.d != d || c.isClosed) {
		return nil, refuse(call, d.n.name, syscall.EINVAL)
	}
	if len(d.cqs) >= d.n.config.Limits.CQs {
		return nil, refuse(call, d.n.name, syscall.ENOMEM)
	}
	q := &cq{d: d, ch: c, cap: entries}
	d.cqs[q] = true
	if c != nil {
		c.users++
	}
	return q, nil
}

func (c *cq) Poll(wcs []verbs.WC) (int, error) {
	const call = "ibv_poll_cq"
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if err := c.d.p.inject(call, c.d.n.name); err != nil {
		return 0, err
	}
	if c.isClosed {
		c.d.p.fault("%s after the queue was closed", call)
		return 0, refuse(call, c.d.n.name, syscall.EINVAL)
	}
	if c.d.n.held {
		return 0, nil
	}
	n := min(len(wcs), len(c.entries))
	for i, e := range c.entries[:n] {
		wcs[i] = e.WC
		e.release()
	}
	c.entries = c.entries[n:]
	return n, nil
}

func (e *entry) release() {
	e.of.free += e.slots
	e.receive.release()
}

func (c *cq) Arm() error {
	const call = "ibv_req_notify_cq"
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if err := c.d.p.inject(call, c.d.n.name); err != nil {
		return err
	}
	if c.isClosed || c.ch == nil {
		c.d.p.fault("%s on a queue that is closed or has no channel", call)
		return refuse(call, c.d.n.name, syscall.EINVAL)
	}
	c.armed = true
	return nil
}

// add appends a completion. A queue that has no room is dead from then on, and
// so are its queue pairs.
func (c *cq) add(e entry) {
	if e.of.isMuted || c.isOverrun {
		e.release()
		return
	}
	if len(c.entries) == c.cap {
		e.release()
		c.overrun()
		return
	}
	c.entries = append(c.entries, e)
	c.tell()
}

func (c *cq) tell() {
	if !c.armed || c.d.n.held {
		return
	}
	c.armed = false
	c.ch.pending++
	c.ch.wake.Broadcast()
}

func (c *cq) overrun() {
	c.isOverrun = true
	c.d.p.fault("a completion queue of %d overran", c.cap)
	c.d.raise(event{Event: verbs.Event{Type: verbs.CQError}})
	for q := range c.d.qps {
		if (q.sendCQ == c || q.recvCQ == c) && q.state != verbs.Reset {
			q.fail(verbs.QPFatal)
		}
	}
}

// drop removes the completions of a queue pair.
func (c *cq) drop(of *qp) {
	kept := c.entries[:0:0]
	for _, e := range c.entries {
		if e.of == of {
			e.release()
		} else {
			kept = append(kept, e)
		}
	}
	c.entries = kept
}

func (c *cq) Close() error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	return c.d.closing("ibv_destroy_cq", &c.isClosed, c.users, func() {
		delete(c.d.cqs, c)
		if c.ch != nil {
			c.ch.users--
		}
	})
}
