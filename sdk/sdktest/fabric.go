package sdktest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// FabricOptions shape a fabric. The zero value is a fabric named "memory" with
// one path.
type FabricOptions struct {
	// Name is the transports' name in Describe. Default "memory". Use
	// one fabric per name to test with several transports.
	Name string
	// Paths are the names of the paths between any two nodes, best first.
	// Default: one, "p0".
	Paths []string
	// Limits go into Describe, and are enforced.
	Limits sdk.Limits
	// ArriveTimeout is how long an accepted endpoint waits for its peer.
	// Default 5 s.
	ArriveTimeout time.Duration
	// StallTimeout ends an endpoint, with Unavailable, that has had
	// unfinished frames over a cut link or with a frozen peer for this long.
	// Default 0: never; what was held is delivered after Heal.
	StallTimeout time.Duration
	// Exclusive makes Describe say that the device cannot be shared.
	Exclusive bool
	// Moves makes the transports implement [sdk.Mover], for host memory, with
	// TargetWrites. Move goes into Describe, and is enforced: with NeedsFlush
	// a write that is Done is carried out at the next flush or read of its
	// endpoint, or at its end, or 10 ms later.
	Moves bool
	Move  sdk.MoveLimits
	// NoFrames leaves FeatureNotify out.
	NoFrames bool
}

// Fabric is a network in memory: nodes that reach each other over named
// paths, until a test cuts, delays or kills them. Delivery over one endpoint
// is in order and exactly once; frames over a cut are held.
//
// It uses only channels, mutexes and timers, so it runs in fake time in a
// testing/synctest bubble, if it was made there.
//
// In all methods an empty node or path matches every one.
type Fabric struct {
	opt FabricOptions

	mu       sync.Mutex
	serial   uint64
	members  map[string]*member // by address
	pending  map[uint64]*conn   // accepted, waiting for its peer
	conns    map[*conn]struct{}
	links    rules[bool] // true: cut
	delays   rules[time.Duration]
	frozen   map[string]bool
	held     map[string]bool // nodes that do not carry out writes
	unfenced bool            // an end does not stop what was held: a defect
	lax      bool            // Connect takes any generation, so that Accept has to refuse
	lost     map[lost]bool
	changed  chan struct{} // closed and replaced when a link may have healed
	counters FabricCounters
}

// FabricCounters tell what a fabric did, so that a test can prove that its
// fault had an effect.
type FabricCounters struct {
	// Delivered counts frames that reached the other end's transport.
	Delivered uint64
	// Held counts frames, receipts and calls that met a cut or a frozen node.
	Held uint64
	// Ended counts ends of endpoints that End, Kill and StallTimeout caused.
	Ended uint64
	// Moved counts ops that were carried out, Late those writes among them
	// that were so although the end that sent them had ended.
	Moved, Late uint64
}

// NewFabric makes a network without nodes.
func NewFabric(opt FabricOptions) *Fabric {
	if opt.Name == "" {
		opt.Name = "memory"
	}
	opt.Paths = slices.Clone(opt.Paths)
	if len(opt.Paths) == 0 {
		opt.Paths = []string{"p0"}
	}
	if opt.ArriveTimeout == 0 {
		opt.ArriveTimeout = 5 * time.Second
	}
	opt.Limits = opt.Limits.WithDefaults()
	opt.Move.TargetWrites = true
	opt.Move = opt.Move.WithDefaults()
	return &Fabric{
		opt:     opt,
		members: map[string]*member{},
		pending: map[uint64]*conn{},
		conns:   map[*conn]struct{}{},
		frozen:  map[string]bool{},
		held:    map[string]bool{},
		lost:    map[lost]bool{},
		changed: make(chan struct{}),
	}
}

// New makes a transport of the named node, not yet configured. A node may have
// several at a time, as during a replacement, and a new one after Kill. The
// transport implements [sdk.Notifier], [sdk.Mover], [sdk.Prober] and [sdk.Drainer]; to
// pluginhost it looks like a process that can crash (Kill) and hang (Freeze).
func (f *Fabric) New(node string) sdk.Transport {
	m := &member{f: f, node: node, killed: make(chan struct{})}
	m.life, m.end = context.WithCancelCause(context.Background())
	return m
}

// Cut stops everything from one node to another, one way, and holds it.
func (f *Fabric) Cut(from, to, path string) { f.setLink(from, to, path, true) }

// CutBoth is Cut in both directions.
func (f *Fabric) CutBoth(a, b, path string) {
	f.Cut(a, b, path)
	f.Cut(b, a, path)
}

// Heal undoes Cut, one way. What was held is delivered.
func (f *Fabric) Heal(from, to, path string) { f.setLink(from, to, path, false) }

// HealBoth is Heal in both directions.
func (f *Fabric) HealBoth(a, b, path string) {
	f.Heal(a, b, path)
	f.Heal(b, a, path)
}

