package engine

import (
	"slices"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/frame"
	"github.com/hawser-transport/hawser/engine/internal/inbox"
	"github.com/hawser-transport/hawser/engine/internal/outbox"
	"github.com/hawser-transport/hawser/sdk"
)

const (
	// A batch is what one call of a transport takes.
	maxBatchFrames = 128
	maxBatchBytes  = 256 << 10
	// A goroutine that came to send one notification sends others' for this
	// many batches at most before a goroutine of its own goes on.
	maxRounds = 8
)

// batch is what is being given to one endpoint: acks and requests first, then
// notifications. It is reused; one goroutine at a time has it.
type batch struct {
	ep     *endpoint
	frames []sdk.Frame
	bytes  int
	// more: nothing in it is urgent to the microsecond.
	more   bool
	ctl    []byte // backs the frames that have no entry
	ranges []frame.Range
}

func (b *batch) reset() {
	clear(b.frames) // an idle peer pins nobody's payload
	b.ep, b.frames, b.bytes, b.more, b.ctl = nil, b.frames[:0], 0, true, b.ctl[:0]
}

// pumpLocked sends what can be sent. The lock is released while a transport
// takes a batch; whatever others add meanwhile is sent by this goroutine, too.
func (a *association) pumpLocked() {
	if a.pumping || a.dead != nil || a.successor != nil {
		return
	}
	a.pumping = true
	now := time.Now() // it takes microseconds from here to the end
	for round := 0; ; round++ {
		if a.dead != nil || a.successor != nil {
			a.pumping = false
			return
		}
		if round == maxRounds {
			a.e.tasks.Go(func() {
				a.mu.Lock()
				defer a.mu.Unlock()
				a.pumping = false
				a.pumpLocked()
			})
			return
		}
		if !a.fillLocked(now) {
			a.pumping = false
			a.armLocked(now)
			return
		}
		b := &a.batch
		a.mu.Unlock()
		n, err := b.ep.se.Send(b.frames, b.more)
		a.mu.Lock()
		a.takenLocked(b, n, err)
	}
}

// fillLocked puts together the next batch, and reports whether there is one.
func (a *association) fillLocked(now time.Time) bool {
	b := &a.batch
	b.reset()
	a.abandonLocked(now)
	a.fillControlLocked(b, now)
	for b.ep == nil || len(b.frames) < maxBatchFrames && b.bytes < maxBatchBytes {
		x := a.box.Head()
		if x == nil {
			a.helloIfNeededLocked()
			break
		}
		if a.restedLocked(now) {
			a.reopenLocked()
			break
		}
		if a.selfLane != nil {
			if !a.loopAnyLocked(x, now) {
				break
			}
			continue
		}
		x, p := a.nextLocked(x, now)
		if p == nil {
			break
		}
		if b.ep != nil && p.ep != b.ep {
			break
		}
		a.putLocked(b, p, x, now)
	}
	a.keepLocked(now)
	return b.ep != nil
}

// maxPassed bounds how many entries are passed over that have to wait for a way
// with a larger limit.
const maxPassed = 64

// nextLocked finds the first entry, from x on, that can be sent now, and the
// path for it. It ends those on the way that are too large for every transport.
// Only an entry that does not fit a connected path is passed over.
func (a *association) nextLocked(x *outbox.Entry, now time.Time) (*outbox.Entry, *path) {
	for passed := 0; x != nil && passed <= maxPassed; passed++ {
		if p := a.chooseLocked(x, now); p != nil {
			return x, p
		}
		next := a.box.After(x)
		if limit, is := a.tooLargeLocked(x); is {
			a.rejectLocked(x, limit)
		} else if !a.outgrownLocked(x) {
			break
		}
		x = next
	}
	return nil, nil
}

// restedLocked reports whether nothing was sent for so long that the receiver
// may have ended the session by now: then another one is opened before the
// next frame, while nothing is posted that would end with the old one.
func (a *association) restedLocked(now time.Time) bool {
	return a.stamps() && !a.lastSent.IsZero() && now.Sub(a.lastSent) >= a.e.longest && a.box.Unresolved() == 0 && a.selfLane == nil
}

