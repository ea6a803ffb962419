package engine

import (
	"slices"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/descriptor"
	"github.com/hawser-transport/hawser/engine/internal/spread"
	"github.com/hawser-transport/hawser/sdk"
)

// op is one op of a transfer on its way. What is below key is guarded by the
// lock of its mover, once it has one; the rest is constant.
type op struct {
	t           *Transfer
	index       int
	target      *target
	kind        sdk.OpKind
	local       *Region
	localOffset uint64
	address     uint64
	pin         sdk.Capability
	length      uint64
	event       *[sdk.EventBytes]byte

	// The route: the region that the op was resolved to, on which it has a
	// lease to its end. The buffer is that of the latest descriptor that has
	// the region: a restarted transport publishes other attributes.
	key     bufferKey
	offset  uint64 // in the buffer
	buffer  *descriptor.Buffer
	version uint64 // of the descriptor that buffer is of
	latest  uint64 // of the latest one that was looked at for it

	spans     []spread.Span // unsent
	posted    int           // chunks that are posted or fencing
	serial    uint64        // of its mover
	group     *group        // in the mover's queue, or nil
	rests     bool          // nothing of it has to be moved any more, as far as is known
	landed    []*chunk
	touched   bool      // something was posted, ever
	stale     error     // a transport's word that the route is; nothing is sent meanwhile
	asking    bool      // the descriptor is being asked for because of that
	refreshed bool      // the descriptor was asked for already
	ableAt    time.Time // when a way could last carry it
	unknown   bool      // a chunk's fence will never be confirmed
	err       error     // it is to fail with
	settleBy  time.Time // since it is to fail: until when its chunks may end on their own
	giveUp    time.Time // and until when they are waited for
	ended     bool      // and reported
	attempts  []Attempt
	tries     int
}

const (
	// settleTime is what chunks that are under way may take to end on their own
	// once their op is to fail; then their endpoints are ended.
	settleOps = time.Second
	// fenceTime is what the fences of those may take then; after that the op
	// is reported as OutcomeUnknown.
	fenceTime = 10 * time.Second
)

// followLocked takes the region's attributes from the latest descriptor.
func (o *op) followLocked(s *source) {
	d := s.desc
	if d == nil || d.Version == o.latest || o.key.c.IsZero() {
		return
	}
	o.latest = d.Version
	for i := range d.Buffers {
		if d.Buffers[i].Capability == o.key.c {
			o.buffer, o.version = &d.Buffers[i], d.Version
			return
		}
	}
}

// tried notes a way on which a chunk failed; the first ones and the last are
// kept.
func (o *op) tried(l *lane, reason string) {
	o.note(Attempt{Transport: l.transport, Path: l.path, Reason: reason})
}

func (o *op) note(a Attempt) {
	o.tries++
	if n := len(o.attempts); n > 0 && o.attempts[n-1] == a {
		return
	}
	if len(o.attempts) == maxAttempts {
		o.attempts = slices.Delete(o.attempts, maxAttempts/2, maxAttempts/2+1)
	}
	o.attempts = append(o.attempts, a)
}

// takeLanded takes out what has landed over an endpoint.
func (o *op) takeLanded(ch *channel) []*chunk {
	there, elsewhere := partition(o.landed, func(c *chunk) bool { return c.ch == ch })
	o.landed = elsewhere
	o.target.landed -= len(there)
	for _, c := range there {
		o.t.moved.Add(^(c.span.Length - 1)) // is less
	}
	return there
}

func (m *mover) hasLandedLocked(ch *channel) bool {
	for o := range m.live {
		if slices.ContainsFunc(o.landed, func(c *chunk) bool { return c.ch == ch }) {
			return true
		}
	}
	return false
}

// doneLocked takes in that a chunk has arrived, or that a flush is done.
func (m *mover) doneLocked(c *chunk) {
	c.ch.l.refusals = 0
	if c.flush != nil {
		c.flush.flushing--
		for _, x := range c.lands {
			if i := slices.Index(x.op.landed, x); i >= 0 {
				x.op.landed = slices.Delete(x.op.landed, i, i+1)
				x.op.target.landed--
			}
		}
		for _, x := range c.lands {
			m.settleLocked(x.op)
		}
		m.flushLocked(c.flush) // what has landed since, even if those have all failed
		return
	}
	o := c.op
	o.posted--
	o.t.moved.Add(c.span.Length)
	c.ch.carried.moved.Add(c.span.Length)
	if o.kind == sdk.Write && c.ch.limits.NeedsFlush && o.err == nil {
		o.landed = append(o.landed, c)
		o.target.landed++
	}
	if m.s.e.watch.troubled.Load() {
		m.s.e.watch.succeeded(m.healthKey(c.ch.l), c.ch.begun)
	}
	m.settleLocked(o)
}

