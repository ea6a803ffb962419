package engine

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/health"
	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/engine/internal/spread"
	"github.com/hawser-transport/hawser/sdk"
)

// mover moves ops between this engine and one life of a provider. An op is cut
// into chunks when there is room for one, and each chunk takes its own way:
//
//	          room                    Done
//	unsent ----------> posted ------------------------> done
//	  ^                |  |  Done, and not visible yet   ^
//	  |    NotPosted   |  +------------> landed ---------+ flush is Done
//	  +----------------+                   |
//	  |                | Unknown, or its   | its endpoint
//	  |                | endpoint ended    | ended
//	  |  fenced        v                   |
//	  +------------- fencing <-------------+
//	  |                |
//	  v                v
//	failed           unknown: not fenced within the op's time
//
// unsent: no byte of it can be touched; it is a span of its op. posted: a
// transport has it. landed: every byte is where it belongs, but may not be
// visible. fencing: it may have been carried out, may never be, or may be later:
// until its endpoint's fence is confirmed it is neither repeated nor its op
// reported as ended. failed: as unsent, but its op has failed. An op ends when
// none of its chunks is posted or fencing; one that cannot wait any longer ends
// as OutcomeUnknown, and what it uses stays leased until the fence is confirmed.
//
// The lock is per provider. It is held neither across a call of a transport nor
// to the peer; it may be taken while an association's is held, and the source's
// may be taken under it. Frames leave through pumpLocked alone, by one goroutine
// at a time.
type mover struct {
	s *source

	mu     sync.Mutex
	dead   error
	lanes  map[laneKey]*lane
	all    []*lane // as they came to be known
	order  []*lane // those that can be used, best first
	cut    []route // transports that both sides run, and have no path now
	lastID uint64  // of a lane
	serial uint64  // of an op

	queue    turns // ops with something unsent
	live     map[*op]struct{}
	reported int // of live, those that have ended as OutcomeUnknown
	pumping  bool
	again    bool // there may be more to do than the pump has seen
	wide     bool // and that may be for any op
	ways     []spread.Way
	opsDue   time.Time // when the next op has to end, or is given up, at the earliest
	timer    *time.Timer
	armed    time.Time
}

// lane is one endpoint for memory, or the place of one: a transport's path, and
// one of the endpoints that may be beside each other there.
type lane struct {
	laneKey
	id          uint64
	rank, index int // of the transport, of the path
	inst        *pluginhost.Instance
	remote      uint64 // the peer's instance
	attrs       sdk.Attributes
	limits      sdk.MoveLimits
	generation  uint64 // the highest seen

	ch         *channel // connected, or nil
	connecting *channel
	retiring   []*channel // that have a successor, or may have one
	failures   int
	refusals   int // of pieces, since one was carried
	outdated   int
	retryAt    time.Time
	trouble    string
}

func (m *mover) init(s *source) {
	m.s, m.lanes, m.live = s, map[laneKey]*lane{}, map[*op]struct{}{}
	m.timer = time.AfterFunc(time.Hour, m.tick)
	m.timer.Stop()
}

// routed takes in which transports lead to the provider; stir follows. A lane keeps its
// generations; one whose instance, here or there, has a successor is connected
// anew, and what is under way over the old endpoint ends there.
func (m *mover) routed(routes []route) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.order, m.cut = m.order[:0], m.cut[:0]
	for _, r := range routes {
		if r.local.inst.Mover == nil {
			continue
		}
		known := len(m.order)
		limits := r.local.inst.Description.Move.WithDefaults()
		for i, path := range r.paths {
			if slices.Contains(r.remote.Down, path) {
				continue
			}
			for n := range limits.Parallel {
				k := laneKey{r.local.name, path, n}
				l := m.lanes[k]
				if l == nil {
					m.lastID++
					l = &lane{laneKey: k, id: m.lastID}
					m.lanes[k] = l
					m.all = append(m.all, l)
				}
				if l.inst != r.local.inst || l.remote != r.remote.Instance {
					m.replaceLocked(l)
					l.failures, l.refusals, l.retryAt = 0, 0, now
				}
				l.inst, l.remote, l.attrs, l.limits = r.local.inst, r.remote.Instance, r.remote.Attributes, limits
				l.rank, l.index = r.local.rank, i
				m.order = append(m.order, l)
			}
		}
		if len(m.order) == known {
			m.cut = append(m.cut, r)
		}
	}
	slices.SortStableFunc(m.order, func(a, b *lane) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.index, b.index), cmp.Compare(a.lane, b.lane))
	})
	for _, l := range m.all {
		if !slices.Contains(m.order, l) {
			m.replaceLocked(l)
		}
	}
	m.pruneLocked()
}

