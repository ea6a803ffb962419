package sdktest

import (
	"math"
	"slices"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// conn joins two ends. lanes[i] carries from ends[i] to the other one. All of
// it is guarded by the fabric's lock; handlers are called without it.
type conn struct {
	f       *Fabric
	path    string
	use     sdk.Use
	token   uint64
	arrived bool
	from    [2]string // the nodes
	ends    [2]*end   // 0 is the one that connects; nil until it has arrived
	lanes   [2]lane
	arrive  *time.Timer
}

// lane is one direction. Receipts have a queue of their own, so that a full
// inbox does not hold back the other direction's receipts.
type lane struct {
	frames   []packet
	receipts []packet
	lastDue  time.Time
	timer    *time.Timer
	fin      *packet // behind the frames
	gone     bool    // fin has arrived
}

type packet struct {
	due  time.Time
	id   uint64
	data []byte
	held bool
	op   *fabricOp // of an endpoint for memory, both ways
}

func (c *conn) joins(a, b, path string) bool {
	match := func(x, y string) bool { return (a == "" || a == x) && (b == "" || b == y) }
	if path != "" && path != c.path {
		return false
	}
	return c.ends[0] != nil && c.ends[1] != nil && (match(c.from[0], c.from[1]) || match(c.from[1], c.from[0]))
}

// stampLocked gives a packet its time of arrival.
func (c *conn) stampLocked(side int, p packet) packet {
	l := &c.lanes[side]
	p.due = time.Now().Add(c.f.delays.get(c.from[side], c.from[1-side], c.path))
	if p.due.Before(l.lastDue) {
		p.due = l.lastDue
	}
	l.lastDue = p.due
	return p
}

// advanceLocked moves what may move from side to the other end.
func (c *conn) advanceLocked(side int) {
	l := &c.lanes[side]
	if !c.arrived || l.gone {
		return
	}
	if c.f.cutLocked(c.from[side], c.from[1-side], c.path) {
		c.holdLocked(l)
		return
	}
	now := time.Now()
	dst := c.ends[1-side]
	n := 0
	for n < len(l.receipts) && !l.receipts[n].due.After(now) {
		if op := l.receipts[n].op; op != nil {
			dst.finishLocked(op)
		} else {
			dst.completeLocked(sdk.Completion{ID: l.receipts[n].id, Outcome: sdk.Done})
		}
		n++
	}
	l.receipts = slices.Delete(l.receipts, 0, n)
	n = 0
	for n < len(l.frames) && !l.frames[n].due.After(now) && dst.takeLocked(&l.frames[n]) {
		c.lanes[1-side].receipts = append(c.lanes[1-side].receipts, c.stampLocked(1-side, packet{id: l.frames[n].id, op: l.frames[n].op}))
		n++
	}
	l.frames = slices.Delete(l.frames, 0, n)
	if n > 0 {
		c.advanceLocked(1 - side)
	}
	if len(l.frames) == 0 && l.fin != nil && !l.fin.due.After(now) {
		l.gone = true
		dst.endLocked(sdk.Errorf(sdk.Unavailable, "%s ended the endpoint over %s", c.from[side], c.path), false)
	}
	c.armLocked(side, now)
	c.forgetLocked()
}

func (c *conn) holdLocked(l *lane) {
	mark := func(p *packet) {
		if !p.held {
			p.held = true
			c.f.counters.Held++
		}
	}
	for i := range l.frames {
		mark(&l.frames[i])
	}
	for i := range l.receipts {
		mark(&l.receipts[i])
	}
	if l.fin != nil {
		mark(l.fin)
	}
}

// armLocked sets the timer for the first packet that is under way.
func (c *conn) armLocked(side int, now time.Time) {
	l := &c.lanes[side]
	var first time.Time
	see := func(p *packet) {
		if p.due.After(now) && (first.IsZero() || p.due.Before(first)) {
			first = p.due
		}
	}
	if len(l.receipts) > 0 {
		see(&l.receipts[0])
	}
	if len(l.frames) > 0 {
		see(&l.frames[0])
	} else if l.fin != nil {
		see(l.fin)
	}
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if first.IsZero() {
		return
	}
	l.timer = time.AfterFunc(first.Sub(now), func() {
		c.f.mu.Lock()
		defer c.f.mu.Unlock()
		c.advanceLocked(side)
	})
}

// dropLocked loses everything under way; nothing will arrive any more.
func (c *conn) dropLocked() {
	for side := range c.lanes {
		l := &c.lanes[side]
		l.frames, l.receipts, l.fin, l.gone = nil, nil, nil, true
		if l.timer != nil {
			l.timer.Stop()
		}
	}
	c.forgetLocked()
}

// forgetLocked removes a conn of which both ends have ended.
func (c *conn) forgetLocked() {
	if c.f.unfenced && len(c.lanes[0].frames) > 0 {
		return
	}
	for _, e := range c.ends {
		if e != nil && !e.ended {
			return
		}
	}
	if c.arrive != nil {
		c.arrive.Stop()
	}
	delete(c.f.conns, c)
	delete(c.f.pending, c.token)
	for side := range c.lanes {
		if l := &c.lanes[side]; l.timer != nil {
			l.timer.Stop()
		}
	}
}

// end is one side's endpoint.
type end struct {
	c    *conn
	m    *member
	side int
	h    sdk.Handler
	wake chan struct{} // buffered, 1
	done chan struct{} // closed after Handler.Ended

	// Guarded by the fabric's lock.
	lastID      uint64
	peer        sdk.Incarnation
	ops         map[uint64]*fabricOp // of an endpoint for memory: without an outcome
	unflushed   []*fabricOp          // done and not yet carried out, with NeedsFlush
	unfinished  map[uint64]int       // id: bytes
	bytes       int                  // in unfinished
	completions []sdk.Completion
	inbox       [][]byte
	inboxBytes  int
	ended       bool
	err         error
	stall       *time.Timer
}

func newEnd(c *conn, m *member, side int, h sdk.Handler) *end {
	return &end{
		c: c, m: m, side: side, h: h,
		wake: make(chan struct{}, 1), done: make(chan struct{}), unfinished: map[uint64]int{}, ops: map[uint64]*fabricOp{},
	}
}

func (e *end) node() string { return e.m.node }

func (e *end) signal() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Send implements [sdk.Endpoint].
func (e *end) Send(frames []sdk.Frame, _ bool) (int, error) {
	f := e.c.f
	f.mu.Lock()
	defer f.mu.Unlock()
	for n, fr := range frames {
		err := e.admitLocked(fr)
		if err == nil && e.c.use == sdk.UseMemory {
			err = e.postLocked(fr)
			if err == nil {
				continue
			}
		}
		if err != nil {
			e.sentLocked()
			return n, err
		}
		e.lastID = fr.ID
		e.unfinished[fr.ID] = len(fr.Data)
		e.bytes += len(fr.Data)
		l := &e.c.lanes[e.side]
		l.frames = append(l.frames, e.c.stampLocked(e.side, packet{id: fr.ID, data: slices.Clone(fr.Data)}))
	}
	e.sentLocked()
	return len(frames), nil
}

func (e *end) sentLocked() {
	e.c.advanceLocked(e.side)
	e.watchStallLocked()
}

func (e *end) admitLocked(fr sdk.Frame) error {
	lim := e.c.f.opt.Limits
	if e.c.use == sdk.UseMemory {
		m := e.c.f.opt.Move
		lim = sdk.Limits{MaxFrame: sdk.MaxOpFrame, InflightFrames: m.Inflight, InflightBytes: math.MaxInt} // those of ops are counted by postLocked
	}
	switch {
	case e.ended:
		return sdk.Errorf(sdk.Closed, "the endpoint has ended")
	case len(fr.Data) > lim.MaxFrame:
		return sdk.Errorf(sdk.TooLarge, "a frame of %d bytes is over the limit max_frame, %d", len(fr.Data), lim.MaxFrame)
	case fr.ID <= e.lastID:
		return sdk.Errorf(sdk.InvalidArgument, "frame id %d after %d", fr.ID, e.lastID)
	case len(e.unfinished) >= lim.InflightFrames,
		len(e.unfinished) > 0 && e.bytes+len(fr.Data) > lim.InflightBytes:
		return sdk.Errorf(sdk.Backpressure, "%d frames, %d bytes are under way", len(e.unfinished), e.bytes)
	}
	return nil
}

// Close implements [sdk.Endpoint].
func (e *end) Close() {
	f := e.c.f
	f.mu.Lock()
	defer f.mu.Unlock()
	e.endLocked(sdk.Errorf(sdk.Closed, "the endpoint was closed"), true)
}

// endLocked ends this side; the other one learns of it behind all frames that
// are under way. With drop, frames that came and were not handed over are
// lost.
func (e *end) endLocked(err error, drop bool) bool {
	if drop {
		e.inbox, e.inboxBytes = nil, 0
	}
	if e.ended {
		return false
	}
	e.ended, e.err = true, err
	e.fenceLocked()
	if e.stall != nil {
		e.stall.Stop()
	}
	fin := e.c.stampLocked(e.side, packet{})
	e.c.lanes[e.side].fin = &fin
	e.c.advanceLocked(e.side)
	if !e.c.arrived {
		e.c.dropLocked()
	}
	e.c.forgetLocked()
	e.signal()
	return true
}

// takeLocked puts a frame that has come into the inbox, if there is room.
// Frames for an end that is gone vanish without a receipt.
func (e *end) takeLocked(p *packet) bool {
	if p.op != nil {
		return e.carryOutLocked(p)
	}
	data, lim := p.data, e.c.f.opt.Limits
	if e.ended || len(e.inbox) >= lim.InflightFrames ||
		len(e.inbox) > 0 && e.inboxBytes+len(data) > lim.InflightBytes {
		return false
	}
	e.inbox = append(e.inbox, data)
	e.inboxBytes += len(data)
	e.c.f.counters.Delivered++
	e.m.progress++
	e.signal()
	return true
}

func (e *end) completeLocked(c sdk.Completion) {
	size, ok := e.unfinished[c.ID]
	if !ok || e.ended {
		return
	}
	delete(e.unfinished, c.ID)
	e.bytes -= size
	e.completions = append(e.completions, c)
	e.signal()
}

// watchStallLocked arms or disarms the timer that ends a stalled endpoint.
func (e *end) watchStallLocked() {
	f, c := e.c.f, e.c
	if f.opt.StallTimeout == 0 {
		return
	}
	here, there := c.from[e.side], c.from[1-e.side]
	stalled := c.arrived && !e.ended && len(e.unfinished) > 0 &&
		(f.cutLocked(here, there, c.path) || f.cutLocked(there, here, c.path))
	switch {
	case !stalled && e.stall != nil:
		e.stall.Stop()
		e.stall = nil
	case stalled && e.stall == nil:
		var own *time.Timer
		own = time.AfterFunc(f.opt.StallTimeout, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			if e.stall == own && e.endLocked(sdk.Errorf(sdk.Unavailable, "%s did not answer over %s", there, c.path), true) {
				f.counters.Ended++
			}
		})
		e.stall = own
	}
}

// pump calls the handler, one method at a time, until it has ended.
func (e *end) pump() {
	f := e.c.f
	defer close(e.done)
	for range e.wake {
		f.mu.Lock()
		if f.frozenLocked(e.m.node) && !e.m.closed {
			f.mu.Unlock()
			continue
		}
		cs, frames := e.completions, e.inbox
		e.completions, e.inbox, e.inboxBytes = nil, nil, 0
		ended, err := e.ended, e.err
		if len(frames) > 0 {
			e.c.advanceLocked(1 - e.side)
		}
		if !ended {
			e.watchStallLocked()
		}
		f.mu.Unlock()
		if len(cs) > 0 {
			e.h.Completed(cs)
			clear(cs)
		}
		if len(frames) > 0 {
			e.h.Received(frames)
			poison(frames)
		}
		if ended {
			e.h.Ended(err)
			f.mu.Lock()
			delete(e.m.ends, e)
			f.mu.Unlock()
			return
		}
	}
}

// poison overwrites what belongs to the transport again, so that a handler
// that kept it finds out.
func poison(frames [][]byte) {
	for i, b := range frames {
		for k := range b {
			b[k] = 0xDB
		}
		frames[i] = nil
	}
}
