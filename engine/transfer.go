package engine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/spread"
	"github.com/hawser-transport/hawser/sdk"
)

// OpKind is what an op of a transfer does.
type OpKind = sdk.OpKind

const (
	// Read copies from a peer's region to one of this engine's.
	Read = sdk.Read
	// Write copies from one of this engine's regions to a peer's.
	Write = sdk.Write
)

// Op is one read or write of a transfer.
type Op struct {
	Kind OpKind
	// Local is this side's region; the range begins LocalOffset bytes after
	// its first.
	Local       *Region
	LocalOffset uint64
	// Segment and Address name the peer's side.
	Segment *Segment
	Address uint64
	// Capability, if it is not zero, is the publication of the region that is
	// meant: another one at the same address is StaleCapability. Without it
	// the one that is published there now is used.
	Capability Capability
	// Length is in bytes, at least 1.
	Length uint64
	// Event is an interprocess event (cuIpcGetEventHandle), of the GPU, that
	// has to happen before the op begins, or nil.
	Event *[sdk.EventBytes]byte
}

// SubmitOptions say what else belongs to a transfer.
type SubmitOptions struct {
	// Notification is sent to every peer that the ops name, once for each name,
	// after all of its ops have succeeded and what they wrote is visible there.
	// A peer's restart in between is an error: another life does not get it.
	Notification *Notification
	// FailureNotification is sent in place of it to a peer of which an op has
	// failed. Nobody waits for its end.
	FailureNotification *Notification
}

// Transfer is a batch of ops on its way. It always ends: by its deadline, and
// then, if something is under way, in the 11 s more that it may take to make
// sure that nothing touches memory any more. Its methods are safe for
// concurrent use.
type Transfer struct {
	e        *Engine
	ops      []*op
	targets  []*target
	deadline time.Time
	opts     SubmitOptions
	total    uint64
	moved    atomic.Uint64
	done     chan struct{}
	// ctx is what finding the peers may take; it ends with Cancel, too.
	ctx  context.Context
	stop context.CancelFunc

	mu        sync.Mutex
	left      int // targets that have not ended
	results   []error
	ends      int // ops that have ended
	failed    int
	errs      []*OpError // the first of them
	notify    []error    // of notifications
	cancelled error
	err       error // constant once done is closed
}

// target is what a transfer does to one peer. The lock of its mover guards it,
// once it has one.
type target struct {
	t        *Transfer
	segment  *Segment
	s        atomic.Pointer[source] // nil until it is known
	ops      []*op
	flushing int // flushes that are not done
	moving   int // ops of which something has still to be moved
	landed   int // chunks that are not visible yet

	left   atomic.Int64 // ops that have not ended
	failed atomic.Bool
}

// Progress is how far a transfer is.
type Progress struct {
	// Bytes of Total have arrived. They may become fewer when a transport
	// fails.
	Bytes, Total uint64
	// Done and Failed ops of Ops.
	Done, Failed, Ops int
}

// Submit begins a transfer. Its deadline is ctx's, else
// notification.deadline_ms from now, at most 600 s; ctx's cancellation later
// on does not end it, [Transfer.Cancel] does. An error means that an argument
// is wrong, or ctx has ended, and nothing was begun; whatever else goes wrong is
// told per op.
//
// Ops are carried out in any order, and independently. The local memory belongs
// to the transfer until it has ended, and, where an op ended as
// [OutcomeUnknown], until [Region.Close] has returned nil.
func (e *Engine) Submit(ctx context.Context, ops []Op, opts SubmitOptions) (*Transfer, error) {
	ctx, err := e.ready(ctx, "submit")
	if err != nil {
		return nil, err
	}
	if len(ops) == 0 || len(ops) > maxOps {
		return nil, sdk.Errorf(sdk.InvalidArgument, "submit: %d ops, a transfer has 1 to %d", len(ops), maxOps)
	}
	for i := range ops {
		if err := ops[i].check(e); err != nil {
			return nil, fmt.Errorf("submit: op %d: %w", i, err)
		}
	}
	for _, n := range []*Notification{opts.Notification, opts.FailureNotification} {
		if n == nil {
			continue
		}
		if err := e.fits(ops[0].Segment.name, n); err != nil {
			return nil, fmt.Errorf("submit: %w", err)
		}
	}
	if ctx.Err() != nil {
		return nil, contextEnded(ctx, "transfer")
	}
	t := &Transfer{
		e: e, deadline: e.deadline(ctx, time.Now()), opts: opts, done: make(chan struct{}), results: make([]error, len(ops)),
	}
	t.ctx, t.stop = context.WithDeadline(e.ctx, t.deadline)
	e.transfers.Add()
	if e.closing.Load() {
		return nil, t.refuse("submit: the engine is closed")
	}
	by := map[string]*target{} // a peer's handles are one peer
	for i, x := range ops {
		if !e.memory.lend(x.Local) {
			return nil, t.refuse("submit: op %d: the local region is closed", i)
		}
		o := &op{
			t: t, index: i, kind: x.Kind, local: x.Local, localOffset: x.LocalOffset, address: x.Address,
			pin: x.Capability, length: x.Length, event: x.Event, spans: []spread.Span{{Length: x.Length}},
		}
		t.ops = append(t.ops, o)
		g := by[x.Segment.name]
		if g == nil {
			if !x.Segment.hold() {
				return nil, t.refuse("submit: op %d: segment %s is closed", i, x.Segment.name)
			}
			g = &target{t: t, segment: x.Segment}
			by[x.Segment.name] = g
			t.targets = append(t.targets, g)
		}
		o.target, g.ops = g, append(g.ops, o)
		t.total += x.Length
	}
	t.left = len(t.targets)
	e.stats.Transfers.Add(1)
	for _, g := range t.targets {
		g.left.Store(int64(len(g.ops)))
		g.begin()
	}
	return t, nil
}