// maxLanes bounds what is remembered of lanes to one peer, whose paths the peer
// has a say in.
const maxLanes = 512

// pruneLocked forgets lanes that are neither in use nor listed any more.
func (m *mover) pruneLocked() {
	if len(m.all) <= maxLanes {
		return
	}
	m.all = slices.DeleteFunc(m.all, func(l *lane) bool {
		if l.ch != nil || len(l.retiring) > 0 || slices.Contains(m.order, l) {
			return false
		}
		delete(m.lanes, l.laneKey)
		return true
	})
}

// replaceLocked lets a lane's endpoint finish, with nothing new.
func (m *mover) replaceLocked(l *lane) {
	l.connecting = nil // what is under way belongs to what was
	if l.ch != nil {
		l.retiring = append(l.retiring, l.ch)
		l.ch.retired = time.Now()
		l.ch = nil
	}
}

// retire returns how many endpoints of an instance that is being replaced are
// still in use.
func (m *mover) retire(inst *pluginhost.Instance) (busy int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.all {
		if l.inst == inst && l.ch != nil {
			m.replaceLocked(l)
			m.again = true
		}
		for _, ch := range l.retiring {
			if ch.inst == inst {
				busy++
			}
		}
	}
	m.pumpLocked()
	return busy
}

// liveLocked is every op that holds something, in an order that does not depend
// on chance.
func (m *mover) liveLocked() []*op {
	return slices.SortedFunc(maps.Keys(m.live), func(a, b *op) int { return cmp.Compare(a.serial, b.serial) })
}

// submit takes ops that were resolved.
func (m *mover) submit(ops []*op) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range ops {
		m.serial++
		o.serial = m.serial
		m.live[o] = struct{}{}
		o.target.moving++
		m.seeLocked(o.t.deadline)
		if m.dead != nil {
			m.failLocked(o, m.dead)
		} else {
			m.enqueueLocked(o)
		}
	}
	m.refillLocked() // the others wait for the same as before
}

// stir looks again: something has changed that is not the mover's own.
func (m *mover) stir() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pumpLocked()
}

// announced looks again at what waited for an announcement of a region.
func (m *mover) announced(k bufferKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queue.of(k)
	m.refillLocked()
}

// pumpLocked posts what there is room for. The lock is released while a
// transport takes frames; what comes meanwhile is posted by this goroutine, too.
func (m *mover) pumpLocked() {
	m.wide = true
	m.refillLocked()
}

// refillLocked is pumpLocked where nothing has changed but that there may be
// room, or new ops.
func (m *mover) refillLocked() {
	if m.self() {
		m.copyQueuedLocked()
		return
	}
	m.again = true
	if m.pumping {
		return
	}
	m.pumping = true
	var now time.Time
	for m.again {
		m.again = false
		now = time.Now()
		m.reapLocked(now)
		for _, ch := range m.fillLocked(now) {
			frames := ch.frames
			ch.frames = nil
			m.mu.Unlock()
			n, err := ch.se.Send(frames, false)
			m.mu.Lock()
			m.takenLocked(ch, frames, n, err)
			m.again = true
		}
	}
	m.pumping = false
	m.armLocked(now) // of the last look: what fell due since then is not past
}

// channelsLocked is every endpoint that is connected, replaced ones included.
func (m *mover) channelsLocked() iter.Seq[*channel] {
	return func(yield func(*channel) bool) {
		for _, l := range m.all {
			if l.ch != nil && !yield(l.ch) {
				return
			}
			for _, ch := range slices.Clone(l.retiring) {
				if !yield(ch) {
					return
				}
			}
		}
	}
}

