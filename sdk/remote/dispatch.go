package remote

import (
	"fmt"
	"math"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/internal/bounds"
	"github.com/hawser-transport/hawser/sdk/internal/link"
)

// dispatcher turns batches of records into calls of Handlers, on the reader's
// goroutine. Everything of a batch for one endpoint is gathered and handed
// over in at most one call of each kind.
type dispatcher struct {
	t      *Transport
	queued []*endpoint
	runs   []link.Run
	recent *endpoint // the last one looked up in this batch
}

// handle dispatches a batch. Its error, which matches link.ErrViolation, says
// which rule the plugin broke; what came before it was dispatched.
func (d *dispatcher) handle(recs []link.Record) error {
	var bad error
	for i := range recs {
		if bad == nil {
			bad = d.record(&recs[i])
		}
		for _, f := range recs[i].Files {
			_ = f.Close()
		}
	}
	d.flush()
	return bad
}

func (d *dispatcher) record(r *link.Record) error {
	switch r.Type {
	case link.Complete:
		return d.complete(r)
	case link.Received:
		if n, limit := len(r.Payload), d.t.limits.MaxFrame; n > limit {
			return violation("frame of %d bytes, the limit is %d", n, limit)
		}
		e := d.lookup(r.Endpoint)
		switch {
		case e == nil:
		case e.use == sdk.UseMemory:
			// Its end has to come from the plugin: until then the plugin may
			// touch memory for it.
			d.t.dropped.Add(1)
			if e.close() {
				d.t.log.Error("the plugin hands over a frame on an endpoint for memory: the endpoint is closed", "plugin", d.t.label, "endpoint", e.id)
			}
		case e.window != nil && !e.window.takes(len(r.Payload)):
			d.excess(e)
		default:
			e.frames = append(e.frames, r.Payload)
			d.queue(e)
		}
	case link.Dropped:
		if e := d.lookup(r.Endpoint); e != nil && e.window != nil {
			e.window.h.Dropped(int(min(r.ID, math.MaxInt32)))
		}
	case link.Ended:
		if len(r.Payload) > bounds.TextBytes {
			return violation("text of %d bytes with an endpoint's end, the limit is %d", len(r.Payload), bounds.TextBytes)
		}
		if e := d.lookup(r.Endpoint); e != nil {
			code := codeFromPB(uint32(min(r.ID, math.MaxUint32)))
			if e.use == sdk.UseMemory && code == sdk.PluginExited {
				code = sdk.Unavailable // it is there, and has ended this one
			}
			e.last = sdk.Errorf(code, "plugin %s: %s", d.t.label, r.Payload)
			d.queue(e)
			d.t.forget(e.id)
			d.recent = nil
		}
	case link.PathsChanged:
		d.t.tellPaths()
	case link.Pong:
		if !d.t.pings.ponged(r.ID) {
			d.t.dropped.Add(1)
		}
	default:
		return violation("record of type %d, which only the host sends", r.Type)
	}
	return nil
}

// excess ends an endpoint of which frames come although its window is closed.
// They are dropped and counted, here and, from now on, as those of an endpoint
// that is gone.
func (d *dispatcher) excess(e *endpoint) {
	d.t.dropped.Add(1)
	e.window.h.Dropped(1)
	d.t.log.Error("the plugin goes on handing over what an endpoint has no room for: the endpoint is ended", "plugin", d.t.label, "endpoint", e.id)
	e.last = sdk.Errorf(sdk.Backpressure, "plugin %s: it handed over %d bytes and more while there was no room", d.t.label, sdk.HoldBytes)
	d.queue(e)
	d.t.forget(e.id)
	d.recent = nil
	e.sendClose()
}

// complete keeps those outcomes that a frame is waiting for.
func (d *dispatcher) complete(r *link.Record) error {
	var err error
	if d.runs, err = link.DecodeRuns(d.runs[:0], r.Payload); err != nil {
		return err
	}
	e := d.lookup(r.Endpoint)
	if e == nil {
		return nil
	}
	e.mu.Lock()
	lost := 0
	for _, run := range d.runs {
		lost += int(run.Count)
		c := sdk.Completion{Outcome: sdk.Outcome(run.Outcome), Code: sdk.Code(run.Code)}
		switch {
		case c.Outcome == sdk.Done:
			c.Code = 0
		case !c.Code.Valid():
			c.Code = sdk.Refused
		}
		// The codec has checked that the run does not overflow.
		first, last := max(run.First, e.mu.out.low), run.First+uint64(run.Count-1)
		for id := first; id <= last && id < e.mu.out.next; id++ {
			if e.mu.out.take(id) {
				c.ID = id
				e.results = append(e.results, c)
				lost--
			}
		}
	}
	e.mu.Unlock()
	if lost > 0 {
		d.t.dropped.Add(uint64(lost))
	}
	d.queue(e)
	return nil
}

// lookup finds the endpoint, or counts a record that means nothing: of an
// endpoint that has ended, or never was.
func (d *dispatcher) lookup(id uint64) *endpoint {
	if d.recent != nil && d.recent.id == id {
		return d.recent
	}
	e := d.t.endpoint(id)
	if e == nil {
		d.t.dropped.Add(1)
		return nil
	}
	d.recent = e
	return e
}

func (d *dispatcher) queue(e *endpoint) {
	if !e.queued {
		e.queued = true
		d.queued = append(d.queued, e)
	}
}

// flush calls the handlers.
func (d *dispatcher) flush() {
	d.recent = nil
	for i, e := range d.queued {
		d.queued[i] = nil
		e.queued = false
		e.deliver()
	}
	d.queued = d.queued[:0]
}

// deliver hands over what the batch had for the endpoint.
func (e *endpoint) deliver() {
	if e.enter() {
		if len(e.results) > 0 {
			e.h.Completed(e.results)
		}
		switch {
		case len(e.frames) == 0:
		case e.window != nil:
			e.window.deliver(e.frames)
		default:
			e.h.Received(e.frames)
		}
		e.leave()
	}
	clear(e.frames) // the carrier's memory
	e.frames, e.results = e.frames[:0], e.results[:0]
	if e.last != nil {
		e.end(e.last, false)
	}
}

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", link.ErrViolation, fmt.Sprintf(format, args...))
}
