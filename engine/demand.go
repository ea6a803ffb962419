package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
)

// A transport that nobody has listed and that is for GPUs' memory alone is
// started once there is some: on every GPU that its plugin may see it holds
// hundreds of megabytes, which an engine without such memory must not cost.

// demand starts the transports that were put off, and returns once each of them
// is up or has failed. The error says why those are not up, and so does notUp
// from then on.
func (ts *transports) demand(ctx context.Context) error {
	if ts.later.Load() == nil {
		return nil
	}
	select {
	case ts.changes <- struct{}{}:
		defer func() { <-ts.changes }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	later := ts.later.Load()
	if later == nil {
		return nil // somebody else has
	}
	defer ts.later.CompareAndSwap(later, nil) // ops that wait would ask again at once
	if ts.e.closing.Load() {
		return nil
	}
	finder, err := newFinder(ts.e.cfg.Plugins)
	if err != nil {
		ts.e.log.Warn("no transport started for a GPU's memory", "error", err)
		for _, c := range *later {
			ts.lack(c, err)
		}
		return err
	}
	var errs []error
	var added []*transport
	for _, c := range *later {
		spec, err := finder.spec(c)
		if err != nil {
			ts.e.log.Warn("transport not started: a GPU's memory is used, and it would move that", "transport", c.Name, "error", err)
			ts.lack(c, err)
			errs = append(errs, err)
			continue
		}
		added = append(added, ts.newTransport(c, spec, 0))
	}
	ts.change(func() {
		for _, t := range added {
			t.rank = len(ts.set)
			ts.set = append(ts.set, t)
		}
	})
	for _, t := range added {
		t.sup.Start()
	}
	for _, t := range added {
		errs = append(errs, t.ready(ctx))
	}
	return errors.Join(errs...)
}

// demandSoon reports whether transports that were put off are being started, and
// has them if they are not; after is called once that is over. It does not wait.
func (ts *transports) demandSoon(after func()) bool {
	if ts.later.Load() == nil {
		return false
	}
	if ts.demanding.CompareAndSwap(false, true) {
		ts.e.tasks.Go(func() {
			_ = ts.demand(ts.e.ctx) // the log has it
			ts.demanding.Store(false)
			after()
		})
	}
	return true
}

// lack takes in that a transport that was put off cannot be started.
func (ts *transports) lack(c TransportConfig, err error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.lacking = append(ts.lacking, absent{c.Name, err})
}

// notUp says of each transport that is configured, or was demanded, and is not
// up: in which state it is, and why.
func (ts *transports) notUp() (errs []error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, a := range slices.Concat(ts.absent, ts.lacking) {
		errs = append(errs, fmt.Errorf("transport %s: not available: %w", a.name, a.err))
	}
	for _, t := range ts.set {
		if t.cur != nil {
			continue
		}
		s := t.sup.Status()
		err := fmt.Errorf("transport %s: not up here, %s", t.cfg.Name, s.State)
		if s.LastError != nil {
			err = fmt.Errorf("%w: %w", err, s.LastError)
		}
		errs = append(errs, err)
	}
	return errs
}

// postpone puts off what is not listed and nothing needs yet.
func (ts *transports) postpone(later []TransportConfig) {
	ts.mu.Lock()
	ts.lacking = nil
	ts.mu.Unlock()
	ts.later.Store(nil)
	if len(later) > 0 {
		ts.later.Store(&later)
	}
}

// mayMove reports whether a transport that is up, or may come up soon, could
// move what an op does: of one that is starting nobody knows.
func (ts *transports) mayMove(o *op) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return slices.ContainsFunc(ts.set, func(t *transport) bool {
		if t.cur != nil {
			return t.cur.Mover != nil && reaches(t.cur.Description.Move.WithDefaults(), o)
		}
		state := t.sup.Status().State
		return state != pluginhost.Unsupported && state != pluginhost.Quarantined
	})
}

// demandsLocked reports whether an op waits for a transport that is being
// started for it.
func (m *mover) demandsLocked(o *op) bool {
	return o.buffer.Kind == sdk.DeviceMemory && m.s.e.transports.demandSoon(m.stir)
}
