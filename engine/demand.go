package engine

import (
	"context"
	"errors"

	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
)

// A transport that nobody has listed and that is for GPUs' memory alone is
// started once there is some: on every GPU that its plugin may see it holds
// hundreds of megabytes, which an engine without such memory must not cost.

// demand starts the transports that were put off, and returns once each of them
// is up or has failed. The error says why those are not up.
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
		return err
	}
	var errs []error
	var added []*transport
	for _, c := range *later {
		spec, err := finder.spec(c)
		if err != nil {
			ts.e.log.Warn("transport not started: a GPU's memory is used, and it would move that", "transport", c.Name, "error", err)
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

// postpone puts off what is not listed and nothing needs yet.
func (ts *transports) postpone(later []TransportConfig) {
	ts.later.Store(nil)
	if len(later) > 0 {
		ts.later.Store(&later)
	}
}

// ready waits until the transport is up, or says why it is not.
func (t *transport) ready(ctx context.Context) error {
	err := t.sup.Ready(ctx)
	// An interrupted start is no transport's fault, and what is given up has
	// its own line.
	state := t.sup.Status().State
	if err != nil && ctx.Err() == nil && state != pluginhost.Quarantined && state != pluginhost.Unsupported {
		t.set.e.log.Error("transport not started", "transport", t.cfg.Name, "error", err)
	}
	return err
}

// demandsLocked reports whether an op waits for a transport that is being
// started for it.
func (m *mover) demandsLocked(o *op) bool {
	return o.buffer.Kind == sdk.DeviceMemory && m.s.e.transports.demandSoon(m.stir)
}
