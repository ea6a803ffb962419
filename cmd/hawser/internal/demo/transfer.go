package demo

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
	"github.com/hawser-transport/hawser/engine"
)

// Every second notification stands for a transfer: it is submitted with a small
// write into the receiver's memory, and must not be there before the bytes are.

// cellBytes is how much one transfer writes. Each has a cell of its own, which
// nothing else ever writes to.
const cellBytes = 256

// cellAt is where the i-th notification's cell begins.
func cellAt(i int) int { return i / 2 * cellBytes }

// memorySize is what count notifications need.
func memorySize(count int) int { return cellAt(count + 1) }

// bound reports whether the i-th notification goes with a transfer.
func bound(i, count int) bool { return i >= 0 && i < count && kind(i) == "transfer" }

// cell is what the transfer of a notification of this name writes.
func cell(name string) []byte { return payload("cell of "+name, cellBytes) }

// inbox is the receiver's memory.
type inbox struct {
	region *engine.Region
	count  int
}

// openInbox allocates memory for count notifications; without any there is none.
func openInbox(e *engine.Engine, count int) (*inbox, error) {
	if count == 0 {
		return nil, nil
	}
	r, err := e.AllocateHost(memorySize(count), engine.RegionOptions{})
	return &inbox{r, count}, err
}

// wrote reports whether the bytes of a notification's transfer are there, if it
// has one.
func (b *inbox) wrote(name string) bool {
	i := index(name)
	return b == nil || !bound(i, b.count) || bytes.Equal(b.region.Bytes()[cellAt(i):][:cellBytes], cell(name))
}

// outbox submits a sender's transfers.
type outbox struct {
	e       *engine.Engine
	local   *engine.Region
	segment *engine.Segment
	within  time.Duration // each
}

func openOutbox(ctx context.Context, e *engine.Engine, peer string, count int, within time.Duration) (*outbox, error) {
	local, err := e.AllocateHost(memorySize(count), engine.RegionOptions{Private: true})
	if err != nil {
		return nil, err
	}
	segment, err := e.OpenSegment(ctx, peer)
	return &outbox{e: e, local: local, segment: segment, within: within}, err
}

// send writes the cell of the i-th notification into the receiver's memory, with
// the notification behind it, and returns once that has ended. A write of which
// nothing was moved, nor will be, is submitted again, to whichever life of the
// receiver is there then.
func (o *outbox) send(ctx context.Context, i int, n engine.Notification) error {
	ctx, cancel := context.WithTimeout(ctx, o.within)
	defer cancel()
	copy(o.local.Bytes()[cellAt(i):], cell(n.Name))
	for wait := memoryRetry; ; wait = min(2*wait, 16*memoryRetry) {
		memory, err := o.memory(ctx)
		if err == nil {
			err = o.submit(ctx, memory, i, n)
		}
		var t *engine.TransferError
		if !errors.As(err, &t) || t.Failed == 0 || t.Errors[0].Code != engine.NotSent {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return err
		}
	}
}

func (o *outbox) submit(ctx context.Context, memory engine.Buffer, i int, n engine.Notification) error {
	at := uint64(cellAt(i))
	t, err := o.e.Submit(ctx, []engine.Op{{
		Kind: engine.Write, Local: o.local, LocalOffset: at,
		Segment: o.segment, Address: memory.Address + at, Capability: memory.Capability, Length: cellBytes,
	}}, engine.SubmitOptions{Notification: &n})
	if err != nil {
		return err
	}
	return t.Wait(context.WithoutCancel(ctx)) // it always ends
}

const (
	// sendTimeout is how long a transfer may take, and the wait for a receiver
	// before it.
	sendTimeout = 30 * time.Second
	memoryRetry = 20 * time.Millisecond
)

// memory is the receiver's, of whichever life is there now: a receiver that is
// being restarted is waited for.
func (o *outbox) memory(ctx context.Context) (engine.Buffer, error) {
	for {
		buffers, _, err := o.segment.Buffers(ctx)
		if err == nil && len(buffers) == 1 && buffers[0].Length == o.local.Len() {
			return buffers[0], nil
		}
		select {
		case <-time.After(memoryRetry):
		case <-ctx.Done():
			return engine.Buffer{}, errors.Join(context.Cause(ctx), err)
		}
	}
}

// transferEnded notes how a transfer and its notification ended. One that was not
// sent since its transfer failed has never left.
func (s *sender) transferEnded(i int, err error) {
	x := ending{Index: i, At: lab.Now(), Acked: err == nil}
	if err != nil {
		x.Error, x.Code = err.Error(), engine.NotSent.Error()
		var t *engine.TransferError
		if errors.As(err, &t) && t.Failed == 0 && errors.Is(err, engine.DeliveryUnknown) {
			x.Code = engine.DeliveryUnknown.Error()
		}
	}
	s.journal.add(func(e *entries) { e.Ended = append(e.Ended, x) })
}
