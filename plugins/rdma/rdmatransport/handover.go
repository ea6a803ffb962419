package rdmatransport

import "github.com/hawser-transport/hawser/sdk"

// parcel is what the poller has for the run goroutine. An idle endpoint holds
// none.
type parcel struct {
	outcomes []sdk.Completion
	frames   [][]byte
	buffers  []uint32 // of the frames
	handed   int      // how many frames the handler has
}

func (e *endpoint) parcelLocked() *parcel {
	if e.inbox == nil {
		e.inbox = e.d.parcels.Get().(*parcel)
	}
	return e.inbox
}

// deliver hands over what is in the inbox. Frames that the handler has no room
// for are kept, and their buffers with them, so that the peer's grant runs out:
// it holds up neither other endpoints nor this one's outcomes.
func (e *endpoint) deliver() {
	for {
		e.mu.Lock()
		p, missed := e.inbox, e.missed
		e.inbox, e.missed = nil, 0
		e.mu.Unlock()
		if missed > 0 {
			e.behind += missed
			e.offerer.Dropped(missed)
		}
		if p != nil {
			e.takeUp(p)
		}
		if !e.mayHandOver() || e.kept == nil && e.behind == 0 {
			return
		}
		e.handOver()
	}
}

// takeUp reports a parcel's outcomes, and puts its frames behind those that are
// kept.
func (e *endpoint) takeUp(p *parcel) {
	if len(p.outcomes) > 0 {
		e.handler.Completed(p.outcomes)
		p.outcomes = p.outcomes[:0]
	}
	switch {
	case len(p.frames) == 0:
		e.recycle(p)
	case e.kept == nil:
		e.kept = p
	default:
		e.kept.frames = append(e.kept.frames, p.frames...)
		e.kept.buffers = append(e.kept.buffers, p.buffers...)
		e.recycle(p)
	}
}

// handOver gives the handler the frames that are kept, in order, as far as it
// has room.
func (e *endpoint) handOver() {
	for e.kept != nil && e.mayHandOver() {
		p := e.kept
		frames := p.frames[p.handed:]
		if e.offerer != nil {
			frames = frames[:offerable(frames)]
			e.offer(frames)
		} else {
			e.handler.Received(frames)
		}
		first := p.handed
		p.handed += len(frames)
		e.d.receives.put(p.buffers[first:p.handed])
		e.took(len(frames))
		if p.handed == len(p.frames) {
			e.recycle(p)
			e.kept = nil
		}
	}
	if e.behind > 0 && e.mayHandOver() {
		e.took(e.behind)
		e.behind = 0
	}
}

func (e *endpoint) mayHandOver() bool { return e.rushed || !e.held.Load() }

// offer offers frames, and notes whether the endpoint is held from now on.
func (e *endpoint) offer(frames [][]byte) {
	e.held.Store(true) // resume may come before Offer returns
	if !e.offerer.Offer(frames, e.resume) {
		e.held.Store(false)
	}
}

// offerable is how many of the frames may be offered at a time.
func offerable(frames [][]byte) int {
	bytes := 0
	for i, f := range frames {
		if bytes += len(f) + sdk.HoldOverhead; bytes > sdk.OfferBytes {
			return max(i, 1)
		}
	}
	return len(frames)
}

// resume is called by the handler when it has room again.
func (e *endpoint) resume() {
	e.held.Store(false)
	e.kick()
}

func (e *endpoint) recycle(p *parcel) {
	p.outcomes, p.frames, p.buffers, p.handed = p.outcomes[:0], p.frames[:0], p.buffers[:0], 0
	e.d.parcels.Put(p)
}

// handedOverLocked reports whether the handler has everything, or is not to be waited
// for.
func (e *endpoint) handedOverLocked() bool {
	return e.closed || e.inbox == nil && e.kept == nil
}

// took makes room at the peer for as many frames as the handler has taken.
func (e *endpoint) took(frames int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.consumed += uint64(frames)
	e.d.granted.Add(-int64(frames))
	e.pumpLocked()
}
