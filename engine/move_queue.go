package engine

import (
	"container/heap"
	"slices"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// turns are a mover's ops of which something is unsent. They take turns in the
// order in which they came, but for those that have to wait: what one op waits
// for all of its group do, so that one look at a group is enough, however many
// ops it has, and those of other groups pass it.
type turns struct {
	groups map[groupKey]*group
	heap   groupHeap // to be looked at
	// Those that were looked at in vain, until something changes: full wait for
	// room, stuck for something else.
	full, stuck groupHeap
	last        uint64
}

// groupKey is all that says which ways an op can take.
type groupKey struct {
	remote bufferKey
	local  *Region
	avoid  uint64 // a lane
}

// group is ops that are alike; there is none without any.
type group struct {
	key  groupKey
	ops  []turn
	kept int  // of ops, when ended ones were taken out last
	full bool // a way takes them, and had no room
	// Where no way takes them: since when none could, and whether the descriptor
	// was asked for because of that, and that is over.
	ableAt          time.Time
	asked, upToDate bool
}

type turn struct {
	o      *op
	number uint64
}

// add queues an op, unless it is.
func (q *turns) add(o *op) {
	k := groupKey{o.key, o.local, o.spans[0].Avoid}
	if o.group != nil && o.group.key == k {
		return
	}
	g := q.groups[k]
	if g == nil {
		if q.groups == nil {
			q.groups = map[groupKey]*group{}
		}
		g = &group{key: k}
		q.groups[k] = g
	}
	q.last++
	o.group = g // where it was before, it is passed over
	g.ops = append(g.ops, turn{o, q.last})
	if len(g.ops) == 1 {
		heap.Push(&q.heap, g)
	}
}

// next is the op whose turn it is, and its group, or nil.
func (q *turns) next() (*op, *group) {
	for len(q.heap) > 0 {
		g := q.heap[0]
		if o := g.ops[0].o; o.group == g {
			if len(o.spans) > 0 && o.err == nil && o.stale == nil {
				return o, g
			}
			o.group = nil
		}
		q.drop(g)
	}
	return nil, nil
}

// take takes the op out whose turn it is.
func (q *turns) take() {
	g := q.heap[0]
	g.ops[0].o.group = nil
	q.drop(g)
}

func (q *turns) drop(g *group) {
	g.ops[0].o = nil
	if g.ops = g.ops[1:]; len(g.ops) > 0 {
		heap.Fix(&q.heap, 0)
		return
	}
	heap.Pop(&q.heap)
	delete(q.groups, g.key)
}

// setAside takes the first group out of turn, which was looked at in vain.
func (q *turns) setAside() {
	g := heap.Pop(&q.heap).(*group)
	g.tidy()
	if g.full {
		heap.Push(&q.full, g)
	} else {
		heap.Push(&q.stuck, g)
	}
}

// room has the first groups looked at that wait for room.
func (q *turns) room() {
	for n := 0; n < maxWaiting && len(q.full) > 0; n++ {
		heap.Push(&q.heap, heap.Pop(&q.full))
	}
}

// maxWaiting is how many groups of ops are looked at where there may be room: all
// would be for each outcome.
const maxWaiting = 64

// all has all groups looked at.
func (q *turns) all() { q.again(func(*group) bool { return true }) }

// of has the groups of one region at the peer looked at.
func (q *turns) of(k bufferKey) { q.again(func(g *group) bool { return g.key.remote == k }) }

func (q *turns) again(which func(g *group) bool) {
	for _, waiting := range []*groupHeap{&q.full, &q.stuck} {
		*waiting = slices.DeleteFunc(*waiting, func(g *group) bool {
			yes := which(g)
			if yes {
				q.heap = append(q.heap, g)
			}
			return yes
		})
		heap.Init(waiting)
	}
	heap.Init(&q.heap)
}

// tidy takes out ops that have ended behind one that waits, where many may have.
func (g *group) tidy() {
	if len(g.ops) < 2*g.kept+maxWaiting {
		return
	}
	ops := make([]turn, 0, len(g.ops))
	for i, x := range g.ops {
		if i == 0 || x.o.group == g && x.o.err == nil {
			ops = append(ops, x)
		}
	}
	g.ops, g.kept = ops, len(ops)
}

// able takes in that a way can carry the group's ops, or will.
func (g *group) able(o *op, now time.Time) {
	o.ableAt, g.ableAt, g.asked, g.upToDate = now, now, false, false
}

// groupHeap is by whose first op came first.
type groupHeap []*group

func (h groupHeap) Len() int           { return len(h) }
func (h groupHeap) Less(i, j int) bool { return h[i].ops[0].number < h[j].ops[0].number }
func (h groupHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *groupHeap) Push(x any)        { *h = append(*h, x.(*group)) }
func (h *groupHeap) Pop() any {
	last := len(*h) - 1
	g := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return g
}

// strandedLocked deals with an op that no way takes now. If none could at any
// time the descriptor may be out of date: it is asked for once.
func (m *mover) strandedLocked(o *op, g *group, now time.Time) {
	if err := m.s.e.watch.allow(m.s.a.address, now); err != nil && !m.connectedLocked() {
		m.failLocked(o, err)
		return
	}
	if g.ableAt.Equal(now) {
		return
	}
	if m.demandsLocked(o) {
		g.ableAt = now
		return
	}
	if !g.asked && !o.refreshed {
		g.asked, g.ableAt = true, now
		m.s.e.tasks.Go(func() {
			_, _ = m.s.refresh(m.s.e.ctx)
			m.mu.Lock()
			g.upToDate = true
			m.mu.Unlock()
			m.stir()
		})
		return
	}
	waited := min(now.Sub(g.ableAt), now.Sub(o.ableAt))
	hopeless := g.upToDate && !m.s.e.transports.mayMove(o) // no transport here comes back that could
	if !hopeless && waited < strandedFor || m.cutOffLocked(o) {
		return
	}
	for _, l := range m.all { // those, too, whose transport may be starting again
		if l.reaches(o) && waited < registeringFor {
			return
		}
		if l.reaches(o) {
			m.failLocked(o, sdk.Errorf(sdk.Unavailable, "no transport that both sides run has the region now"))
			return
		}
	}
	m.failLocked(o, sdk.Errorf(sdk.Unsupported, "no transport that both sides run moves %v memory to or from %v memory: %s", o.local.region.Kind, o.buffer.Kind, m.unfit()))
}