// putLocked adds a notification to the batch.
func (a *association) putLocked(b *batch, p *path, x *outbox.Entry, now time.Time) {
	d := x.Owner.(*Delivery)
	if x.Copies() > 0 {
		a.e.stats.Resent.Add(1)
		p.countersLocked(a.e).resent.Add(1)
		if d.via != p {
			a.e.stats.Fallbacks.Add(1)
			if d.via != nil {
				a.e.stats.fellBack(d.via.countersLocked(a.e), p.countersLocked(a.e))
			}
		}
	}
	a.box.Posted(x, p.ep.lane, now)
	a.lastSent = now
	d.via = p
	b.ep = p.ep
	b.more = false
	b.add(sdk.Frame{ID: p.ep.post(x, a.size(x)), Data: a.stampLocked(x)})
	a.e.stats.Sent.Add(1)
	p.countersLocked(a.e).sent.Add(1)
}

func (b *batch) add(f sdk.Frame) {
	b.frames = append(b.frames, f)
	b.bytes += len(f.Data)
}

// fillControlLocked adds acks, refusals and requests for room. They do not
// count against an endpoint's limits: acks never wait behind a full queue.
func (a *association) fillControlLocked(b *batch, now time.Time) {
	for len(a.refusals) > 0 && b.ep == nil {
		r := a.refusals[len(a.refusals)-1]
		a.refusals = a.refusals[:len(a.refusals)-1]
		if ep := a.viaLocked(r.ep); ep != nil {
			h := frame.Header{Type: frame.SessionClose, Session: r.session}
			if r.proto >= 2 {
				h.Epoch = a.e.incarnation.Epoch()
			}
			b.control(ep, h, nil)
			a.e.stats.Refusals.Add(1)
		}
	}
	for i := len(a.owed) - 1; i >= 0 && b.ep == nil; i-- {
		ep := a.owed[i]
		via := a.viaLocked(ep)
		if via != nil && now.Before(via.p.blockedUntil) {
			continue // it had no room a moment ago
		}
		if via == nil && ep.se == nil && !ep.ended {
			continue // frames came before Connect or Accept has returned
		}
		a.owed = slices.Delete(a.owed, i, i+1)
		ep.owes = false
		if via != nil && a.in != nil {
			a.ackLocked(b, via)
		}
	}
	if a.credit && b.ep == nil {
		a.credit = false
		if ep := a.creditPathLocked(); ep != nil && a.node.Load() != nil && a.box.Session() != 0 { // it may have ended since
			b.control(ep, frame.Header{
				Type: frame.CreditRequest, Flags: frame.NeedsAck, Session: a.box.Session(),
				Epoch: a.node.Load().Incarnation.Epoch(), Ack: a.box.Floor(),
			}, nil)
			a.e.stats.CreditRequests.Add(1)
		}
	}
}

// viaLocked is the endpoint to answer over: the one that asked, or, if that
// has ended, the best one that is up.
func (a *association) viaLocked(ep *endpoint) *endpoint {
	if ep != nil && ep.se != nil && !ep.ended {
		return ep
	}
	for _, p := range a.order {
		if p.up() {
			return p.ep
		}
	}
	return nil
}

// creditPathLocked walks the connected paths, another one for each request.
func (a *association) creditPathLocked() *endpoint {
	for range a.order {
		a.creditAt = (a.creditAt + 1) % len(a.order)
		if p := a.order[a.creditAt]; p.up() {
			return p.ep
		}
	}
	return nil
}

func (a *association) ackLocked(b *batch, ep *endpoint) {
	at := len(b.ctl)
	b.ctl = a.appendAckLocked(b.ctl, b)
	b.ep = ep
	b.add(sdk.Frame{ID: ep.postAck(), Data: b.ctl[at:]})
	a.e.stats.AcksSent.Add(1)
}