func (f *Fabric) setLink(from, to, path string, cut bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.links.set(from, to, path, cut)
	f.changedLocked()
}

// Delay makes everything sent from now on take d, one way, in order.
func (f *Fabric) Delay(from, to, path string, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delays.set(from, to, path, d)
}

// Freeze stops a node's transports as SIGSTOP would: Send still takes frames,
// and nothing else happens until Thaw. Closing a frozen transport works.
func (f *Fabric) Freeze(node string) { f.setFrozen(node, true) }

// Thaw undoes Freeze.
func (f *Fabric) Thaw(node string) { f.setFrozen(node, false) }

func (f *Fabric) setFrozen(node string, frozen bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.frozen[node] = frozen
	if node == "" && !frozen {
		clear(f.frozen)
	}
	f.changedLocked()
}

// End ends every endpoint between two nodes over a path, at both ends, with
// Unavailable, as a path's death would. It returns how many ends there were.
// What was under way is lost; its outcome is Unknown.
func (f *Fabric) End(a, b, path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.endLocked(a, b, path)
}

func (f *Fabric) endLocked(a, b, path string) int {
	n := 0
	for _, c := range f.connsLocked() {
		if !c.joins(a, b, path) {
			continue
		}
		err := sdk.Errorf(sdk.Unavailable, "path %s between %s and %s died", c.path, c.ends[0].node(), c.ends[1].node())
		c.dropLocked()
		for _, e := range c.ends {
			if e.endLocked(err, true) {
				n++
			}
		}
	}
	f.counters.Ended += uint64(n)
	return n
}

// Kill ends all instances of a node as a crash of its plugin would: its
// endpoints end with PluginExited, its peers' with Unavailable, receipts under
// way are lost, and further calls fail with PluginExited. It returns how many
// instances there were.
func (f *Fabric) Kill(node string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, m := range f.membersLocked() {
		if node == "" || m.node == node {
			m.dieLocked()
			n++
		}
	}
	return n
}

// Endpoints returns how many ends of endpoints a node has.
func (f *Fabric) Endpoints(node string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, m := range f.membersLocked() {
		if node == "" || m.node == node {
			n += len(m.ends)
		}
	}
	return n
}

// Counters returns what the fabric did so far.
func (f *Fabric) Counters() FabricCounters {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counters
}

// changedLocked looks again at everything that a cut or a frozen node may
// hold, or does no longer.
func (f *Fabric) changedLocked() {
	f.wakeLocked()
	for _, c := range f.connsLocked() {
		for side := range c.lanes {
			c.advanceLocked(side)
			if e := c.ends[side]; e != nil {
				e.watchStallLocked()
			}
		}
	}
	for _, m := range f.membersLocked() {
		for _, e := range m.endsLocked() {
			e.signal()
		}
	}
}

// wakeLocked lets all calls look again that wait for something.
func (f *Fabric) wakeLocked() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// connsLocked, like those below, are in an order that does not depend on chance.
func (f *Fabric) connsLocked() []*conn {
	return slices.SortedFunc(maps.Keys(f.conns), func(a, b *conn) int { return cmp.Compare(a.token, b.token) })
}

func (f *Fabric) membersLocked() []*member {
	return slices.SortedFunc(maps.Values(f.members), func(a, b *member) int { return cmp.Compare(a.addr, b.addr) })
}

func (m *member) endsLocked() []*end {
	return slices.SortedFunc(maps.Keys(m.ends), func(a, b *end) int {
		return cmp.Or(cmp.Compare(a.c.token, b.c.token), cmp.Compare(a.side, b.side))
	})
}

func (f *Fabric) cutLocked(from, to, path string) bool {
	return f.links.get(from, to, path) || f.frozenLocked(from) || f.frozenLocked(to)
}

func (f *Fabric) frozenLocked(node string) bool { return f.frozen[node] || f.frozen[""] }

// rules map links to values; the last rule that matches decides.
type rules[V any] []rule[V]

type rule[V any] struct {
	from, to, path string
	value          V
}

func (r rule[V]) covers(from, to, path string) bool {
	return (r.from == "" || r.from == from) && (r.to == "" || r.to == to) && (r.path == "" || r.path == path)
}

// set adds a rule and removes those that can no longer decide.
func (rs *rules[V]) set(from, to, path string, v V) {
	added := rule[V]{from, to, path, v}
	kept := slices.DeleteFunc(*rs, func(old rule[V]) bool { return added.covers(old.from, old.to, old.path) })
	*rs = append(kept, added)
}

func (rs rules[V]) get(from, to, path string) (v V) {
	for _, r := range slices.Backward(rs) {
		if r.covers(from, to, path) {
			return r.value
		}
	}
	return v
}
