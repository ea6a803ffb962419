package remote

import (
	"errors"
	"math"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/internal/link"
)

// endpoint is the host's end of one endpoint in the plugin.
//
// Its handler is called by the link's reader only. What is called "dead" has
// had its last call: the end was delivered, or Connect has failed.
type endpoint struct {
	t       *Transport
	carrier link.Carrier
	id      uint64
	h       sdk.Handler
	use     sdk.Use
	passive bool    // Accept made it
	window  *window // nil if the handler never holds

	mu struct {
		sync.Mutex
		state   endpointState
		ended   bool // dead because the end was delivered
		closed  time.Time
		calling bool          // the reader is inside the handler
		left    chan struct{} // closed when it has left, if somebody waits
		out     outstanding
	}

	// The sender's: Send is called by one goroutine at a time.
	records []link.Record

	// The reader's, for one batch of records.
	frames  [][]byte
	results []sdk.Completion
	last    error // set by a record Ended
	queued  bool
}

type endpointState uint8

const (
	connecting endpointState = iota
	open
	dead
)

// newEndpoint draws an id, which is never used again.
func (t *Transport) newEndpoint(l *hostLink, use sdk.Use, h sdk.Handler) (*endpoint, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.drained {
		return nil, t.goneLocked("new endpoint")
	}
	t.mu.last++
	e := &endpoint{t: t, carrier: l.carrier, id: t.mu.last, use: use, h: h}
	if o, ok := h.(sdk.Offerer); ok && o.MayHold() && use == sdk.UseFrames {
		e.window = newWindow(e, o)
	}
	t.mu.endpoints[e.id] = e
	return e, nil
}

// settle makes the endpoint usable once the plugin has said yes. It fails if
// the link has ended meanwhile.
func (e *endpoint) settle(what string) error {
	e.mu.Lock()
	if e.mu.state == connecting {
		e.mu.state = open
	}
	lost := e.mu.state == dead && !e.mu.ended
	e.mu.Unlock()
	if lost {
		return e.t.gone(what)
	}
	return nil
}

// abandon forgets an endpoint that the plugin did not make, or of which
// nothing is known: when it returns no Handler method is called any more, and
// should the plugin have made the endpoint after all, it is told to end it.
func (e *endpoint) abandon() {
	e.t.forget(e.id)
	e.mu.Lock()
	e.mu.state = dead
	var left chan struct{}
	if e.mu.calling {
		left = make(chan struct{})
		e.mu.left = left
	}
	e.mu.Unlock()
	e.sendClose()
	if left != nil {
		<-left
	}
}

// enter and leave surround the reader's calls of the handler.
func (e *endpoint) enter() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.calling = e.mu.state != dead
	return e.mu.calling
}

func (e *endpoint) leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.calling = false
	if e.mu.left != nil {
		close(e.mu.left)
		e.mu.left = nil
	}
}

// end delivers the end, once. With the link's end (gone) an endpoint that is
// still being made does not get one: its Connect fails. That of an endpoint for
// memory says then that it is not the plugin's word: it may still run.
func (e *endpoint) end(err error, gone bool) {
	e.mu.Lock()
	was := e.mu.state
	e.mu.state = dead
	if was == dead || was == connecting && gone {
		e.mu.Unlock()
		return
	}
	e.mu.ended = true
	e.mu.calling = true
	e.mu.Unlock()
	if gone && e.use == sdk.UseMemory && sdk.CodeOf(err) != sdk.PluginExited {
		err = sdk.Errorf(sdk.PluginExited, "ended without the plugin's word: %w", err)
	}
	e.h.Ended(err)
	e.leave()
}

// closedFor is how long ago Close was called, or 0.
func (e *endpoint) closedFor(now time.Time) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.closed.IsZero() || e.mu.state == dead {
		return 0
	}
	return now.Sub(e.mu.closed)
}

// Send puts frames straight into the carrier's buffer, which is the one copy.
func (e *endpoint) Send(frames []sdk.Frame, more bool) (int, error) {
	err := e.admit(frames)
	if len(e.records) == 0 {
		return 0, err
	}
	mode := link.Mode(0)
	if more {
		mode = link.More
	}
	n, failed := e.carrier.Send(e.records, mode)
	if n < len(e.records) {
		err = e.refuse(n, failed)
	}
	clear(e.records) // nothing here may keep the caller's memory
	e.records = e.records[:0]
	return n, err
}

// admit makes records of the frames up to the first that may not go, and notes
// their ids, since an outcome may come before Send has returned.
func (e *endpoint) admit(frames []sdk.Frame) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.state == dead || !e.mu.closed.IsZero() {
		return sdk.Errorf(sdk.Closed, "plugin %s: the endpoint has ended", e.t.label)
	}
	limit := e.t.limits.MaxFrame
	if e.use == sdk.UseMemory {
		limit = sdk.MaxOpFrame
	}
	for _, f := range frames {
		switch {
		case e.use == sdk.UseMemory && e.passive:
			return sdk.Errorf(sdk.InvalidArgument, "plugin %s: ops are of the side that connected the endpoint", e.t.label)
		case len(f.Data) > limit:
			return sdk.Errorf(sdk.TooLarge, "plugin %s: frame of %d bytes, the limit is %d", e.t.label, len(f.Data), limit)
		case f.ID == 0 || f.ID < e.mu.out.next || f.ID == math.MaxUint64:
			return sdk.Errorf(sdk.InvalidArgument, "plugin %s: frame id %d does not grow", e.t.label, f.ID)
		case !e.mu.out.add(f.ID):
			return sdk.Errorf(sdk.Backpressure, "plugin %s: frame %d has had no outcome for %d ids", e.t.label, e.mu.out.low, maxSpan)
		}
		e.records = append(e.records, link.Record{Type: link.Send, Endpoint: e.id, ID: f.ID, Payload: f.Data})
	}
	return nil
}

// refuse takes back the ids of records that the carrier did not take.
func (e *endpoint) refuse(n int, err error) error {
	e.mu.Lock()
	e.mu.out.rewind(e.records[n].ID)
	e.mu.Unlock()
	if errors.Is(err, link.ErrClosed) {
		return sdk.Errorf(sdk.Closed, "plugin %s: the endpoint has ended", e.t.label)
	}
	return e.t.sendError("send", err)
}

// Close asks the plugin to end the endpoint.
func (e *endpoint) Close() { e.close() }

// close reports whether it is the first.
func (e *endpoint) close() bool {
	e.mu.Lock()
	first := e.mu.state != dead && e.mu.closed.IsZero()
	if first {
		e.mu.closed = time.Now()
	}
	e.mu.Unlock()
	if first {
		e.sendClose()
	}
	return first
}

func (e *endpoint) sendClose() {
	rec := []link.Record{{Type: link.CloseEndpoint, Endpoint: e.id}}
	if _, err := e.carrier.Send(rec, 0); errors.Is(err, link.ErrFull) {
		// At most one for each endpoint, and it follows the frames before.
		e.t.sendLater(e.carrier, rec, nil)
	}
}

// forget takes an endpoint off the link and returns it.
func (t *Transport) forget(id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.endpoints, id)
}

func (t *Transport) endpoint(id uint64) *endpoint {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.endpoints[id]
}
