package engine

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/health"
	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/engine/internal/spread"
	"github.com/hawser-transport/hawser/sdk"
)

// channel is the active end of an endpoint for memory: the chunks that were
// given to it and have no outcome, and the handler of what comes from it. The
// mover's lock guards it; m, l, generation and inst are constant.
type channel struct {
	m          *mover
	l          *lane
	generation uint64
	inst       *pluginhost.Instance
	remote     uint64 // the peer's instance
	limits     sdk.MoveLimits
	carried    *transportCounters

	se      sdk.Endpoint // nil until Connect has returned
	begun   time.Time
	ended   bool
	stalled bool      // and is ended for that
	closing bool      // nothing new goes over it, and it is to be ended
	retired time.Time // since when its lane has another one

	last         uint64 // id
	posted       map[uint64]*chunk
	ops          int
	bytes        uint64
	oldest       uint64    // id of what was posted first, of what has no outcome
	moved        time.Time // since when that is the oldest
	blockedUntil time.Time
	frames       []sdk.Frame
	flushes      []*chunk // to be posted
	lost         []*chunk // posted, with the outcome that nothing is known
}

// chunk is a piece of an op that was given to an endpoint, or a flush.
type chunk struct {
	op   *op // nil for a flush
	span spread.Span
	ch   *channel
	// flush is the target whose landed chunks on the endpoint it makes
	// visible, and lands are those.
	flush *target
	lands []*chunk
}

// retryTransport is how long an endpoint that took nothing is left alone.
const retryTransport = 2 * time.Millisecond

// stalledAfter is how long the chunk that an endpoint has had for longest may be
// without an outcome, from when those before it had theirs, and slowest is how
// many bytes of it a second give it more time: then the endpoint is ended, and
// its chunks are fenced. Outcomes of later ones say nothing of it: they come in
// any order.
const (
	stalledAfter = 5 * time.Second
	slowest      = 16 << 20
)

func (ch *channel) canSend(now time.Time) bool {
	return !ch.closing && !ch.ended && !now.Before(ch.blockedUntil)
}

// post gives a chunk its frame.
func (ch *channel) post(c *chunk, now time.Time) {
	c.ch = ch
	ch.last++
	ch.posted[ch.last] = c
	if ch.ops == 0 {
		ch.oldest, ch.moved = ch.last, now
	}
	ch.ops++
	ch.bytes += c.span.Length
	o, from := c.op, c
	x := sdk.Op{}
	if c.flush != nil {
		x.Kind, from = sdk.Flush, c.lands[len(c.lands)-1]
		o = from.op
	} else {
		x.Kind, x.Local, x.LocalOffset, x.Event = o.kind, o.local.capability, o.localOffset+c.span.Offset, o.event
	}
	x.Remote, x.RemoteBase, x.RemoteOffset, x.Length = o.key.c, o.buffer.Base, o.offset+from.span.Offset, from.span.Length
	ch.frames = append(ch.frames, sdk.Frame{ID: ch.last, Data: x.Append(make([]byte, 0, sdk.MaxOpFrame))})
	ch.m.s.e.stats.chunks[chunkPosted].Add(1)
}

// takeLocked takes a chunk out.
func (ch *channel) takeLocked(id uint64) *chunk {
	c := ch.posted[id]
	if c == nil {
		ch.m.s.e.stats.Nonsense.Add(1)
		return nil
	}
	delete(ch.posted, id)
	ch.ops--
	ch.bytes -= c.span.Length
	if id == ch.oldest {
		ch.moved = time.Now()
		for ch.ops > 0 && ch.posted[ch.oldest] == nil {
			ch.oldest++
		}
	}
	return c
}

// stallsAt is when an endpoint with chunks is taken for stalled.
func (ch *channel) stallsAt() time.Time {
	size := time.Duration(ch.posted[ch.oldest].span.Length)
	return ch.moved.Add(stalledAfter + size*time.Second/slowest)
}

// awaits reports whether an op on the endpoint may be waiting for its event.
func (ch *channel) awaits() bool {
	for _, c := range ch.posted {
		if c.op != nil && c.op.event != nil {
			return true
		}
	}
	return false
}

