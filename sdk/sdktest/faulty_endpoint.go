package sdktest

import (
	"bytes"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// faultyEnd is an endpoint with faults: the wrapped endpoint's handler and the
// engine's endpoint. One goroutine sends, one calls the engine's handler.
// Its state is guarded by the transport's lock.
type faultyEnd struct {
	f      *FaultyTransport
	h      sdk.Handler
	inner  sdk.Endpoint
	use    sdk.Use
	limits sdk.Limits // those of ops, for memory

	sendWake, callWake chan struct{} // buffered, 1
	done               chan struct{} // closed after the handler's end
	gone               chan struct{} // closed when nothing is carried any more

	out, in     shuffle
	inFrames    int // of in
	room        chan struct{}
	sent        map[uint64]*faultyFrame // by the wrapped endpoint's id
	innerID     uint64
	lastID      uint64
	open        int // frames without an outcome
	openBytes   int
	completions []sdk.Completion
	closed      bool // by the engine
	ended       bool // by the wrapped endpoint
	err         error
	over        bool // gone is closed
}

// faultyFrame is one frame that the engine sent.
type faultyFrame struct {
	id       uint64
	size     int
	copies   int // under way
	reported bool
	unknown  bool // one copy's outcome was Unknown
	code     sdk.Code
}

func (e *faultyEnd) signal() {
	for _, wake := range []chan struct{}{e.sendWake, e.callWake} {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// start lets the goroutines run, or ends everything if there is no endpoint.
func (e *faultyEnd) start(inner sdk.Endpoint, err error) error {
	f := e.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && f.deadLocked() {
		err = errCrashed
	}
	if err == nil && f.closed {
		err = sdk.Errorf(sdk.Closed, "the transport was closed")
	}
	if err != nil {
		e.overLocked()
		if inner != nil {
			inner.Close()
		}
		return err
	}
	e.inner = inner
	f.ends[e] = struct{}{}
	go e.sends()
	go e.calls()
	return nil
}

func (e *faultyEnd) overLocked() {
	if !e.over {
		e.over = true
		close(e.gone)
	}
}

// Send implements [sdk.Endpoint].
func (e *faultyEnd) Send(frames []sdk.Frame, _ bool) (int, error) {
	f := e.f
	f.mu.Lock()
	defer f.mu.Unlock()
	defer e.signal()
	for n, fr := range frames {
		size := e.size(fr.Data)
		switch {
		case e.closed || e.ended || f.deadLocked():
			return n, sdk.Errorf(sdk.Closed, "the endpoint has ended")
		case len(fr.Data) > e.limits.MaxFrame:
			return n, sdk.Errorf(sdk.TooLarge, "a frame of %d bytes is over the limit max_frame, %d", len(fr.Data), e.limits.MaxFrame)
		case fr.ID <= e.lastID:
			return n, sdk.Errorf(sdk.InvalidArgument, "frame id %d after %d", fr.ID, e.lastID)
		case e.open >= e.limits.InflightFrames, e.open > 0 && e.openBytes+size > e.limits.InflightBytes:
			return n, sdk.Errorf(sdk.Backpressure, "%d frames, %d bytes are under way", e.open, e.openBytes)
		}
		e.lastID = fr.ID
		e.open++
		e.openBytes += size
		e.postLocked(&faultyFrame{id: fr.ID, size: size}, bytes.Clone(fr.Data))
	}
	return len(frames), nil
}

// size is what a frame counts within the limits.
func (e *faultyEnd) size(frame []byte) int {
	if e.use == sdk.UseMemory {
		o, err := sdk.ParseOp(frame)
		if err != nil {
			return 0 // the wrapped transport says what is wrong with it
		}
		return int(min(o.Length, sdk.MaxOpLimit))
	}
	return len(frame)
}

func (e *faultyEnd) postLocked(fr *faultyFrame, data []byte) {
	f := e.f
	faults := f.faults
	switch {
	case e.out.chance(faults.NotPosted):
		f.counts.NotPosted++
		e.reportLocked(fr, sdk.NotPosted, sdk.Unavailable)
		return
	case e.out.chance(faults.Unknown):
		f.counts.Unknown++
		e.reportLocked(fr, sdk.Unknown, sdk.Unavailable)
		if e.out.chance(0.5) {
			return
		}
	}
	if e.use == sdk.UseMemory {
		faults.Send, faults.Send.Double = faults.Ops, 0
	}
	fr.copies = e.out.push(time.Now(), faults.Send, faults.MaxDelay, fr, data)
	switch {
	case fr.copies > 0:
	case faults.DropIsUnknown:
		e.reportLocked(fr, sdk.Unknown, sdk.Unavailable)
	case e.use == sdk.UseMemory: // it has none before the end
	default:
		e.reportLocked(fr, sdk.Done, 0)
	}
}

func (e *faultyEnd) reportLocked(fr *faultyFrame, o sdk.Outcome, code sdk.Code) {
	if fr.reported {
		return
	}
	fr.reported = true
	e.open--
	e.openBytes -= fr.size
	e.completions = append(e.completions, sdk.Completion{ID: fr.id, Outcome: o, Code: code})
}

// copyEndedLocked combines the outcomes of a frame's copies.
func (e *faultyEnd) copyEndedLocked(fr *faultyFrame, o sdk.Outcome, code sdk.Code) {
	fr.copies--
	switch {
	case o == sdk.Done:
		e.reportLocked(fr, sdk.Done, 0)
		return
	case o == sdk.Unknown:
		fr.unknown, fr.code = true, code
	case fr.code == 0:
		fr.code = code
	}
	switch {
	case fr.copies > 0:
	case fr.unknown:
		e.reportLocked(fr, sdk.Unknown, fr.code)
	default:
		e.reportLocked(fr, sdk.NotPosted, fr.code)
	}
}

// Close implements [sdk.Endpoint].
func (e *faultyEnd) Close() {
	e.f.mu.Lock()
	e.closed = true
	e.f.mu.Unlock()
	e.signal()
	e.inner.Close()
}

// sends gives frames to the wrapped endpoint until it is over.
func (e *faultyEnd) sends() {
	f := e.f
	var batch []sdk.Frame
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := time.Hour
		f.mu.Lock()
		if !f.hung {
			now := time.Now()
			due, next := e.out.pop(now, false)
			for _, item := range due {
				e.innerID++
				e.sent[e.innerID] = item.frame
				batch = append(batch, sdk.Frame{ID: e.innerID, Data: item.data})
				f.carryLocked()
			}
			if !next.IsZero() {
				wait = next.Sub(now)
			}
		}
		hung := f.hung
		f.mu.Unlock()
		if len(batch) > 0 && !hung {
			n, err := e.inner.Send(batch, false)
			batch = batch[n:]
			switch code := sdk.CodeOf(err); {
			case err == nil:
				batch = nil
			case code == sdk.Backpressure:
				wait = min(wait, time.Millisecond) // or the next completion
			case code == sdk.Closed:
				batch = nil
			default:
				e.refused(batch[0].ID, code)
				batch = batch[1:]
				continue
			}
		}
		timer.Reset(wait)
		select {
		case <-e.gone:
			return
		case <-e.sendWake:
		case <-timer.C:
		}
	}
}

// refused: the wrapped endpoint did not take the frame.
func (e *faultyEnd) refused(innerID uint64, code sdk.Code) {
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	fr := e.sent[innerID]
	delete(e.sent, innerID)
	e.copyEndedLocked(fr, sdk.NotPosted, code)
	e.signal()
}

// Completed implements [sdk.Handler], for the wrapped endpoint.
func (e *faultyEnd) Completed(cs []sdk.Completion) {
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	for _, c := range cs {
		if fr := e.sent[c.ID]; fr != nil {
			delete(e.sent, c.ID)
			e.copyEndedLocked(fr, c.Outcome, c.Code)
		}
	}
	e.signal()
}

// Received implements [sdk.Handler], for the wrapped endpoint. It waits while
// the engine's handler is behind.
func (e *faultyEnd) Received(frames [][]byte) {
	f := e.f
	for _, data := range frames {
		f.mu.Lock()
		for e.inFrames >= e.limits.InflightFrames && !e.over {
			room := e.room
			f.mu.Unlock()
			select {
			case <-room:
			case <-e.gone:
			}
			f.mu.Lock()
		}
		if !e.over {
			e.inFrames += e.in.push(time.Now(), f.faults.Receive, f.faults.MaxDelay, nil, bytes.Clone(data))
			f.carryLocked()
		}
		f.mu.Unlock()
		e.signal()
	}
}

// Ended implements [sdk.Handler], for the wrapped endpoint.
func (e *faultyEnd) Ended(err error) {
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	e.ended, e.err = true, err
	e.signal()
}

// calls calls the engine's handler until the end.
func (e *faultyEnd) calls() {
	f := e.f
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		f.mu.Lock()
		wait := time.Hour
		var work callWork
		if !f.hung {
			work, wait = e.nextLocked()
		}
		f.mu.Unlock()
		if work.do(e.h) {
			f.mu.Lock()
			delete(f.ends, e)
			f.mu.Unlock()
			close(e.done)
			return
		}
		timer.Reset(wait)
		select {
		case <-e.callWake:
		case <-timer.C:
		}
	}
}

// callWork is what the handler is to be told.
type callWork struct {
	completions []sdk.Completion
	frames      [][]byte
	ended       bool
	err         error
}

func (w callWork) do(h sdk.Handler) (ended bool) {
	if len(w.completions) > 0 {
		h.Completed(w.completions)
	}
	if len(w.frames) > 0 {
		h.Received(w.frames)
		poison(w.frames)
	}
	if w.ended {
		h.Ended(w.err)
	}
	return w.ended
}

func (e *faultyEnd) nextLocked() (w callWork, wait time.Duration) {
	wait = time.Hour
	if e.f.deadLocked() {
		e.overLocked()
		return callWork{ended: true, err: errCrashed}, wait
	}
	now := time.Now()
	w.completions, e.completions = e.completions, nil
	if !e.closed {
		items, next := e.in.pop(now, e.ended)
		for _, item := range items {
			w.frames = append(w.frames, bytes.Clone(item.data)) // a double is another frame
		}
		if !next.IsZero() {
			wait = next.Sub(now)
		}
		e.inFrames -= len(items)
	}
	if len(w.frames) > 0 || e.closed {
		close(e.room)
		e.room = make(chan struct{})
	}
	if e.closed {
		// What came is lost, and nothing may wait for room.
		e.in.queue, e.inFrames = nil, 0
	}
	if e.ended {
		e.overLocked()
		w.ended, w.err = true, e.err
	}
	return w, wait
}
