package engine

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/descriptor"
	"github.com/hawser-transport/hawser/engine/internal/lease"
	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
)

// source is what this engine, as a consumer, has of one life of a provider: its
// descriptor, who uses which of its regions, what the transports were told of
// them, and the mover that transfers to and from it. It ends with the life, or
// when it was not used for long.
type source struct {
	e           *Engine
	a           *association
	incarnation Incarnation
	leases      lease.Table[bufferKey]
	mover       mover
	life        context.Context // ends with it
	end         context.CancelFunc

	mu    sync.Mutex
	dead  error
	opens int // segments
	// desc is the latest descriptor that is known; it is replaced, never
	// changed. newest is the latest version that there is, as far as is known.
	desc   *descriptor.Descriptor
	newest uint64
	// flight is the fetch under way, next the one after it: who needs what is
	// true now cannot use an answer that was given before.
	flight, next *flight
	told         map[announceKey]*announcement
	// withdrawn are regions that are not in the descriptor of that version any
	// more, where that is later than the one that is known.
	withdrawn map[bufferKey]uint64
	leaving   map[bufferKey]int // withdrawals under way
	// parting are those by instance, and whether it has refused one already.
	parting map[announceKey]bool
}

// bufferKey is a region's identity: its capability, or, at older providers, its
// place in one version of the descriptor.
type bufferKey struct {
	c             sdk.Capability
	base, version uint64
}

func keyOf(b *descriptor.Buffer, version uint64) bufferKey {
	if !b.Capability.IsZero() {
		return bufferKey{c: b.Capability}
	}
	return bufferKey{base: b.Base, version: version}
}

// flight is one fetch of the descriptor.
type flight struct {
	done chan struct{}
	desc *descriptor.Descriptor
	err  error
}

// describeEvery is how often the provider is asked whether its descriptor has
// changed: its word for that may get lost.
const describeEvery = 10 * time.Second

func newSource(e *Engine, a *association) *source {
	s := &source{
		e: e, a: a, incarnation: a.node.Load().Incarnation,
		told: map[announceKey]*announcement{}, withdrawn: map[bufferKey]uint64{}, leaving: map[bufferKey]int{},
		parting: map[announceKey]bool{},
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.mover.init(s)
	return s
}

func (s *source) alive() bool { return s.life.Err() == nil }

// close is one user less. With the last one goes what transports know of the
// peer's regions, and of those that ops still use once these have ended.
func (s *source) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opens--
	s.shedUnusedLocked()
}

// release gives an op's lease back.
func (s *source) release(k bufferKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases.Release(k)
	s.shedUnusedLocked()
}

func (s *source) shedUnusedLocked() {
	if s.opens == 0 {
		s.shedLocked()
	}
}

// current returns the latest descriptor, asking for it if need be.
func (s *source) current(ctx context.Context) (*descriptor.Descriptor, error) {
	s.mu.Lock()
	d := s.freshLocked()
	s.mu.Unlock()
	if d != nil {
		return d, nil
	}
	return s.refresh(ctx)
}

// freshLocked is the descriptor, unless there is a later one.
func (s *source) freshLocked() *descriptor.Descriptor {
	if s.desc != nil && s.desc.Version >= s.newest {
		return s.desc
	}
	return nil
}

// refresh returns a descriptor that was asked for after the call. Concurrent
// callers share the question.
func (s *source) refresh(ctx context.Context) (*descriptor.Descriptor, error) {
	s.mu.Lock()
	if s.dead != nil {
		defer s.mu.Unlock()
		return nil, s.dead
	}
	f := s.askLocked()
	s.mu.Unlock()
	select {
	case <-f.done:
		return f.desc, f.err
	case <-s.life.Done():
		return nil, s.cause()
	case <-ctx.Done():
		what := "the descriptor of " + s.a.peer()
		return nil, ended(ctx, what+" did not come in time", "cancelled before "+what+" came")
	}
}

// askLocked returns the next fetch, which begins now unless one is under way.
func (s *source) askLocked() *flight {
	f := s.next
	if f == nil {
		f = &flight{done: make(chan struct{})}
		if s.flight == nil {
			s.flyLocked(f)
		} else {
			s.next = f
		}
	}
	return f
}

func (s *source) cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dead
}

func (s *source) flyLocked(f *flight) {
	s.flight = f
	s.e.tasks.Go(func() {
		f.desc, f.err = s.fetch()
		s.mu.Lock()
		s.flight = nil
		if next := s.next; next != nil {
			s.next = nil
			s.flyLocked(next)
		}
		s.mu.Unlock()
		close(f.done)
		s.mover.stir() // what waited for it
	})
}

