package sdk

import (
	"context"
	"errors"
	"sync"

	"github.com/hawser-transport/hawser/sdk/internal/bounds"
	"github.com/hawser-transport/hawser/sdk/internal/link"
)

// servedEndpoint is one endpoint in the plugin: towards the transport it is
// the engine's Handler, and turns what happens into records. Where the link
// has no room it blocks the transport, which is the transport's backpressure;
// where the endpoint's own window has none it blocks this endpoint.
type servedEndpoint struct {
	s      *server
	id     uint64
	use    Use
	window *servedWindow // nil if there is none

	mu struct {
		sync.Mutex
		ep      Endpoint // nil until attached
		closing bool     // CloseEndpoint came before the endpoint was there
		gone    bool     // ended, or never was
	}

	// The reader's, for one batch of records.
	frames []Frame
	queued bool

	// The handler's: its methods are called one at a time.
	out outbound
}

// newEndpoint registers an endpoint before the transport makes it. It waits
// for the link, which over gRPC opens on its own.
func (s *server) newEndpoint(ctx context.Context, use Use, id uint64, window uint32) (*servedEndpoint, error) {
	select {
	case <-s.linkOpen:
	case <-ctx.Done():
		return nil, Errorf(InvalidArgument, "the link was not opened: %w", ctx.Err())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.linkEnded {
		return nil, Errorf(Closed, "the link has ended")
	}
	if s.mu.endpoints[id] != nil {
		return nil, Errorf(InvalidArgument, "endpoint %d exists", id)
	}
	e := &servedEndpoint{s: s, id: id, use: use}
	e.out = outbound{s: s, endpoint: id}
	if use == UseFrames {
		e.out.outcomes = link.More
	}
	if window > 0 && use == UseFrames {
		e.window = newServedWindow(window)
		if s.mu.closing {
			e.window.giveUp()
		}
	}
	s.mu.endpoints[id] = e
	return e, nil
}

func (s *server) endpoint(id uint64) *servedEndpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.endpoints[id]
}

// attach binds the transport's endpoint. Its error says that the host has
// given it up meanwhile.
func (e *servedEndpoint) attach(ep Endpoint) error {
	e.mu.Lock()
	e.mu.ep = ep
	closing := e.mu.closing
	e.mu.Unlock()
	e.window.attached(ep)
	if closing {
		ep.Close()
		return Errorf(Closed, "the host has closed the endpoint")
	}
	return nil
}

// close is the host's CloseEndpoint, or the link's end.
func (e *servedEndpoint) close() {
	e.mu.Lock()
	e.mu.closing = true
	ep := e.mu.ep
	e.mu.Unlock()
	if ep != nil {
		ep.Close()
	}
	e.window.giveUp()
}

// forget removes the endpoint from the link; records for it are dropped from
// now on, and it sends none. It reports whether this call did so.
func (e *servedEndpoint) forget() bool {
	e.mu.Lock()
	gone := e.mu.gone
	e.mu.gone = true
	e.mu.Unlock()
	if gone {
		return false
	}
	e.window.vanish()
	e.s.mu.Lock()
	delete(e.s.mu.endpoints, e.id)
	e.s.mu.Unlock()
	return true
}

func (e *servedEndpoint) isGone() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.gone
}

// send gives the frames that the reader has gathered to the transport, and
// reports those that were not taken.
func (e *servedEndpoint) send(out *outbound) {
	frames := e.frames
	n, code := e.offer(frames)
	if n < len(frames) && !e.isGone() {
		out.endpoint = e.id
		for _, f := range frames[n:] {
			out.complete(f.ID, NotPosted, code)
		}
		out.flush()
	}
	clear(frames)
	e.frames = frames[:0]
}

// offer returns how many frames the transport took, and why not the others.
func (e *servedEndpoint) offer(frames []Frame) (int, Code) {
	e.mu.Lock()
	ep := e.mu.ep
	e.mu.Unlock()
	if ep == nil {
		return 0, Closed
	}
	n, err := ep.Send(frames, false)
	switch {
	case n < 0 || n > len(frames):
		e.s.log.Error("transport claims to have taken more frames than it was given", "taken", n, "given", len(frames))
		return len(frames), 0
	case err != nil:
		code := codeFor(err)
		if code == Closed {
			e.window.giveUp() // it has ended, and cannot say so while it waits
		}
		return n, code
	}
	return n, Backpressure
}