// maxBatchOps bounds what one endpoint is given before another's turn.
const maxBatchOps = 64

// fillLocked makes frames of what can be posted, and returns the endpoints that
// have some. Ops take turns, a chunk at a time, so that a small one does not
// wait for all of a large one, nor one that can go for those that cannot.
func (m *mover) fillLocked(now time.Time) (full []*channel) {
	add := func(ch *channel) {
		if len(ch.frames) == 1 {
			full = append(full, ch)
		}
	}
	for ch := range m.channelsLocked() {
		for len(ch.flushes) > 0 && ch.ops < ch.limits.Inflight && ch.canSend(now) {
			f := ch.flushes[0]
			ch.flushes = ch.flushes[1:]
			ch.post(f, now)
			add(ch)
		}
	}
	if m.wide {
		m.queue.all()
	} else {
		m.queue.room()
	}
	m.wide = false
	for o, g := m.queue.next(); o != nil; o, g = m.queue.next() {
		ch := m.placeLocked(o, g, now)
		switch {
		case ch != nil:
			m.queue.take()
			if len(o.spans) > 0 {
				m.enqueueLocked(o)
			}
			add(ch)
		case o.err == nil:
			m.queue.setAside()
		}
		if ch != nil && len(ch.frames) >= maxBatchOps {
			m.again = true
			break
		}
	}
	return full
}

// placeLocked posts the next chunk of an op, if there is a way with room, and
// returns its endpoint.
func (m *mover) placeLocked(o *op, g *group, now time.Time) *channel {
	ch, stranded := m.chooseLocked(o, g, now)
	if stranded {
		m.strandedLocked(o, g, now) // may end it, and so need the source's lock
	}
	return ch
}

// chooseLocked is placeLocked under the source's lock, too. It reports whether no
// way takes the op now.
func (m *mover) chooseLocked(o *op, g *group, now time.Time) (ch *channel, stranded bool) {
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	g.full = false
	o.followLocked(s)
	span := o.spans[0]
	size := uint64(s.e.cfg.Transfer.ChunkBytes)
	able := m.waysLocked(o, span, now, true)
	c := spread.Choose(m.ways, span.Length, size)
	if c.Send < 0 && !c.Wait && able {
		// All that can are paused: their pauses are for when there is a choice.
		m.waysLocked(o, span, now, false)
		c = spread.Choose(m.ways, span.Length, size)
	}
	for c.Send >= 0 {
		l := m.order[c.Send]
		switch s.announcedLocked(l, o, now) {
		case learns:
			return nil, false
		case declines:
			m.ways[c.Send].Shunned = true
			c = spread.Choose(m.ways, span.Length, size)
			continue
		}
		if c.Connect >= 0 {
			m.connectLocked(m.order[c.Connect], now)
		}
		piece, rest := span.Cut(spread.Size(&m.ways[c.Send], span.Length, size))
		o.spans[0] = rest
		if rest.Length == 0 {
			o.spans = o.spans[1:]
		}
		o.posted, o.touched = o.posted+1, true
		g.able(o, now)
		l.ch.post(&chunk{op: o, span: piece}, now)
		return l.ch, false
	}
	if c.Connect >= 0 {
		m.connectLocked(m.order[c.Connect], now)
	}
	if able || c.Wait {
		g.able(o, now)
	}
	g.full = c.Wait
	return nil, !c.Wait
}