// takenLocked deals with what the transport did not take: it never left.
func (m *mover) takenLocked(ch *channel, frames []sdk.Frame, n int, err error) {
	if n < 0 || n > len(frames) {
		n = len(frames) // nonsense from an in-process transport: assume the worst
	}
	if n == len(frames) || ch.ended {
		return // Ended has dealt with all
	}
	for _, f := range frames[n:] {
		if c := ch.takeLocked(f.ID); c != nil {
			m.refusedLocked(c, err)
		}
	}
	if sdk.CodeOf(err) != sdk.Backpressure {
		m.closeLocked(ch) // it takes nothing more
	}
}

// Completed is the transport's report of outcomes.
func (ch *channel) Completed(cs []sdk.Completion) {
	m := ch.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if ch.ended {
		return
	}
	for _, x := range cs {
		c := ch.takeLocked(x.ID)
		switch {
		case c == nil:
		case x.Outcome == sdk.Done:
			m.doneLocked(c)
		case x.Outcome == sdk.NotPosted:
			m.refusedLocked(c, x.Code)
		default:
			// It may be carried out later: only the endpoint's end says
			// that it will not.
			ch.lost = append(ch.lost, c)
			m.s.e.stats.chunks[chunkUnknown].Add(1)
			m.closeLocked(ch)
		}
	}
	m.refillLocked()
}

// Received is not for endpoints for memory.
func (ch *channel) Received([][]byte) { ch.m.s.e.stats.Nonsense.Add(1) }

// closeLocked has the transport end an endpoint. Its chunks wait for that. If it
// may take as long as an application likes, its lane has another one meanwhile.
func (m *mover) closeLocked(ch *channel) {
	if ch.closing || ch.ended {
		return
	}
	ch.closing, m.wide = true, true
	if l := ch.l; l.ch == ch && ch.awaits() {
		l.ch, l.retiring = nil, append(l.retiring, ch)
		l.retryAt = time.Now().Add(m.s.e.spread(reconnectMin))
	}
	if ch.se != nil {
		m.s.e.tasks.Go(ch.se.Close)
	}
}

// Ended is the transport's last word: everything without an outcome is fenced.
func (ch *channel) Ended(err error) {
	own := ownWord(ch.inst, err)
	m := ch.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if !ch.ended && !ch.closing && m.dead == nil && m.s.e.ctx.Err() == nil {
		// The peer may have died with it, and nothing else may tell.
		m.s.e.tasks.Go(func() { _, _ = m.s.refresh(m.s.e.ctx) })
	}
	m.endedLocked(ch, err, own)
	m.pumpLocked()
}

func (m *mover) endedLocked(ch *channel, err error, own bool) {
	if ch.ended {
		return
	}
	ch.ended = true
	now := time.Now()
	l := ch.l
	l.retiring = slices.DeleteFunc(l.retiring, func(x *channel) bool { return x == ch })
	reason := "ended"
	if err != nil {
		reason = err.Error()
	}
	current := l.ch == ch
	if current {
		l.ch = nil
		if now.Sub(ch.begun) >= laneRetry {
			l.failures = 0
		}
		m.laneFailedLocked(l, now, reason)
	}
	if current || ch.closing && ch.retired.IsZero() { // closeLocked has taken it out
		kind := health.EndKind(err)
		if ch.stalled {
			kind = health.EndpointEnded // that was its own doing
		}
		m.blameLocked(l, health.Failure{Kind: kind, Began: ch.begun})
	}
	chunks := ch.lost
	for _, id := range slices.Sorted(maps.Keys(ch.posted)) {
		chunks = append(chunks, ch.posted[id])
	}
	chunks = append(chunks, ch.flushes...)
	ch.posted, ch.lost, ch.flushes, ch.ops, ch.bytes = nil, nil, nil, 0, 0
	m.fencingLocked(ch, chunks, reason, own)
}