// Completed is Handler's.
func (e *servedEndpoint) Completed(cs []Completion) {
	if e.isGone() {
		return
	}
	for _, c := range cs {
		if !c.Outcome.Valid() {
			e.s.log.Error("transport reports an outcome that does not exist", "outcome", c.Outcome)
			c.Outcome = Unknown
		}
		if c.Outcome == Done || !c.Code.Valid() {
			c.Code = 0
		}
		e.out.complete(c.ID, c.Outcome, c.Code)
	}
	e.out.flush()
}

// Received is Handler's.
func (e *servedEndpoint) Received(frames [][]byte) {
	if e.isGone() {
		return
	}
	for n := 0; len(frames) > 0; frames = frames[n:] {
		if n = e.window.admit(frames); n == 0 {
			if !e.window.await() {
				return
			}
			continue
		}
		if !e.hand(frames[:n]) {
			return
		}
	}
}

// Offer is Offerer's.
func (e *servedEndpoint) Offer(frames [][]byte, resume func()) (held bool) {
	if e.isGone() {
		return false
	}
	n := e.window.admit(frames)
	if n > 0 && !e.hand(frames[:n]) || e.window == nil {
		return false
	}
	return e.window.drop(len(frames)-n, resume)
}

// MayHold is Offerer's.
func (e *servedEndpoint) MayHold() bool { return e.window != nil }

// Dropped is Offerer's.
func (e *servedEndpoint) Dropped(frames int) {
	if e.window != nil {
		e.window.drop(frames, nil)
	}
}

// hand hands frames to the host. It reports false if one was beyond the limit.
func (e *servedEndpoint) hand(frames [][]byte) (ok bool) {
	e.window.report(&e.out)
	for _, f := range frames {
		if len(f) > e.s.limits.MaxFrame || e.use == UseMemory {
			// The host would take it for an attack and end the plugin, or the
			// endpoint.
			e.s.log.Error("transport hands over a frame beyond its own limit, or of an endpoint for memory",
				"bytes", len(f), "limit", e.s.limits.MaxFrame, "use", e.use)
			e.close()
			e.out.send(0)
			return false
		}
		e.out.records = append(e.out.records, link.Record{Type: link.Received, Endpoint: e.id, Payload: f})
	}
	e.out.send(0)
	return true
}

// Ended is Handler's.
func (e *servedEndpoint) Ended(err error) {
	if !e.forget() {
		return
	}
	if err == nil {
		err = Closed
	}
	e.window.report(&e.out)
	e.out.records = append(e.out.records, link.Record{
		Type: link.Ended, Endpoint: e.id, ID: uint64(codeFor(err)),
		Payload: []byte(bounds.Text(err.Error())),
	})
	e.out.send(0)
}

// outbound gathers records for one endpoint and sends them, blocking while the
// link has no room. It belongs to one goroutine at a time, and keeps its
// memory.
type outbound struct {
	s        *server
	endpoint uint64
	// outcomes is how they are sent. Nobody waits for a frame's to the
	// microsecond, and received frames often follow: with More they share a
	// write. A caller waits for that of an op, and nothing follows.
	outcomes link.Mode
	records  []link.Record
	runs     link.Runs
}

// complete adds an outcome.
func (o *outbound) complete(id uint64, outcome Outcome, code Code) {
	full := len(o.runs.Payload())+link.RunSize > bounds.MaxRecord(o.s.limits.MaxFrame)
	if full || !o.runs.Add(id, uint8(outcome), uint8(code)) {
		o.flush()
		o.runs.Add(id, uint8(outcome), uint8(code))
	}
}

// flush sends the outcomes that were added.
func (o *outbound) flush() {
	if o.runs.IDs() > 0 {
		o.records = append(o.records, link.Record{Type: link.Complete, Endpoint: o.endpoint, Payload: o.runs.Payload()})
		o.send(o.outcomes)
		o.runs.Reset()
	}
}

// send sends the records. Its failure does not matter to the caller: the
// link's end ends everything.
func (o *outbound) send(mode link.Mode) {
	if len(o.records) == 0 {
		return
	}
	if _, err := o.s.carrier.Send(o.records, mode|link.Wait); err != nil && !errors.Is(err, link.ErrClosed) {
		o.s.log.Error("record refused by the link", "err", err)
	}
	clear(o.records)
	o.records = o.records[:0]
}
