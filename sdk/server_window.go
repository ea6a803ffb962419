package sdk

import (
	"sync"

	"github.com/hawser-transport/hawser/sdk/internal/link"
)

// servedWindow is how much more of an endpoint may be handed to the host, in
// the plugin. A nil one is without limit, and so costs nothing.
type servedWindow struct {
	mu      sync.Mutex
	moved   sync.Cond
	handed  uint64 // bytes, with headers
	end     uint64
	ep      Endpoint // nil until attached
	givenUp bool     // nobody may wait any more: the endpoint is to end
	gone    bool     // it has ended, or never was
	dropped int      // frames that the host has not been told of
	resume  func()   // for a transport that does not wait, or nil
}

func newServedWindow(end uint32) *servedWindow {
	w := &servedWindow{end: uint64(end)}
	w.moved.L = &w.mu
	return w
}

// admit returns how many of the frames may be handed over now, and counts them.
// A frame of any size may while the window is open.
func (w *servedWindow) admit(frames [][]byte) (n int) {
	if w == nil {
		return len(frames)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for n < len(frames) && w.handed < w.end && !w.givenUp {
		w.handed += uint64(link.HeaderSize + len(frames[n]))
		n++
	}
	return n
}

// await waits for the window to open. It reports false if the endpoint is to
// end instead: then it is closed already, so that its peer gets no receipt for
// what was not handed over.
func (w *servedWindow) await() bool {
	w.mu.Lock()
	for !w.gone && (!w.givenUp && w.handed >= w.end || w.givenUp && w.ep == nil) {
		w.moved.Wait()
	}
	open, ep := !w.gone && !w.givenUp, w.ep
	w.mu.Unlock()
	if !open && ep != nil {
		ep.Close()
	}
	return open
}

// drop counts frames that were lost because the window was closed. It reports
// whether it may not take the next offer; then resume is called once it does.
func (w *servedWindow) drop(frames int, resume func()) (closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropped += frames
	if w.takesLocked() {
		return false
	}
	if resume != nil {
		w.resume = resume
	}
	return true
}

// takesLocked reports whether the whole of a next offer would be taken, or
// nobody is to wait any more.
func (w *servedWindow) takesLocked() bool {
	return w.handed+OfferBytes <= w.end || w.givenUp || w.gone
}

// report adds the record of what was dropped, if anything was.
func (w *servedWindow) report(out *outbound) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dropped > 0 {
		out.records = append(out.records, link.Record{Type: link.Dropped, Endpoint: out.endpoint, ID: uint64(w.dropped)})
		w.dropped = 0
	}
}

// change changes the window and has everybody look.
func (w *servedWindow) change(f func()) {
	if w == nil {
		return
	}
	w.mu.Lock()
	f()
	var resume func()
	if w.takesLocked() {
		resume, w.resume = w.resume, nil
	}
	w.moved.Broadcast()
	w.mu.Unlock()
	if resume != nil {
		resume()
	}
}

func (w *servedWindow) widen(end uint64)     { w.change(func() { w.end = max(w.end, end) }) }
func (w *servedWindow) attached(ep Endpoint) { w.change(func() { w.ep = ep }) }
func (w *servedWindow) giveUp()              { w.change(func() { w.givenUp = true }) }
func (w *servedWindow) vanish()              { w.change(func() { w.gone = true }) }
