package engine

import (
	"context"
	"errors"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// How a transfer's ops find their provider, and how it ends.

// begin resolves the target's ops and gives them to the mover: at once if what
// is known suffices, else when the peer has answered.
func (g *target) begin() {
	g.segment.mu.Lock()
	s := g.segment.cur
	g.segment.mu.Unlock()
	if s != nil {
		s.mu.Lock()
		known := s.dead == nil && s.freshLocked() != nil
		s.mu.Unlock()
		if known && g.resolve(s, false) {
			return
		}
	}
	g.t.e.tasks.Go(g.ask)
}

// ask is begin with questions. A peer that turns out to have restarted is found
// anew, once.
func (g *target) ask() {
	ctx := g.t.ctx
	for again := true; ; again = false {
		s, err := g.segment.follow(ctx)
		if err != nil {
			g.fail(g.t.asked(err))
			return
		}
		_, err = s.current(ctx)
		if err == nil && g.resolve(s, false) {
			return
		}
		if err == nil {
			if _, err = s.refresh(ctx); err == nil {
				g.resolve(s, true)
				return
			}
			// What is known does not fit, and is not used for want of better.
			err = sdk.Errorf(sdk.StaleCapability, "no region that is known fits, and there is no newer descriptor: %w", err)
		}
		if s.alive() || !again {
			g.fail(g.t.asked(err))
			return
		}
	}
}

// resolve finds each op's region. It reports false, and has done nothing, if a
// later descriptor might have one that this one does not, unless this is the
// last word.
func (g *target) resolve(s *source, last bool) bool {
	found := make([]resolved, len(g.ops))
	errs := make([]error, len(g.ops))
	s.mu.Lock()
	for i, o := range g.ops {
		found[i], errs[i] = s.resolveLocked(o)
		if errs[i] != nil && !last && errors.Is(errs[i], sdk.StaleCapability) {
			for k := range i {
				if errs[k] == nil {
					s.leases.Release(found[k].key)
				}
			}
			s.mu.Unlock()
			return false
		}
	}
	s.mu.Unlock()
	now := time.Now()
	var good, bad []*op
	for i, o := range g.ops {
		o.ableAt, o.refreshed = now, last
		if errs[i] != nil {
			o.err = errs[i]
			bad = append(bad, o)
			continue
		}
		o.take(found[i])
		good = append(good, o)
	}
	g.reject(bad)
	if len(good) == 0 {
		return true
	}
	g.s.Store(s)
	s.mover.submit(good)
	g.t.mu.Lock()
	cancelled := g.t.cancelled
	g.t.mu.Unlock()
	if cancelled != nil {
		s.mover.cancel(good, cancelled)
	}
	return true
}

// take gives an op its route.
func (o *op) take(r resolved) {
	o.key, o.offset, o.buffer, o.version, o.latest = r.key, r.offset, r.buffer, r.version, r.version
}

// fail ends all ops, which nothing was resolved of.
func (g *target) fail(err error) {
	for _, o := range g.ops {
		o.err = err
	}
	g.reject(g.ops)
}

// reject ends ops that no mover has.
func (g *target) reject(ops []*op) {
	for _, o := range ops {
		g.t.e.memory.leases.Release(o.local)
		g.t.opEnded(o, &OpError{Index: o.index, Peer: g.segment.name, Code: NotSent, Cause: o.err})
	}
}

// opEnded takes in an op's end. It is called once for each, under no lock but its
// mover's.
func (t *Transfer) opEnded(o *op, err *OpError) {
	g := o.target
	t.mu.Lock()
	t.ends++
	if err != nil {
		t.failed++
		t.results[o.index] = err
		if len(t.errs) < maxAttempts {
			t.errs = append(t.errs, err)
		}
		g.failed.Store(true)
	}
	t.mu.Unlock()
	t.e.stats.opEnded(err)
	if g.left.Add(-1) == 0 {
		g.end()
	}
}

// end ends the target: its peer is told, if that was asked for.
func (g *target) end() {
	g.segment.letGo()
	n := g.t.opts.Notification
	if g.failed.Load() {
		n = g.t.opts.FailureNotification
	}
	if n == nil {
		g.t.targetEnded(nil)
		return
	}
	g.t.e.tasks.Go(func() {
		d, err := g.tell(*n)
		if g.failed.Load() {
			err = nil // the op's error says more
		} else if err == nil {
			select {
			case <-d.Done():
				err = d.Err()
			case <-g.t.e.ctx.Done():
				err = sdk.Errorf(sdk.Closed, "the engine was closed")
			}
		}
		g.t.targetEnded(err)
	})
}

// failureNotice is what the notification of a failure may take at least.
const failureNotice = 5 * time.Second

// tell sends a notification to the life of the peer that the ops went to, or,
// of a failure before that was known, to whoever has the name.
func (g *target) tell(n Notification) (*Delivery, error) {
	e := g.t.e
	now := time.Now()
	deadline := g.t.deadline
	if g.failed.Load() && deadline.Before(now.Add(failureNotice)) {
		deadline = now.Add(failureNotice)
	}
	ctx, cancel := context.WithDeadline(e.ctx, deadline)
	defer cancel()
	s := g.s.Load()
	if s == nil {
		return e.Notify(ctx, g.segment.name, n)
	}
	d := &Delivery{peer: g.segment.name, tally: &e.stats.tally, born: now.Sub(e.started), bound: true}
	d.entry.Frame, d.entry.Deadline, d.entry.Owner = encode(n), deadline, d
	if size := len(n.Name) + len(n.Payload); size > e.cfg.Notification.MaxPayloadBytes {
		return nil, sdk.Errorf(sdk.TooLarge, "notification to %s: name and payload are %d bytes, over notification.max_payload_bytes = %d", d.peer, size, e.cfg.Notification.MaxPayloadBytes)
	}
	return d, e.admit(ctx, d, func() (bool, error) { return s.a.tryBound(d) })
}

// targetEnded takes in a target's end, and with the last one the transfer's.
func (t *Transfer) targetEnded(notify error) {
	t.mu.Lock()
	if notify != nil {
		t.notify = append(t.notify, notify)
	}
	t.left--
	last := t.left == 0
	if last && t.failed+len(t.notify) > 0 {
		t.err = &TransferError{Failed: t.failed, Ops: len(t.ops), Errors: t.errs, Notifications: t.notify}
	}
	t.mu.Unlock()
	if last {
		t.stop()
		close(t.done)
		t.e.transfers.Done()
	}
}
