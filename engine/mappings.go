package engine

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// The states of a mapping.
const (
	// MappingUsed: ops are under way.
	MappingUsed = "used"
	// MappingIdle: a transport knows the region, and may map it.
	MappingIdle = "idle"
	// MappingUnresolved: an op ended with an unknown outcome, and it is not
	// known yet that nothing touches the memory any more.
	MappingUnresolved = "unresolved"
	// MappingLeaving: it is being given up.
	MappingLeaving = "leaving"
	// MappingHeld: the region is withdrawn here, and a consumer has not said
	// that it has given it up: [Region.Close] waits for it.
	MappingHeld = "held"
)

// MappingStatus is a region of one engine's as another one uses it.
type MappingStatus struct {
	// Consumer says that this engine is the consumer, and Peer the provider;
	// otherwise it is the other way round.
	Consumer bool
	// Peer is the other engine's address, Incarnation its life.
	Peer        string
	Incarnation Incarnation
	// Capability is the beginning of the region's, for people; Address and
	// Length are the region's, where they are known.
	Capability      string
	Address, Length uint64
	// State is one of those above.
	State string
	// Leases is how many ops of this engine's use the region.
	Leases int
	// Transports are those here that know the region, as consumer.
	Transports []string
	// Heard is when the peer last said anything of it, as provider.
	Heard time.Time
}

// Mappings lists what this engine's transports know of peers' regions, and
// which of its own regions are withdrawn and still held by peers.
func (e *Engine) Mappings() []MappingStatus {
	var list []MappingStatus
	m := &e.memory
	m.mu.Lock()
	for _, x := range m.readers {
		for r := range x.holds {
			list = append(list, MappingStatus{
				Peer: x.name, Incarnation: x.incarnation, Capability: r.capability.Short(), Address: r.region.Base,
				Length: r.region.Length, State: MappingHeld, Heard: x.heard,
			})
		}
	}
	sources := append(m.sourcesLocked(), slices.Collect(maps.Keys(m.fading))...)
	m.mu.Unlock()
	for _, s := range sources {
		list = append(list, s.mappings()...)
	}
	slices.SortFunc(list, func(a, b MappingStatus) int {
		return cmp.Or(cmp.Compare(a.Peer, b.Peer), cmp.Compare(boolean(a.Consumer), boolean(b.Consumer)),
			cmp.Compare(a.Address, b.Address), cmp.Compare(a.Capability, b.Capability))
	})
	return list
}

func (s *source) mappings() (list []MappingStatus) {
	unresolved := s.mover.unresolvedBy()
	s.mu.Lock()
	defer s.mu.Unlock()
	by := map[bufferKey]*MappingStatus{}
	get := func(k bufferKey) *MappingStatus {
		x := by[k]
		if x == nil {
			x = &MappingStatus{
				Consumer: true, Peer: s.a.address, Incarnation: s.incarnation, Capability: k.c.Short(), Address: k.base,
				State: MappingIdle, Leases: s.leases.Held(k),
			}
			if s.desc != nil {
				for i := range s.desc.Buffers {
					if b := &s.desc.Buffers[i]; keyOf(b, s.desc.Version) == k {
						x.Address, x.Length = b.Base, b.Length
					}
				}
			}
			by[k] = x
		}
		return x
	}
	for k := range s.told {
		x := get(k.buffer)
		x.Transports = append(x.Transports, k.inst.Description.Name)
		slices.Sort(x.Transports)
	}
	for k := range s.leaving {
		get(k).State = MappingLeaving
	}
	for k, o := range unresolved {
		x := get(k)
		x.State, x.Address, x.Length = MappingUnresolved, o.address, o.length
	}
	for _, x := range by {
		if x.State == MappingIdle && x.Leases > 0 {
			x.State = MappingUsed
		}
		list = append(list, *x)
	}
	return list
}

