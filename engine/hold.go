package engine

import (
	"sync"

	"github.com/hawser-transport/hawser/engine/internal/inbox"
	"github.com/hawser-transport/hawser/sdk"
)

// hold is what came over an endpoint and found its queue full, at protocols 0
// and 1, where nobody sends again what is dropped: it waits here, in order, and
// the endpoint is not read meanwhile. It has been received all the same: its
// number is in the window, and the peer's transport may have its receipt. So
// the endpoint's end, or the peer's, changes nothing for it, and only the
// engine's own end discards it.
type hold struct {
	mu     sync.Mutex
	waits  []arrival
	bytes  int    // as sdk.HoldBytes counts
	resume func() // to be called when nothing waits any more, or nil
}

// maxKept bounds what waits of one peer, whose endpoints may end and be made
// anew while nobody reads: that of sixteen endpoints.
const maxKept = 16 * sdk.HoldBytes

// enqueue puts a notification into its queue, or behind what waits for it.
func (ep *endpoint) enqueue(in *intake, stamp Stamp, name, msg []byte) inbox.Verdict {
	x := ep.a.e.arrival(in.from, ep.p.transport, stamp, name, msg)
	if !ep.MayHold() {
		return ep.a.e.enqueue(x)
	}
	h := &ep.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.waits) == 0 && ep.a.e.enqueue(x) == inbox.Entered {
		return inbox.Entered
	}
	if in.bounded && h.bytes >= sdk.HoldBytes || ep.a.kept.Load() >= maxKept {
		return inbox.NoRoom
	}
	h.waits = append(h.waits, x)
	ep.countLocked(x.held())
	if len(h.waits) == 1 {
		ep.a.e.stats.Stalls.Add(1)
		ep.a.e.tasks.Go(ep.release)
	}
	return inbox.Entered
}

// countLocked adds n bytes to what waits.
func (ep *endpoint) countLocked(n int) {
	ep.hold.bytes += n
	ep.a.kept.Add(int64(n))
}

// held is what a notification counts while it waits.
func (x arrival) held() int { return x.size - receiveOverhead + sdk.HoldOverhead }

// release moves what waits into its queue as there is room, then has the
// endpoint read again.
func (ep *endpoint) release() {
	for {
		part, resume := ep.refill()
		if part == nil {
			if resume != nil {
				resume()
			}
			return
		}
		if !part.AwaitRoom() {
			ep.discard()
		}
	}
}

// refill moves what fits. It returns the part that is full, or nil and what is
// to be called.
func (ep *endpoint) refill() (full *inbox.Part[Received], resume func()) {
	h := &ep.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.waits) > 0 {
		x := h.waits[0]
		if ep.a.e.enqueue(x) != inbox.Entered {
			return x.part, nil
		}
		h.waits[0] = arrival{}
		h.waits = h.waits[1:]
		ep.countLocked(-x.held())
	}
	h.waits = nil
	resume, h.resume = h.resume, nil
	return nil, resume
}

// discard drops what waits: the engine is closed.
func (ep *endpoint) discard() {
	ep.hold.mu.Lock()
	defer ep.hold.mu.Unlock()
	ep.a.e.stats.dropped[dropLost].Add(uint64(len(ep.hold.waits)))
	ep.countLocked(-ep.hold.bytes)
	ep.hold.waits = nil
}

// resumes has f called when nothing waits any more. It reports false, and f is
// not called, if nothing waits now.
func (h *hold) resumes(f func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.waits) == 0 {
		return false
	}
	h.resume = f
	return true
}

// MayHold implements [sdk.Offerer]. At protocol 2 a full queue says so in its
// acks, and frames are never held.
func (ep *endpoint) MayHold() bool { return !ep.a.acks() }

// Offer implements [sdk.Offerer].
func (ep *endpoint) Offer(frames [][]byte, resume func()) bool {
	ep.take(frames, true)
	return ep.MayHold() && ep.hold.resumes(resume)
}

// Received implements [sdk.Handler]. While frames are held it does not return,
// unless the endpoint has ended or its transport is about to.
func (ep *endpoint) Received(frames [][]byte) {
	ep.take(frames, false)
	if !ep.MayHold() {
		return
	}
	free := make(chan struct{})
	if !ep.hold.resumes(func() { close(free) }) {
		return
	}
	select {
	case <-free:
	case <-ep.over:
	case <-ep.inst.Ending:
	}
}

// Dropped implements [sdk.Offerer].
func (ep *endpoint) Dropped(frames int) { ep.a.e.stats.dropped[dropLost].Add(uint64(frames)) }