// fetch asks the provider. A failed call changes nothing.
func (s *source) fetch() (*descriptor.Descriptor, error) {
	s.mu.Lock()
	known := uint64(0)
	if s.desc != nil {
		known = s.desc.Version
	}
	s.mu.Unlock()
	req := control.DescribeRequest{From: s.e.incarnation, To: s.incarnation, Known: known}
	reply, err := s.a.client.Describe(s.e.ctx, req)
	if errors.Is(err, sdk.SessionUnknown) {
		// It has forgotten us: hello makes it know us again.
		if err = s.a.greetAgain(s.e.ctx); err == nil {
			reply, err = s.a.client.Describe(s.e.ctx, req)
		}
	}
	s.e.stats.descriptors[descFetched+boolean(err != nil)].Add(1)
	if err != nil {
		if !s.a.lost(err) && errors.Is(err, sdk.PeerRestarted) {
			s.a.die(sdk.Errorf(sdk.PeerRestarted, "the peer at %s is a new incarnation", s.a.address))
		}
		return nil, err
	}
	var d *descriptor.Descriptor
	if reply.Version != known {
		if d, err = descriptor.Parse(reply.Descriptor); err != nil {
			return nil, sdk.Errorf(sdk.Refused, "the peer at %s: %w", s.a.address, err)
		}
		if d.Provider != s.incarnation || d.Version != reply.Version {
			return nil, sdk.Errorf(sdk.Refused, "the peer at %s sent the descriptor of another", s.a.address)
		}
	}
	s.a.inUse()
	s.mu.Lock()
	defer s.mu.Unlock()
	if d != nil && (s.desc == nil || d.Version > s.desc.Version) {
		s.replaceLocked(d)
	}
	return s.desc, nil
}

// replaceLocked makes d the descriptor. What is not in it any more gets no new
// lease, and once nobody has one the transports are told.
func (s *source) replaceLocked(d *descriptor.Descriptor) {
	old := s.desc
	s.desc, s.newest = d, max(s.newest, d.Version)
	maps.DeleteFunc(s.withdrawn, func(_ bufferKey, version uint64) bool { return version <= d.Version })
	if old == nil {
		return
	}
	kept := map[bufferKey]bool{}
	for i := range d.Buffers {
		kept[keyOf(&d.Buffers[i], d.Version)] = true
	}
	for i := range old.Buffers {
		if k := keyOf(&old.Buffers[i], old.Version); !kept[k] {
			s.retireLocked(k)
		}
	}
}

// retireLocked has the transports told of a region that gets no new lease. Its
// provider may ask for that again and again, by its capability.
func (s *source) retireLocked(k bufferKey) {
	if !k.c.IsZero() && s.leaving[k] > 0 || !s.toldLocked(k) && s.leases.Held(k) == 0 {
		return
	}
	s.leaving[k]++
	s.e.tasks.Go(func() {
		select {
		case <-s.leases.Idle(k):
		case <-s.life.Done(): // then all is taken back
		case <-s.e.ctx.Done():
		}
		s.mu.Lock()
		for key := range s.told {
			if key.buffer == k {
				s.forgetLocked(key)
			}
		}
		s.mu.Unlock()
		s.left(k)
	})
}

// watch asks for changes while somebody uses the source.
func (s *source) watch() {
	tick := time.NewTicker(describeEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.life.Done():
			return
		case <-s.e.ctx.Done():
			return
		}
		s.e.freeze.Awake()
		s.mu.Lock()
		use := s.opens > 0 || len(s.told) > 0
		s.mu.Unlock()
		if use {
			_, _ = s.refresh(s.e.ctx) // the next one may succeed
		}
	}
}

// Invalidate takes in that a provider's descriptor has changed, and tells which
// of the regions that it has withdrawn are still in use.
func (h *answers) Invalidate(ctx context.Context, req control.InvalidateRequest) (reply control.InvalidateReply, err error) {
	if req.To != (Incarnation{}) && req.To != h.e.incarnation { // older peers do not say
		return control.InvalidateReply{}, notHere("invalidate", req.To, h.e.incarnation)
	}
	for _, s := range h.e.memory.lives(req.From) { // without one nothing of it is here
		if by := control.Caller(ctx); by != s.a.identity {
			return control.InvalidateReply{}, h.e.impostor(notTheirs("invalidate", req.From, s.a.identity, by))
		}
		leased, err := s.invalidated(req.Version, req.Withdrawn)
		if err != nil {
			return control.InvalidateReply{}, err
		}
		for _, c := range leased {
			if !slices.Contains(reply.Leased, c) {
				reply.Leased = append(reply.Leased, c)
			}
		}
	}
	return reply, nil
}