// refuse ends a transfer that has not begun.
func (t *Transfer) refuse(format string, args ...any) error {
	for _, o := range t.ops {
		t.e.memory.leases.Release(o.local)
	}
	for _, g := range t.targets {
		g.segment.letGo()
	}
	t.stop()
	t.e.transfers.Done()
	return sdk.Errorf(sdk.Closed, format, args...)
}

// maxOps bounds a transfer.
const maxOps = 1 << 16

func (x *Op) check(e *Engine) error {
	bad := func(format string, args ...any) error { return sdk.Errorf(sdk.InvalidArgument, format, args...) }
	switch {
	case x.Kind != Read && x.Kind != Write:
		return bad("of kind %v, there are read and write", x.Kind)
	case x.Local == nil || x.Local.m != &e.memory:
		return bad("its local region is not one of this engine's")
	case x.Segment == nil || x.Segment.e != e:
		return bad("its segment was not opened by this engine")
	case x.Segment.isClosed():
		return x.Segment.errClosed()
	case x.Length == 0:
		return bad("it has no length")
	case x.LocalOffset > x.Local.Len() || x.Length > x.Local.Len()-x.LocalOffset:
		return bad("%d bytes at offset %d are not within the local region's %d", x.Length, x.LocalOffset, x.Local.Len())
	case x.Address+x.Length < x.Address:
		return bad("%d bytes at %#x wrap", x.Length, x.Address)
	case x.Kind == Read && x.Local.opts.ReadOnly:
		return sdk.Errorf(sdk.Refused, "its local region was registered read-only, a read writes to it")
	}
	return nil
}

// Done is closed when the transfer has ended.
func (t *Transfer) Done() <-chan struct{} { return t.done }

// Wait returns nil once every op has succeeded and every notification was
// acknowledged, a [*TransferError] once the transfer has ended otherwise, and
// ctx's error if that ends first; the transfer goes on then.
func (t *Transfer) Wait(ctx context.Context) error {
	select {
	case <-t.done:
		return t.err
	default:
	}
	ctx = orBackground(ctx)
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Results are the ops' ends, in the order of Submit: nil, or an [*OpError]. Ops
// that have not ended are nil, too; see Done.
func (t *Transfer) Results() []error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]error(nil), t.results...)
}

// Progress tells how far the transfer is.
func (t *Transfer) Progress() Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Progress{Bytes: t.moved.Load(), Total: t.total, Ops: len(t.ops), Done: t.ends - t.failed, Failed: t.failed}
}

// asked is why a peer was not found: for the transfer was cancelled, or err.
func (t *Transfer) asked(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cancelled != nil {
		return t.cancelled
	}
	return err
}

// Cancel has the ops that have not ended fail, with context.Canceled. It does
// not wait: what is under way has to end first.
func (t *Transfer) Cancel() {
	cause := sdk.Errorf(sdk.Closed, "the transfer was cancelled: %w", context.Canceled)
	t.mu.Lock()
	t.cancelled = cause
	t.mu.Unlock()
	t.stop()
	for _, g := range t.targets {
		if s := g.s.Load(); s != nil {
			s.mover.cancel(g.ops, cause)
		}
	}
}

// OpError is how an op failed. errors.Is matches both Code and Cause's.
type OpError struct {
	// Index is the op's place in Submit, Peer the name of its segment.
	Index int
	Peer  string
	// Code is OutcomeUnknown if a byte of the op may still be moved, or its
	// effect is not known; NotSent if none ever was, nor will be; otherwise
	// some may have been moved, and none will be.
	Code Code
	// Cause is what ended it.
	Cause error
	// Attempts lists the ways on which pieces failed, the first and the last
	// ones; Tried is how often that was.
	Attempts []Attempt
	Tried    int
}

// Error says what happened to which op, and what its effect may be.
func (e *OpError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "op %d, %s: %v (%v", e.Index, e.Peer, e.Cause, e.Code)
	switch e.Code {
	case NotSent:
		b.WriteString(": no byte was moved")
	case OutcomeUnknown:
		b.WriteString(": what it did is not known, and may not be over; its memory stays in use")
	default:
		b.WriteString(": some of it may have been moved, nothing more will be")
	}
	b.WriteString(")")
	writeAttempts(&b, "failed on", e.Attempts, e.Tried)
	return b.String()
}

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Cause }

// Is reports whether target is the error's code.
func (e *OpError) Is(target error) bool {
	c, ok := target.(Code)
	return ok && c == e.Code
}

// TransferError is how a transfer failed. It matches what any of its parts
// does.
type TransferError struct {
	// Failed is how many of Ops ops failed, Errors the first of them.
	Failed, Ops int
	Errors      []*OpError
	// Notifications are those that were not acknowledged.
	Notifications []error
}

// Error lists the parts.
func (e *TransferError) Error() string {
	var parts []string
	for _, x := range e.Errors {
		parts = append(parts, x.Error())
	}
	if more := e.Failed - len(e.Errors); more > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", more))
	}
	for _, err := range e.Notifications {
		parts = append(parts, err.Error())
	}
	return fmt.Sprintf("transfer: %d of %d ops failed: %s", e.Failed, e.Ops, strings.Join(parts, "; "))
}

// Unwrap returns the parts.
func (e *TransferError) Unwrap() (list []error) {
	for _, x := range e.Errors {
		list = append(list, x)
	}
	return append(list, e.Notifications...)
}