// refusedLocked deals with a chunk of which no byte was touched, for a reason of
// the transport's.
func (m *mover) refusedLocked(c *chunk, why error) {
	ch := c.ch
	code := sdk.CodeOf(why)
	if code == sdk.Backpressure {
		ch.blockedUntil = time.Now().Add(retryTransport)
	}
	if c.flush != nil {
		if code == sdk.Backpressure {
			ch.flushes = append(ch.flushes, c)
			return
		}
		// Without a flush nobody knows what is visible: all of it again.
		ch.flushes = append(ch.flushes, c)
		m.closeLocked(ch)
		return
	}
	m.s.e.stats.chunks[chunkNotPosted].Add(1)
	o := c.op
	if code == sdk.InvalidArgument && o.event != nil {
		m.backLocked(c, 0, sdk.Errorf(sdk.InvalidArgument, "transport %s refused it: its event is not an interprocess event of a process that lives: %w", ch.l.transport, why))
		return
	}
	switch code {
	case sdk.Backpressure:
		m.backLocked(c, 0, nil)
		return
	case sdk.StaleCapability, sdk.InvalidArgument:
		m.s.unknown(ch.inst, o.key)
		if o.err == nil {
			o.posted--
			o.spans = append(o.spans, c.span)
			o.stale = why
			m.settleLocked(o)
		} else {
			m.backLocked(c, 0, nil)
		}
		return
	case sdk.Refused:
		m.backLocked(c, 0, sdk.Errorf(sdk.Refused, "transport %s refused it: %w", ch.l.transport, why))
		return
	}
	o.tried(ch.l, "not posted: "+errorText(why))
	if code == sdk.Closed {
		// The endpoint has ended, as all of a dead plugin's have at once. Each
		// ends once; it says nothing of the piece.
		m.closeLocked(ch)
		m.backLocked(c, 0, nil)
		return
	}
	m.backLocked(c, ch.l.id, nil)
	if code != sdk.Unsupported {
		m.laneRefusedLocked(ch.l, time.Now(), errorText(why))
	}
}

// backLocked makes a chunk unsent again, or has its op fail. A lane that it
// failed on is avoided, and counts against the op's budget.
func (m *mover) backLocked(c *chunk, lane uint64, fail error) {
	o := c.op
	o.posted--
	if lane != 0 {
		c.span.Tries++
		c.span.Avoid = lane
		m.s.e.stats.chunks[chunkRepeated].Add(1)
		if o.err == nil && fail == nil && c.span.Tries >= m.s.e.cfg.Transfer.OpBudget {
			fail = sdk.Errorf(sdk.Unavailable, "%d bytes at %#x failed %d times (transfer.op_budget)", c.span.Length, o.address+c.span.Offset, c.span.Tries)
		}
	}
	if fail != nil {
		m.failLocked(o, fail)
	}
	if o.err == nil {
		o.spans = append(o.spans, c.span)
		m.enqueueLocked(o)
	}
	m.settleLocked(o)
}

func (m *mover) enqueueLocked(o *op) { m.queue.add(o) }

// staleLocked deals with an op of which nothing is under way, and whose region
// a transport does not know. If that is news the descriptor is asked for, once,
// and the op goes on if the same region is still in it, or, as long as no byte
// of it has moved, if another is at its place. Otherwise it fails.
func (m *mover) staleLocked(o *op) {
	if o.asking {
		return
	}
	why := o.stale
	if o.refreshed {
		m.failLocked(o, sdk.Errorf(sdk.StaleCapability, "the provider does not know the region any more: %w", why))
		return
	}
	o.refreshed, o.asking = true, true
	m.s.e.tasks.Go(func() {
		_, err := m.s.refresh(m.s.e.ctx)
		m.mu.Lock()
		defer m.mu.Unlock()
		o.asking, o.stale = false, nil
		if o.err != nil {
			return // it has failed meanwhile
		}
		if err == nil {
			err = m.resolveAgainLocked(o)
		}
		if err != nil {
			m.failLocked(o, sdk.Errorf(sdk.StaleCapability, "%w, and its descriptor was of no help: %w", why, err))
		} else {
			m.enqueueLocked(o)
		}
		m.pumpLocked()
	})
}

// resolveAgainLocked finds the op's range in the latest descriptor.
func (m *mover) resolveAgainLocked(o *op) error {
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	was := o.key
	r, err := s.resolveLocked(o)
	if err != nil {
		return err
	}
	if r.key == was {
		s.leases.Release(was) // it has one already
		return nil
	}
	if left := spanned(o.spans); left != o.length {
		s.leases.Release(r.key)
		return sdk.Errorf(sdk.StaleCapability, "region %s is another's place now, after %d of %d bytes", was.c.Short(), o.length-left, o.length)
	}
	s.leases.Release(was)
	o.take(r)
	return nil
}

