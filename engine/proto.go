package engine

import (
	"time"

	"github.com/hawser-transport/hawser/engine/internal/frame"
	"github.com/hawser-transport/hawser/engine/internal/outbox"
	"github.com/hawser-transport/hawser/sdk"
)

// stamps reports whether notifications carry session and number: protocols 1
// and 2. Without, a copy cannot be recognised, and none is ever made.
func (a *association) stamps() bool { return a.proto.Load() >= 1 }

// acks reports whether the receiver acknowledges: protocol 2. Without, a
// notification ends when the peer's transport has taken it.
func (a *association) acks() bool { return a.proto.Load() >= 2 }

// agreeLocked settles the protocol, which is constant from then on, and reports
// false if it was settled otherwise.
func (a *association) agreeLocked(proto int) bool {
	if !a.agreed {
		a.agreed = true
		a.proto.Store(int32(proto))
	}
	return int(a.proto.Load()) == proto
}

// overhead is what a frame has beside name and payload.
func (a *association) overhead() int {
	if a.stamps() {
		return frame.Overhead
	}
	return frame.RawOverhead
}

// size is the size of an entry's frame as it is sent.
func (a *association) size(x *outbox.Entry) int { return len(x.Frame) - frame.Overhead + a.overhead() }

// stampLocked writes an entry's header and returns the frame as it is sent.
func (a *association) stampLocked(x *outbox.Entry) []byte {
	h := frame.Header{Type: frame.NotifyCompat, Session: a.box.Session(), Seq: x.Seq()}
	switch {
	case a.acks():
		h.Flags, h.Epoch, h.Ack = frame.NeedsAck, a.node.Load().Incarnation.Epoch(), a.box.Floor()
	case !a.stamps():
		return x.Frame[frame.HeaderSize:]
	}
	h.Put(x.Frame, len(x.Frame)-frame.HeaderSize)
	return x.Frame
}

// takenOverLocked ends a notification that the peer's transport has, if that is
// all that the protocol tells.
func (ep *endpoint) takenOverLocked(s slot) {
	a := ep.a
	if s.entry == nil || a.acks() || !s.entry.Held() {
		return
	}
	if s.entry.Copies() == s.copy {
		a.praiseLocked(ep.p, s.entry.SentAt())
	}
	ep.p.shuns = 0
	a.box.Remove(s.entry)
	a.e.stats.ended(HandedOver, 0, nil)
	a.settle(s.entry, func(d *Delivery) { d.finish(HandedOver, nil) })
}

// lostLocked deals with a frame of which it is not known whether it left.
func (ep *endpoint) lostLocked(s slot, why string) {
	d := s.entry.Owner.(*Delivery)
	d.failed(Attempt{ep.p.transport, ep.p.name, why})
	if ep.a.stamps() {
		ep.a.box.Unknown(s.entry, s.copy)
		return
	}
	ep.a.giveUpLocked(s.entry, why)
}

// giveUpLocked ends an entry that may have left and must not be sent again.
func (a *association) giveUpLocked(x *outbox.Entry, why string) {
	a.box.Remove(x)
	a.settle(x, func(d *Delivery) {
		d.fail(sdk.Errorf(sdk.Unavailable, "the transport did not say whether the peer has it (%s), and at protocol 0 nothing is sent twice", why))
	})
}

// handoverLocked takes everything pending from an endpoint that has ended, and
// returns how many entries go over another one.
func (ep *endpoint) handoverLocked(reason string) int {
	if !ep.a.stamps() {
		for x := range ep.lane.Entries() {
			ep.a.giveUpLocked(x, reason)
		}
	}
	return ep.a.box.Handover(ep.lane)
}

// resendAllLocked sends everything pending again, where copies are recognised.
func (a *association) resendAllLocked() {
	if a.stamps() {
		a.box.ResendAll()
	}
}

// receiptsLocked returns the endpoints of which a receipt can be overdue: the
// RPC fallback's, at protocols 0 and 1, where no ack could tell.
func (a *association) receiptsLocked() (eps []*endpoint) {
	if a.acks() || a.selfLane != nil {
		return nil
	}
	for _, p := range a.order {
		if p.fallback && p.up() {
			eps = append(eps, p.ep)
		}
	}
	return eps
}

// receiptDueLocked is when the first receipt is overdue, zero if none is awaited.
func (a *association) receiptDueLocked() (due time.Time) {
	for _, ep := range a.receiptsLocked() {
		for x := range ep.lane.Entries() {
			return x.SentAt().Add(a.e.cfg.RPC.NotifyTimeout())
		}
	}
	return time.Time{}
}

// missReceiptsLocked ends the wait for overdue receipts.
func (a *association) missReceiptsLocked(now time.Time) {
	for _, ep := range a.receiptsLocked() {
		for x := range ep.lane.Entries() {
			if x.SentAt().Add(a.e.cfg.RPC.NotifyTimeout()).After(now) {
				break // they are in order of sending
			}
			a.e.stats.ReceiptsMissed.Add(1)
			ep.lostLocked(slot{entry: x, copy: x.Copies()}, "no receipt within rpc.notify_timeout_ms")
		}
	}
}

// epochHere is what stands in the peer's frames: 0 at protocol 1.
func (a *association) epochHere() uint64 {
	if !a.acks() {
		return 0
	}
	return a.e.incarnation.Epoch()
}

// epochThereLocked is what stands in the peer's answers.
func (a *association) epochThereLocked() uint64 {
	if !a.acks() {
		return 0
	}
	return a.node.Load().Incarnation.Epoch()
}
