package engine

import (
	"time"
	"unsafe"

	"github.com/hawser-transport/hawser/engine/internal/inbox"
	"github.com/hawser-transport/hawser/sdk"
)

// localTransport is what Received.Transport says of a notification that the
// engine sent to itself.
const localTransport = "local"

// receiveOverhead is what a notification counts in the queue beside its bytes.
const receiveOverhead = 128

// arrival is a notification on its way into its queue, copied.
type arrival struct {
	part *inbox.Part[Received]
	r    Received
	size int
}

func (e *Engine) arrival(from *Node, transport string, stamp Stamp, name, msg []byte) arrival {
	buf := make([]byte, len(name)+len(msg))
	copy(buf, name)
	copy(buf[len(name):], msg)
	r := Received{From: from, Transport: transport, Stamp: stamp}
	if len(name) > 0 {
		// The name's bytes are never written again: the payload, which its
		// receiver may write to, ends before its capacity could reach them.
		r.Name = unsafe.String(&buf[0], len(name))
	}
	r.Payload = buf[len(name):len(buf):len(buf)]
	return arrival{e.partFor(name), r, len(buf) + receiveOverhead}
}

// enqueue puts a notification into its queue, unless there is no room.
func (e *Engine) enqueue(x arrival) inbox.Verdict {
	v := x.part.Put(x.r, x.size)
	if v == inbox.Entered {
		e.stats.Received.Add(1)
	}
	return v
}

// openSessionLocked begins a sender's session.
func (a *association) openSessionLocked(id uint64, now time.Time) {
	a.in = a.e.queue.NewSession(id, now)
	a.in.Owner = a
	a.e.stats.Sessions.Add(1)
}

// endSession ends a sender's session, for a reason of sessionEndNames; nil is
// none.
func (e *Engine) endSession(s *inbox.Session, reason int) {
	if s == nil {
		return
	}
	s.Rest(time.Now(), true)
	e.queue.Forget(s)
	e.stats.Sessions.Add(-1)
	e.stats.sessionsEnded[reason].Add(1)
}

// roomReturned sends an ack that nobody asked for to a sender that was told of
// little room.
func (e *Engine) roomReturned(s *inbox.Session) {
	a := s.Owner.(*association)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.in != s {
		return
	}
	if ep := a.viaLocked(nil); ep != nil {
		a.e.stats.RoomAcks.Add(1)
		ep.oweLocked()
		a.pumpLocked()
	}
}

// refusalPause bounds how often a peer is told that its session is not held.
const refusalPause = 100 * time.Millisecond

func (a *association) mayRefuseLocked(now time.Time) bool {
	if now.Sub(a.refused) < refusalPause {
		return false
	}
	a.refused = now
	return true
}

// sweep ends the sender's session if it has been silent for too long, and the
// association if it has had no use for as long: the peer went without a word,
// or never was.
func (a *association) sweep(now time.Time) {
	a.mu.Lock()
	in := a.in
	if a.selfLane != nil {
		a.mu.Unlock()
		return
	}
	if in == nil {
		useless := a.uselessLocked(now)
		a.mu.Unlock()
		if useless {
			a.die(sdk.Errorf(sdk.Unavailable, "the peer at %s has been silent for %v: %w", a.address, a.e.silence(), errForgotten))
		}
		return
	}
	in.Rest(now, false)
	// What it said while this process did not run may not be read yet.
	if now.Sub(in.Seen()) < a.e.silence() || now.Sub(a.e.freeze.Thawed(now)) < a.e.silence() {
		a.mu.Unlock()
		return
	}
	a.in = nil
	a.mu.Unlock()
	a.e.endSession(in, endSilent)
}

// uselessLocked reports whether nothing is pending, connected or remembered.
func (a *association) uselessLocked(now time.Time) bool {
	if a.box.Len() > 0 || now.Sub(a.used) < a.e.silence() {
		return false
	}
	for _, p := range a.paths {
		if p.ep != nil || len(p.retiring) > 0 {
			return false
		}
	}
	return true
}
