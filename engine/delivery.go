package engine

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/outbox"
)

// End is how a notification ended.
type End uint8

const (
	// Pending: it has not.
	Pending End = iota
	// Acknowledged: it is in the receiving process's queue. That says nothing
	// of its being processed there.
	Acknowledged
	// HandedOver: the peer's transport has taken it. Peers of protocol 0 and
	// 1 tell no more.
	HandedOver
	// Failed: see Delivery.Err.
	Failed
)

// String returns the end's name.
func (e End) String() string {
	switch e {
	case Acknowledged:
		return "acknowledged"
	case HandedOver:
		return "handed over"
	case Failed:
		return "failed"
	default:
		return "pending"
	}
}

// Delivery is a notification on its way. It ends exactly once, by its deadline
// at the latest. Its methods are safe for concurrent use.
type Delivery struct {
	entry outbox.Entry
	peer  string
	tally *tally
	born  time.Duration // after the engine's start
	bound bool          // to one life of the peer: it goes to no other
	end   atomic.Uint32
	waits atomic.Pointer[chan struct{}]

	// Written under the association's lock while pending, and constant after.
	via      *path
	tried    int
	attempts []Attempt
	err      error
}

// closedChan is what Done returns for an ended delivery that nobody waited for.
var closedChan = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Done is closed when the notification has ended.
func (d *Delivery) Done() <-chan struct{} {
	if d.Ended() != Pending {
		return closedChan
	}
	c := make(chan struct{})
	if !d.waits.CompareAndSwap(nil, &c) {
		return *d.waits.Load()
	}
	// finish sets the end before it looks for a channel: if it has ended
	// meanwhile, either it saw ours or we see the end.
	if d.Ended() != Pending && d.waits.CompareAndSwap(&c, &closedChan) {
		close(c)
	}
	return c
}

// Wait returns nil once the notification was acknowledged or handed over, a
// [*DeliveryError] once it failed, and ctx's error if that ends first; the
// notification goes on then.
func (d *Delivery) Wait(ctx context.Context) error {
	if d.Ended() == Pending {
		ctx = orBackground(ctx)
		select {
		case <-d.Done():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return d.err
}

// Ended says how the notification ended, or that it has not.
func (d *Delivery) Ended() End { return End(d.end.Load()) }

// Err is nil unless the notification failed: then it is a [*DeliveryError].
func (d *Delivery) Err() error {
	if d.Ended() == Failed {
		return d.err
	}
	return nil
}

// Report is what a delivery has to tell once it has ended.
type Report struct {
	End End
	// Transport and Path are those of the last copy sent, empty if none was.
	Transport, Path string
	// Copies is how many copies were given to transports, and Seq the
	// sequence number they had, 0 if there was none.
	Copies int
	Seq    uint64
	// Attempts are the ways that were tried in vain, see DeliveryError.
	Attempts []Attempt
}

// Report tells how it went. It is empty while the notification is pending.
func (d *Delivery) Report() Report {
	if d.Ended() == Pending {
		return Report{}
	}
	r := Report{End: d.Ended(), Copies: d.entry.Copies(), Seq: d.entry.Seq(), Attempts: d.attempts}
	if d.via != nil {
		r.Transport, r.Path = d.via.transport, d.via.name
	}
	return r
}

// failed notes an attempt; the first ones and the last are kept. The
// association's lock is held.
func (d *Delivery) failed(a Attempt) {
	d.tried++
	if n := len(d.attempts); n > 0 && d.attempts[n-1] == a {
		return
	}
	if len(d.attempts) == maxAttempts {
		copy(d.attempts[maxAttempts/2:], d.attempts[maxAttempts/2+1:])
		d.attempts = d.attempts[:maxAttempts-1]
	}
	d.attempts = append(d.attempts, a)
}

// finish ends the delivery. The caller has taken it out of its box, so nobody
// else ends it; no lock need be held.
func (d *Delivery) finish(end End, err error) {
	d.err = err
	d.entry.Frame = nil
	d.end.Store(uint32(end))
	if c := d.waits.Swap(&closedChan); c != nil && c != &closedChan {
		close(*c)
	}
}

// fail ends the delivery unsuccessfully for the given cause.
func (d *Delivery) fail(cause error) {
	code := NotSent
	if d.entry.MayHaveLeft() {
		code = DeliveryUnknown
	}
	d.tally.ended(Failed, code, cause)
	d.finish(Failed, &DeliveryError{Peer: d.peer, Code: code, Cause: cause, Attempts: d.attempts, Tried: d.tried})
}