func spanned(spans []spread.Span) (n uint64) {
	for _, s := range spans {
		n += s.Length
	}
	return n
}

// failLocked has an op fail: no more of it is sent, and it ends once what is
// under way has.
func (m *mover) failLocked(o *op, err error) {
	if o.err == nil {
		o.err = err
		now := time.Now()
		o.settleBy, o.giveUp = now.Add(settleOps), now.Add(settleOps+fenceTime)
	}
	m.seeLocked(o.settleBy)
	o.target.landed -= len(o.landed)
	o.spans, o.landed = nil, nil
	m.settleLocked(o)
}

// restLocked keeps count of the target's ops that have something to be moved.
func (o *op) restLocked() {
	rests := o.ended || o.err != nil || len(o.spans) == 0 && o.posted == 0 && o.stale == nil
	if rests != o.rests {
		o.rests = rests
		o.target.moving += 1 - 2*boolean(rests)
	}
}

// settleLocked ends an op if nothing of it is under way.
func (m *mover) settleLocked(o *op) {
	o.restLocked()
	switch {
	case o.posted > 0:
		m.flushLocked(o.target) // one that has failed keeps no others waiting
	case o.ended:
		m.doneWithLocked(o) // it was reported before
	case o.err != nil:
		m.doneWithLocked(o)
	case o.stale != nil:
		m.staleLocked(o)
	case len(o.spans) == 0 && len(o.landed) == 0:
		m.doneWithLocked(o)
	case len(o.spans) == 0:
		m.flushLocked(o.target)
	}
}

// endLocked reports an op's end.
func (m *mover) endLocked(o *op) {
	if o.ended {
		return
	}
	o.ended = true
	var err *OpError
	if o.err != nil {
		code := sdk.CodeOf(o.err)
		switch {
		case o.unknown || o.posted > 0:
			code = OutcomeUnknown
		case !o.touched:
			code = NotSent
		}
		err = &OpError{Index: o.index, Peer: o.target.segment.name, Code: code, Cause: o.err, Attempts: o.attempts, Tried: o.tries}
	}
	o.t.opEnded(o, err)
	if _, ok := m.live[o]; ok {
		m.unresolvedLocked(1, err)
	}
	o.restLocked()
	m.flushLocked(o.target)
}

// doneWithLocked gives back what an op has, once nothing can touch it, and
// reports it unless it was: whoever hears of its end finds its own memory free,
// and the peer's is not given up before.
func (m *mover) doneWithLocked(o *op) {
	if _, ok := m.live[o]; !ok {
		return
	}
	delete(m.live, o)
	if o.ended {
		m.unresolvedLocked(-1, nil)
	}
	m.s.e.memory.leases.Release(o.local)
	m.endLocked(o)
	m.s.release(o.key)
	if m.dead != nil && len(m.live) == 0 {
		m.s.e.tasks.Go(m.s.fade)
	}
}

// uses reports whether ops are under way, reported ones included.
func (m *mover) uses() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.live) > 0
}

// flushLocked makes what has landed of a target visible, once all of it has.
func (m *mover) flushLocked(g *target) {
	if g.flushing > 0 || g.moving > 0 || g.landed == 0 {
		return
	}
	by := map[*channel][]*chunk{}
	var order []*channel
	for _, o := range g.ops {
		for _, c := range o.landed {
			if by[c.ch] == nil {
				order = append(order, c.ch)
			}
			by[c.ch] = append(by[c.ch], c)
		}
	}
	for _, ch := range order {
		g.flushing++
		ch.flushes = append(ch.flushes, &chunk{flush: g, lands: by[ch]})
		m.again = true
	}
}

// die ends everything: the provider's life is over.
func (m *mover) die(cause error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = cause
	for _, o := range m.liveLocked() {
		m.failLocked(o, cause)
	}
	for _, l := range m.all {
		l.connecting = nil
	}
	for ch := range m.channelsLocked() {
		m.closeLocked(ch)
	}
	m.armLocked(time.Now())
}

// abort reports what is left: the transports are gone, and nobody will confirm
// anything any more.
func (m *mover) abort() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.liveLocked() {
		m.failLocked(o, sdk.Errorf(sdk.Closed, "the engine was closed"))
		m.endLocked(o)
		if !m.self() { // a copy ends by itself
			// A transport's process may live, and use what the op has: Region.Close
			// waits for that, whereas nothing ends the op's leases any more.
			m.doneWithLocked(o)
		}
	}
	m.timer.Stop()
}

// cancel has ops fail.
func (m *mover) cancel(ops []*op, cause error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range ops {
		if _, ok := m.live[o]; ok {
			m.failLocked(o, cause)
		}
	}
	m.refillLocked()
}
