package remote

import (
	"errors"
	"sync"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/internal/link"
)

// window is how much more of an endpoint the plugin may hand over, for a
// handler that may hold the endpoint. All endpoints of a plugin share the link,
// and the host never stops reading it; so the plugin has to stop, endpoint by
// endpoint, and may have no more under way than its handler keeps of a held
// one. While frames are taken the window's end moves on, by a record for each
// half of it; while the endpoint is held it stays where it is.
type window struct {
	e *endpoint
	h sdk.Offerer

	mu      sync.Mutex
	came    uint64 // bytes, with headers
	offered uint64 // of these, to the handler
	end     uint64 // what may come
	told    uint64 // the end that the plugin knows
	telling bool   // a record waits for room on the link; more would not help
	// call is the latest call of Offer, resumed the latest that was resumed.
	call, resumed uint64
	offering      bool
}

// A frame counts on the link what it counts in a hold.
var _ = [1]struct{}{}[link.HeaderSize-sdk.HoldOverhead]

func newWindow(e *endpoint, h sdk.Offerer) *window {
	return &window{e: e, h: h, end: sdk.HoldBytes, told: sdk.HoldBytes}
}

// first is the window that an endpoint begins with; 0 is none.
func (w *window) first() uint32 {
	if w == nil {
		return 0
	}
	return sdk.HoldBytes
}

// takes counts a frame that has come, and reports whether it was allowed to.
func (w *window) takes(size int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.came >= w.end {
		return false
	}
	w.came += uint64(link.HeaderSize + size)
	return true
}

// deliver offers all frames that have come to the handler, on the reader's
// goroutine.
func (w *window) deliver(frames [][]byte) {
	w.mu.Lock()
	w.call++
	call := w.call
	w.offering = true
	w.mu.Unlock()
	held := w.h.Offer(frames, func() { w.resume(call) })
	w.mu.Lock()
	defer w.mu.Unlock()
	w.offering = false
	w.offered = w.came
	if !held || w.resumed == call {
		w.openLocked()
	}
}

// resume ends the hold that a call of Offer has begun, unless another call has
// followed: that one says how things are.
func (w *window) resume(call uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resumed = call
	if call == w.call && !w.offering {
		w.openLocked()
	}
}

// openLocked moves the window on and tells the plugin, once that is worth a
// record.
func (w *window) openLocked() {
	if w.end-min(w.end, w.offered) <= sdk.HoldBytes/2 {
		w.end = w.offered + sdk.HoldBytes
	}
	w.tellLocked()
}

func (w *window) tellLocked() {
	if w.told == w.end || w.telling || !w.e.t.windows {
		return
	}
	w.told = w.end
	rec := []link.Record{{Type: link.Window, Endpoint: w.e.id, ID: w.end}}
	if _, err := w.e.carrier.Send(rec, link.More); errors.Is(err, link.ErrFull) {
		w.telling = true
		w.e.t.sendLater(w.e.carrier, rec, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.telling = false
			w.tellLocked()
		})
	}
}
