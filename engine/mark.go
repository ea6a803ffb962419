package engine

import (
	"context"
	"errors"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/health"
	"github.com/hawser-transport/hawser/sdk"
)

// errMarked is in the error of every call that a mark kept from being made.
var errMarked = errors.New("it did not answer")

// markedError is the error of a call to a marked address, or of what needs one.
func markedError(address string, until time.Time) error {
	return sdk.Errorf(sdk.Unavailable, "the peer at %s is silent: %w; calls fail at once until %s, unless it answers a probe before",
		address, errMarked, until.Format(time.RFC3339))
}

// silent reports whether a call failed since the peer did not answer, now or
// before.
func silent(err error) bool { return control.Silent(err) || errors.Is(err, errMarked) }

// allow returns an error if the address is in a cooldown.
func (w *watch) allow(address string, now time.Time) error {
	if !w.marked.Load() {
		return nil
	}
	w.mu.Lock()
	ok, until := w.mu.peers.Allow(address, now)
	w.mu.Unlock()
	if ok {
		return nil
	}
	return markedError(address, until)
}

// cooldown is which cooldown in a row the address's mark is in and when it
// ends; 0 if the address is not marked. Between two, until has passed.
func (w *watch) cooldown(address string, now time.Time) (n int, until time.Time) {
	if !w.marked.Load() {
		return 0, time.Time{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.peers.Cooldown(address, now)
}

// silent is how many addresses are marked.
func (w *watch) silent() int {
	if !w.marked.Load() {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.peers.Silent(time.Now())
}

// called takes in what a call of the control plane came to.
func (w *watch) called(address string, began time.Time, o health.Outcome) {
	if o == health.NoVerdict || o != health.Silent && !w.marked.Load() {
		return
	}
	w.change(func(now time.Time) []any {
		events := list(w.mu.peers.Called(address, began, now, o))
		if o == health.Gone {
			return nil // what ends the association says more
		}
		return events
	})
}

// outcome is what an error says of the peer. A call that was not given its time
// says nothing by running out of it, nor does one that lasted while this
// process did not run.
func (w *watch) outcome(began time.Time, limit time.Duration, expired bool, err error) health.Outcome {
	switch {
	case err == nil || control.Answered(err):
		return health.Answered
	case control.Gone(err):
		return health.Gone
	case !control.Silent(err):
		return health.NoVerdict
	case w.e.freeze.Since(began):
		w.e.stats.voided[voidCall].Add(1)
		return health.NoVerdict
	case expired && time.Since(began) < min(limit, w.e.cfg.RPC.ProbeTimeout()):
		return health.NoVerdict
	}
	return health.Silent
}

// ask has the prober ask an address that is not marked.
func (w *watch) ask(address string) {
	w.change(func(now time.Time) []any { return list(w.mu.peers.Ask(address, now)) })
}

// answers reports whether an address has answered since.
func (w *watch) answers(address string, since time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.peers.Answers(address, since)
}

// probe asks one address who is there.
func (w *watch) probe(address string) {
	limit := w.e.cfg.RPC.ProbeTimeout()
	ctx, cancel := context.WithTimeout(w.e.ctx, limit)
	defer cancel()
	client, done := w.e.clientOf(address)
	defer done()
	client.ResetBackoff()
	began := time.Now()
	w.e.stats.Probes.Add(1)
	_, err := client.Probe(ctx, control.ProbeRequest{From: w.e.incarnation})
	w.e.freeze.Awake()
	o := w.outcome(began, limit, ctx.Err() != nil, err)
	w.e.stats.probes[o].Add(1)
	w.change(func(now time.Time) []any {
		events := list(w.mu.peers.Probed(address, now, o))
		if o == health.Gone {
			return nil
		}
		return events
	})
	if o == health.Gone {
		w.e.gone(address, err)
	}
}

// caller is a client of which every call heeds marks, and makes them.
type caller struct {
	control.Client
	w       *watch
	address string
}

// call makes one call, unless the address is marked.
func call[Q, R any](ctx context.Context, c *caller, limit time.Duration, q Q, f func(context.Context, Q) (R, error)) (R, error) {
	began := time.Now()
	if err := c.w.allow(c.address, began); err != nil {
		c.w.e.stats.FailedFast.Add(1)
		var none R
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r, err := f(ctx, q)
	c.w.e.freeze.Awake()
	c.w.called(c.address, began, c.w.outcome(began, limit, ctx.Err() != nil, err))
	return r, err
}

// wordless makes a call without an answer one with an empty one.
func wordless[Q any](f func(context.Context, Q) error) func(context.Context, Q) (struct{}, error) {
	return func(ctx context.Context, q Q) (struct{}, error) { return struct{}{}, f(ctx, q) }
}

// Hello, like the others, is the client's.
func (c *caller) Hello(ctx context.Context, q control.HelloRequest) (control.HelloReply, error) {
	return call(ctx, c, c.w.e.cfg.RPC.RequestTimeout(), q, c.Client.Hello)
}

func (c *caller) Bootstrap(ctx context.Context, q control.BootstrapRequest) (control.BootstrapReply, error) {
	return call(ctx, c, c.w.e.cfg.RPC.BootstrapTimeout(), q, c.Client.Bootstrap)
}

func (c *caller) Changed(ctx context.Context, q control.ChangeRequest) error {
	_, err := call(ctx, c, c.w.e.cfg.RPC.RequestTimeout(), q, wordless(c.Client.Changed))
	return err
}

func (c *caller) Fence(ctx context.Context, q control.FenceRequest) error {
	_, err := call(ctx, c, c.w.e.cfg.RPC.RequestTimeout(), q, wordless(c.Client.Fence))
	return err
}

func (c *caller) Describe(ctx context.Context, q control.DescribeRequest) (control.DescribeReply, error) {
	return call(ctx, c, c.w.e.cfg.RPC.RequestTimeout(), q, c.Client.Describe)
}

func (c *caller) Invalidate(ctx context.Context, q control.InvalidateRequest) (control.InvalidateReply, error) {
	return call(ctx, c, c.w.e.cfg.RPC.RequestTimeout(), q, c.Client.Invalidate)
}

func (c *caller) Goodbye(ctx context.Context, q control.GoodbyeRequest) error {
	_, err := call(ctx, c, c.w.e.cfg.RPC.RequestTimeout(), q, wordless(c.Client.Goodbye))
	return err
}