// waysLocked fills m.ways for a span, and reports whether any way can carry it.
// Paused ones are shunned if heed says so. The source's lock is held, too.
func (m *mover) waysLocked(o *op, span spread.Span, now time.Time, heed bool) (able bool) {
	m.ways = m.ways[:0]
	rank, last := -1, -1
	for _, l := range m.order {
		if l.rank != last {
			last, rank = l.rank, rank+1
		}
		w := spread.Way{
			Transport: rank, MaxOp: uint64(l.limits.MaxOp), MaxOps: l.limits.Inflight, MaxBytes: uint64(l.limits.InflightBytes),
			Avoid:   span.Avoid == l.id,
			Able:    l.reaches(o) && o.local.knownTo(l.inst) && o.buffer.Way(l.transport, l.remote) != nil,
			Shunned: now.Before(l.retryAt) || heed && m.s.e.watch.pausedUntil(m.healthKey(l), now).After(now),
		}
		switch {
		case l.ch != nil && !l.ch.closing:
			w.State, w.Ops, w.Bytes = spread.Up, l.ch.ops, l.ch.bytes
			if !l.ch.canSend(now) {
				w.Ops = w.MaxOps
			}
		case l.ch != nil || l.connecting != nil:
			w.State = spread.Connecting
			// One that is being ended, or takes long, is not waited for.
			w.Shunned = w.Shunned || l.ch != nil || now.Sub(l.connecting.begun) >= m.s.e.cfg.Notification.SlotWait()
		}
		able = able || w.Able
		m.ways = append(m.ways, w)
	}
	return able
}

const (
	// strandedFor is how long an op waits for a transport that reaches both
	// kinds of memory, and registeringFor for one that has both regions, or had
	// until now: it may just have been restarted, and a GPU's takes seconds.
	strandedFor    = 2 * time.Second
	registeringFor = 10 * time.Second
	// laneRetry is the longest wait before a lane is connected again.
	laneRetry = 5 * time.Second
)

// unfit says of each transport why it does not move what none does.
func (m *mover) unfit() string {
	var reasons []string
	for _, err := range m.s.e.transports.notUp() {
		reasons = append(reasons, err.Error())
	}
	for _, l := range m.s.e.transports.up() {
		reason := "does not reach such memory"
		if !slices.ContainsFunc(m.all, func(x *lane) bool { return x.transport == l.name }) {
			reason = "the peer does not run it, or has no path"
		}
		reasons = append(reasons, "transport "+l.name+": "+reason)
	}
	return strings.Join(reasons, "; ")
}

// reaches reports whether the lane's transport moves between such memories.
func (l *lane) reaches(o *op) bool { return reaches(l.limits, o) }

func reaches(limits sdk.MoveLimits, o *op) bool {
	return slices.Contains(limits.Local, o.local.region.Kind) && slices.Contains(limits.Remote, o.buffer.Kind)
}

func (m *mover) connectedLocked() bool {
	for _, l := range m.order {
		if l.ch != nil && !l.ch.closing {
			return true
		}
	}
	return false
}

func (m *mover) healthKey(l *lane) health.Key {
	return health.Key{Peer: m.s.incarnation, Transport: l.transport, Path: l.path}
}

// blame takes in a failure of a lane's path, as for frames.
func (m *mover) blameLocked(l *lane, f health.Failure) {
	e := m.s.e
	switch {
	case m.dead != nil:
	case !health.Blame(f.Kind, f.Facts):
		e.stats.excused[excuse(f.Kind)].Add(1)
	case !f.Began.IsZero() && e.freeze.Since(f.Began):
		e.stats.voided[voidPathError].Add(1)
	default:
		e.stats.of(l.transport).errors[f.Kind-health.EndpointEnded].Add(1)
		e.watch.failed(m.healthKey(l), f)
	}
}

// laneFailedLocked paces the next attempt over a lane.
func (m *mover) laneFailedLocked(l *lane, now time.Time, reason string) {
	m.wide = true // what waited for it goes another way
	l.trouble, l.outdated = reason, 0
	l.retryAt = now.Add(m.s.e.spread(min(laneRetry, reconnectMin<<min(l.failures, 10))))
	l.failures++
}

// laneRefusedLocked leaves a lane alone whose transport refused a piece, longer
// each time until it carries one. What was posted before that says nothing more.
func (m *mover) laneRefusedLocked(l *lane, now time.Time, reason string) {
	if now.Before(l.retryAt) {
		return
	}
	m.wide = true
	l.trouble = reason
	l.retryAt = now.Add(m.s.e.spread(min(laneRetry, reconnectMin<<min(l.refusals, 10))))
	l.refusals++
}