// unresolvedBy returns an op of unknown outcome of each region that has one.
func (m *mover) unresolvedBy() map[bufferKey]*op {
	m.mu.Lock()
	defer m.mu.Unlock()
	by := map[bufferKey]*op{}
	for o := range m.live {
		if o.ended {
			by[o.key] = o
		}
	}
	return by
}

// RetireMappings is an operator's word about a peer, named by its address or by
// the beginning of its incarnation, at least eight digits: as a consumer it is
// gone, and holds none of this engine's regions; as a provider it gets its
// regions back, where no op uses them. Said of a consumer that is not gone it
// breaks what [Region.Close] promises. It returns how many mappings that were.
func (e *Engine) RetireMappings(ctx context.Context, peer string) (int, error) {
	if _, err := e.ready(ctx, "retire mappings"); err != nil {
		return 0, err
	}
	n, known := 0, false
	m := &e.memory
	m.mu.Lock()
	for i, x := range m.readers {
		if means(peer, x.name, i) {
			known = true
			n += len(x.holds)
			m.gates.shut(i)
			clear(x.holds)
			if x.undead || x.silentFor(m.e, time.Now()) >= m.e.silence() {
				delete(m.readers, i) // what it may map besides is not waited for either
			}
			m.signalLocked()
		}
	}
	sources := m.sourcesLocked()
	m.mu.Unlock()
	for _, s := range sources {
		if means(peer, s.a.address, s.incarnation) {
			known = true
			n += s.shed()
		}
	}
	if !known {
		return 0, sdk.Errorf(sdk.InvalidArgument, "retire mappings: no peer %q has or gave any: name it by its address, or by eight digits of its incarnation or more, as the list of mappings shows them", peer)
	}
	e.log.Warn("mappings retired by request", "peer", peer, "mappings", n)
	return n, nil
}

// means reports whether an operator's name is that of a peer.
func means(peer, address string, i Incarnation) bool {
	return peer == address || len(peer) >= len(i.Short()) && strings.HasPrefix(i.String(), peer)
}

// unresolvedTo counts the ops of unknown outcome to a peer.
func (m *memory) unresolvedTo(peer string) (n int) {
	for _, s := range m.everySource() {
		if means(peer, s.a.address, s.incarnation) {
			n += s.mover.unresolved()
		}
	}
	return n
}

// everySource lists those that live, and those of which something is in use.
func (m *memory) everySource() []*source {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append(m.sourcesLocked(), slices.Collect(maps.Keys(m.fading))...)
}

// shed gives up every region that no op uses, and returns how many that were.
func (s *source) shed() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shedLocked()
}

func (s *source) shedLocked() (n int) {
	for k := range s.told {
		if s.leases.Held(k.buffer) == 0 {
			n++
			s.forgetLocked(k)
		}
	}
	return n
}

// SegmentStatus is what a peer publishes, as far as it is known here.
type SegmentStatus struct {
	// Version is the descriptor's, 0 if none was read; Latest is the latest
	// that there is, as far as is known.
	Version, Latest uint64
	Buffers         int
	// Opens is how many handles are open, Ops how many ops are under way.
	Opens, Ops int
	// Endpoints lists the endpoints for memory.
	Endpoints []string
}

// status tells what a source has.
func (s *source) status() SegmentStatus {
	endpoints, ops := s.mover.status()
	s.mu.Lock()
	defer s.mu.Unlock()
	x := SegmentStatus{Latest: s.newest, Opens: s.opens, Ops: ops, Endpoints: endpoints}
	if s.desc != nil {
		x.Version, x.Buffers = s.desc.Version, len(s.desc.Buffers)
	}
	return x
}

func (m *mover) status() (endpoints []string, ops int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for ch := range m.channelsLocked() {
		endpoints = append(endpoints, Attempt{Transport: ch.l.transport, Path: ch.l.path}.way())
	}
	slices.Sort(endpoints)
	return endpoints, len(m.live)
}