// appendAckLocked appends the next ack of the peer's session to dst, with b's
// scratch.
func (a *association) appendAckLocked(dst []byte, b *batch) []byte {
	number, ack := a.e.queue.Ack(a.in, b.ranges)
	b.ranges = ack.Ranges
	if ack.RoomSeq <= ack.Cumulative {
		a.e.stats.AcksWithoutRoom.Add(1)
	}
	at := len(dst)
	dst = append(dst, make([]byte, frame.HeaderSize)...)
	dst = ack.AppendPayload(dst)
	frame.Header{
		Type: frame.CtrlAck, Session: a.in.ID(), Epoch: a.e.incarnation.Epoch(),
		Seq: number, Ack: ack.Cumulative,
	}.Put(dst[at:], len(dst)-at-frame.HeaderSize)
	return dst
}

func (b *batch) control(ep *endpoint, h frame.Header, payload []byte) {
	at := len(b.ctl)
	b.ctl = h.Append(b.ctl, payload)
	b.ep = ep
	b.add(sdk.Frame{ID: ep.post(nil, 0), Data: b.ctl[at:]})
}

// takenLocked deals with what the transport did not take: it never left.
func (a *association) takenLocked(b *batch, n int, err error) {
	if n < 0 || n > len(b.frames) {
		n = len(b.frames) // nonsense from an in-process transport: assume the worst
	}
	if n == len(b.frames) {
		return
	}
	now := time.Now()
	p := b.ep.p
	p.note(errorText(err))
	if sdk.CodeOf(err) == sdk.Backpressure && p.fullSince.IsZero() {
		p.fullSince = now
	}
	for _, f := range b.frames[n:] {
		b.ep.notPosted(f.ID, err)
	}
	if ep := b.ep; sdk.CodeOf(err) != sdk.Backpressure && !ep.ended {
		// It takes nothing more: no need to wait for its own word.
		ep.endLocked(err)
		a.e.tasks.Go(ep.se.Close)
	}
}

func errorText(err error) string {
	if err == nil {
		return "took nothing"
	}
	return err.Error()
}

// rejectLocked ends an entry that is too large for every transport.
func (a *association) rejectLocked(x *outbox.Entry, limit int) {
	a.box.Remove(x)
	size := len(x.Frame)
	a.settle(x, func(d *Delivery) {
		d.fail(sdk.Errorf(sdk.TooLarge, "name and payload of %d bytes are over the limit of %d bytes of the transports shared with this peer",
			size-frame.Overhead, limit-a.overhead()))
	})
}

// loopAnyLocked delivers the first notification, from x on, whose queue has
// room, and reports whether there was one.
func (a *association) loopAnyLocked(x *outbox.Entry, now time.Time) bool {
	for passed := 0; x != nil && passed <= maxPassed; passed++ {
		next := a.box.After(x)
		if a.loopLocked(x, now) {
			return true
		}
		x = next
	}
	return false
}

// loopLocked delivers a notification to this engine itself, and reports
// whether its queue had room.
func (a *association) loopLocked(x *outbox.Entry, now time.Time) bool {
	name, msg, err := frame.DecodeRaw(x.Frame[frame.HeaderSize:], true)
	if err != nil || a.in == nil {
		return false
	}
	a.box.Posted(x, a.selfLane, now)
	stamp := frame.Header{Seq: x.Seq(), Ack: a.box.Floor()}
	verdict := a.in.Take(stamp, 2, now, func() inbox.Verdict {
		return a.e.enqueue(a.e.arrival(a.node.Load(), localTransport, Stamp{a.e.incarnation, a.box.Session(), x.Seq()}, name, msg))
	})
	if verdict == inbox.NoRoom || verdict == inbox.PartFull {
		a.box.NotPosted(x, x.Copies())
		return false
	}
	a.box.Remove(x)
	a.e.stats.local.received.Add(1)
	a.countAcksLocked(now, x)
	a.settle(x, func(d *Delivery) { d.finish(Acknowledged, nil) })
	return true
}