// connectLocked starts connecting a lane.
func (m *mover) connectLocked(l *lane, now time.Time) {
	if l.connecting != nil || l.ch != nil || now.Before(l.retryAt) || m.dead != nil || m.s.e.ctx.Err() != nil {
		return
	}
	if err := m.s.e.watch.allow(m.s.a.address, now); err != nil {
		m.laneFailedLocked(l, now, err.Error())
		m.again = true // another way, or none
		return
	}
	l.generation = m.s.e.generations.next(l.generation)
	ch := &channel{
		m: m, l: l, generation: l.generation, inst: l.inst, remote: l.remote, limits: l.limits, begun: now,
		carried: m.s.e.stats.of(l.transport),
		posted:  map[uint64]*chunk{},
	}
	l.connecting = ch
	t := m.s.a.memoryTarget(l.laneKey, l.attrs, l.generation)
	m.s.e.tasks.Go(func() { ch.connect(t) })
}

// connect is one attempt, like those of frames.
func (ch *channel) connect(t sdk.Target) {
	a, e := ch.m.s.a, ch.m.s.e
	ctx, cancel := context.WithTimeout(e.ctx, e.cfg.RPC.BootstrapTimeout())
	defer cancel()
	req := control.BootstrapRequest{
		From: t.Local, To: t.Peer, Transport: ch.l.transport, FromInstance: ch.inst.ID, ToInstance: ch.remote,
		Path: t.Path, Generation: t.Generation, Use: t.Use, Lane: t.Lane,
	}
	var peerErr error
	var newest uint64
	se, err := ch.inst.Mover.Connect(ctx, t, func(ctx context.Context, offer []byte) ([]byte, error) {
		req.Offer = offer
		reply, err := a.client.Bootstrap(ctx, req)
		if newest = reply.Newest; err == nil && newest != 0 {
			err = sdk.Errorf(sdk.Busy, "bootstrap: generation %d is %w than %d", t.Generation, errOutdated, newest)
		}
		peerErr = err
		return reply.Answer, err
	}, ch)
	if err != nil && peerErr != nil {
		err = peerErr
	}
	if err != nil && !a.lost(err) && errors.Is(err, sdk.PeerRestarted) {
		a.die(sdk.Errorf(sdk.PeerRestarted, "the peer at %s is a new incarnation", a.address))
	}
	if errors.Is(err, sdk.SessionUnknown) {
		_ = a.greetAgain(ctx)
	}
	if !ch.connected(se, newest, err) && se != nil {
		se.Close()
	}
}

// connected takes in what came of the attempt, and reports whether its endpoint
// is used.
func (ch *channel) connected(se sdk.Endpoint, newest uint64, err error) bool {
	m, l := ch.m, ch.l
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.pumpLocked()
	now := time.Now()
	ch.se = se
	l.generation = max(l.generation, newest)
	if l.connecting != ch {
		return false // another instance's turn, or the provider's end
	}
	l.connecting = nil
	switch {
	case err == nil && !ch.ended && !ch.closing && m.dead == nil:
		l.ch, l.trouble, l.outdated = ch, "", 0
		ch.begun = now
		m.s.e.stats.moves[moveConnected].Add(1)
		return true
	case errors.Is(err, errOutdated) && l.outdated < maxOutdated:
		l.outdated++
		return false // the pump tries again, with a newer one
	}
	if err == nil {
		err = sdk.Errorf(sdk.Unavailable, "ended while connecting")
	}
	m.laneFailedLocked(l, now, "connect: "+err.Error())
	m.blameLocked(l, health.Failure{Kind: health.ConnectKind(err, silent(err)), Began: ch.begun})
	m.s.e.log.Debug("endpoint for memory not connected", "peer", m.s.a.peer(), "transport", l.transport, "path", l.path, "error", err)
	return false
}

// reapLocked ends replaced endpoints on which nothing is under way, or that take
// too long.
func (m *mover) reapLocked(now time.Time) {
	for _, l := range m.all {
		for _, ch := range l.retiring {
			if ch.ops == 0 && len(ch.flushes) == 0 && !m.hasLandedLocked(ch) || now.Sub(ch.retired) >= retireFor {
				m.closeLocked(ch)
			}
		}
	}
}