// maxWithdrawn bounds what is remembered of withdrawals until the descriptor
// without them is read, against a provider that never lets it be.
const maxWithdrawn = 1 << 14

func (s *source) invalidated(version uint64, withdrawn []sdk.Capability) (leased []sdk.Capability, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.withdrawn)+len(withdrawn) > maxWithdrawn {
		return nil, sdk.Errorf(sdk.Busy, "invalidate: %d withdrawals are waiting for a descriptor", len(s.withdrawn))
	}
	if version > s.newest {
		s.newest = version
		if s.dead == nil && s.opens > 0 {
			s.askLocked()
		}
	}
	for _, c := range withdrawn {
		k := bufferKey{c: c}
		if s.desc == nil || s.desc.Version < version {
			s.withdrawn[k] = version
		}
		s.retireLocked(k)
		if s.leases.Held(k) > 0 || s.leaving[k] > 0 {
			leased = append(leased, c)
		}
	}
	return leased, nil
}

// die ends the source: its provider's life is over, or is not followed any
// more. Nobody waits for a successor: what the transports hold of it is taken
// back at once.
func (s *source) die(cause error) {
	s.mu.Lock()
	if s.dead != nil {
		s.mu.Unlock()
		return
	}
	s.dead = cause
	s.end()
	taken := map[*pluginhost.Instance][]bufferKey{}
	for k, x := range s.told {
		s.leaving[k.buffer]++
		if !x.calls { // otherwise the call's end does it
			taken[k.inst] = append(taken[k.inst], k.buffer)
		}
	}
	clear(s.told)
	s.mu.Unlock()
	m := &s.e.memory
	m.mu.Lock()
	m.fading[s] = struct{}{}
	if m.sources[s.incarnation] == s {
		delete(m.sources, s.incarnation)
	}
	m.mu.Unlock()
	s.mover.die(cause)
	for inst, regions := range taken {
		s.e.tasks.Go(func() {
			s.takeBack(inst, sdk.Capability{})
			s.left(regions...)
		})
	}
	s.fade()
}

// resolved is what an op's range was found to be, with a lease.
type resolved struct {
	key     bufferKey
	offset  uint64
	buffer  *descriptor.Buffer
	version uint64
}

// resolveLocked finds an op's range in the descriptor, and takes a lease on the
// region. StaleCapability says that a later descriptor might have it.
func (s *source) resolveLocked(o *op) (resolved, error) {
	if s.dead != nil {
		return resolved{}, s.dead
	}
	d := s.desc
	b, err := d.Find(o.address, o.length, o.pin)
	if err != nil {
		return resolved{}, err
	}
	if o.kind == sdk.Write && !b.Writable {
		return resolved{}, sdk.Errorf(sdk.Refused, "the region at %#x was registered read-only", b.Base)
	}
	if o.event != nil && o.local.region.Kind == sdk.HostMemory && b.Kind == sdk.HostMemory {
		return resolved{}, sdk.Errorf(sdk.Unsupported, "its event is a GPU's, and neither side is a GPU's memory: wait for the event before the op is submitted")
	}
	k := keyOf(b, d.Version)
	if _, ok := s.withdrawn[k]; ok {
		return resolved{}, sdk.Errorf(sdk.StaleCapability, "capability %s is withdrawn", b.Capability.Short())
	}
	s.leases.Acquire(k)
	return resolved{k, o.address - b.Base, b, d.Version}, nil
}

// sweep gives up regions that were not used for memory.mapping_idle_secs, and
// the source if nobody has it open.
func (s *source) sweep(now time.Time) {
	idle := s.e.cfg.Memory.MappingIdle()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opens == 0 {
		idle = 0
	}
	for k, x := range s.told {
		if s.leases.Held(k.buffer) == 0 && now.Sub(x.used) >= idle {
			s.forgetLocked(k)
			s.e.stats.MappingIdle.Add(1)
		}
	}
}

// lost forgets what an instance was told that is gone.
func (s *source) lost(inst *pluginhost.Instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.told {
		if k.inst == inst {
			s.forgetLocked(k) // its process may run, and have it mapped, until it is gone
		}
	}
}
