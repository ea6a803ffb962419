package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/descriptor"
	"github.com/hawser-transport/hawser/engine/internal/lease"
	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
)

// memory is all that an engine has to do with memory: its own regions and who
// reads them (here, region.go, descriptor.go), the endpoints over which peers
// reach them (fence.go), and what it knows and moves of its peers' (sources).
//
// Its lock guards the tables below. It is not taken for a piece of a transfer,
// and not held across a call of a transport or to a peer.
type memory struct {
	e     *Engine
	gates gates
	// leases are those of this engine's transfers on its own regions.
	leases lease.Table[*Region]

	mu      sync.Mutex
	regions []*Region // not released yet, oldest first
	// movers are the instances that regions are registered with.
	movers     []*pluginhost.Instance
	refusers   []*pluginhost.Instance // of them, those of which it was told that they refused a region
	version    uint64                 // of the descriptor
	body       []byte                 // the descriptor, nil if it has changed since
	tombstones []sdk.Capability
	readers    map[Incarnation]*reader
	sources    map[Incarnation]*source
	fading     map[*source]struct{} // dead, and something of them is still in use
	stirring   bool                 // all movers are to look again
	// changed is closed, and made anew, when something that Region.Close
	// waits for has happened.
	changed chan struct{}
}

// Bounds of what an engine registers.
const (
	maxRegions = descriptor.MaxBuffers
	// registerTimeout bounds a call that registers, announces or takes back a
	// region: pinning gigabytes takes its time.
	registerTimeout = 30 * time.Second
)

func (m *memory) init(e *Engine) {
	m.e, m.version, m.changed = e, 1, make(chan struct{})
	m.readers, m.sources, m.fading = map[Incarnation]*reader{}, map[Incarnation]*source{}, map[*source]struct{}{}
	m.gates.init(e)
}

// newCapability draws what nobody can guess.
func (e *Engine) newCapability() (c sdk.Capability) {
	for c.IsZero() {
		binary.LittleEndian.PutUint64(c[:8], e.random())
		binary.LittleEndian.PutUint64(c[8:], e.random())
	}
	return c
}

// signalLocked wakes who waits for a change.
func (m *memory) signalLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// add registers a new region with every instance that is up and publishes it.
// What no instance takes is refused.
func (m *memory) add(r *Region) error {
	m.mu.Lock()
	if m.e.closing.Load() {
		m.mu.Unlock()
		return sdk.Errorf(sdk.Closed, "register memory: the engine is closed")
	}
	if len(m.regions) >= maxRegions {
		m.mu.Unlock()
		return sdk.Errorf(sdk.Busy, "register memory: this engine has %d regions, the limit; close some", maxRegions)
	}
	r.m, r.capability, r.at = m, m.e.newCapability(), map[*pluginhost.Instance]*registration{}
	r.closing = make(chan struct{}, 1)
	r.known.Store(&[]*pluginhost.Instance{})
	m.regions = append(m.regions, r)
	movers := slices.Clone(m.movers)
	m.mu.Unlock()

	errs := make([]error, len(movers))
	var calls sync.WaitGroup
	for i, inst := range movers {
		calls.Go(func() { errs[i] = m.register(r, inst) })
	}
	calls.Wait()
	if len(movers) > 0 && !slices.Contains(errs, nil) {
		m.drop(r)
		return fmt.Errorf("register memory: no transport takes it: %w", errors.Join(append(errs, m.e.transports.notUp()...)...))
	}
	if err := m.publish(r); err != nil {
		m.drop(r)
		return err
	}
	return nil
}

// publish puts a region into the descriptor, unless that would be too large:
// one that a peer may have read of cannot be dropped any more.
func (m *memory) publish(r *Region) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch size := m.sizeLocked(); {
	case r.opts.Private:
		return nil
	case m.e.closing.Load(): // what is exported has been withdrawn by now
		return sdk.Errorf(sdk.Closed, "register memory: the engine is closed")
	case size > maxDescriptor:
		return sdk.Errorf(sdk.TooLarge, "register memory: the descriptor would have %d bytes, the limit is %d; register fewer, larger regions", size, maxDescriptor)
	}
	r.published = m.version + 1
	m.changedLocked()
	return nil
}

// drop forgets a region that is not to be used after all, and was not published.
// A transport may have it, also one whose answer was an error, or none in time.
func (m *memory) drop(r *Region) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.withdrawn = true
	m.removeLocked(r)
	m.goLocked(func() { _ = m.deregister(m.e.ctx, r) })
}

// goLocked is for calls of the application's, which may last until the engine
// has been closed: it starts nothing any more once Close waits for what runs.
func (m *memory) goLocked(f func()) {
	if m.e.ctx.Err() == nil { // close takes the lock after that
		m.e.tasks.Go(f)
	}
}

// lend takes a lease on a region for a transfer, unless it is being closed.
func (m *memory) lend(r *Region) bool {
	m.leases.Acquire(r)
	if r.shut.Load() { // set before Close waits
		m.leases.Release(r)
		return false
	}
	return true
}

// removeLocked forgets a region. Instances that have it keep it until they are
// told, or for as long as they live: nobody can name it.
func (m *memory) removeLocked(r *Region) {
	if i := slices.Index(m.regions, r); i >= 0 {
		m.regions = slices.Delete(m.regions, i, i+1)
	}
	m.signalLocked()
}

// registration is a region's with one instance.
type registration struct {
	done  chan struct{} // closed when the call has returned
	attrs sdk.Attributes
	err   error
}

// register makes a region known to an instance, once. It reports an error if
// the instance does not take it, or is gone.
func (m *memory) register(r *Region, inst *pluginhost.Instance) error {
	m.mu.Lock()
	if !slices.Contains(m.movers, inst) || r.withdrawn {
		m.mu.Unlock()
		return sdk.Errorf(sdk.Closed, "transport %s: this instance, or the region, is gone", inst.Name)
	}
	g := r.at[inst]
	if g != nil {
		m.mu.Unlock()
		<-g.done
		return g.err
	}
	g = &registration{done: make(chan struct{})}
	r.at[inst] = g
	m.mu.Unlock()

	attrs, err := m.hand(r, inst)
	m.mu.Lock()
	defer m.mu.Unlock()
	g.attrs, g.err = attrs, err
	close(g.done)
	m.e.stats.registers[boolean(err == nil)].Add(1)
	if err != nil {
		m.refusedLocked(r, inst, err)
	}
	r.knowLocked()
	if r.published != 0 {
		m.changedLocked()
	}
	m.stirLocked()
	return err
}

// stirLocked has ops looked at again that may have waited for a registration.
// Many may come at once.
func (m *memory) stirLocked() {
	if m.stirring {
		return
	}
	m.stirring = true
	m.goLocked(func() {
		m.mu.Lock()
		m.stirring = false
		sources := m.sourcesLocked()
		m.mu.Unlock()
		for _, s := range sources {
			s.mover.stir()
		}
	})
}

// hand makes the call.
func (m *memory) hand(r *Region, inst *pluginhost.Instance) (sdk.Attributes, error) {
	ctx, cancel := context.WithTimeout(m.e.ctx, registerTimeout)
	defer cancel()
	region, err := r.export()
	if err != nil {
		return nil, err
	}
	attrs, err := inst.Mover.Register(ctx, region)
	if err == nil {
		err = descriptor.CheckAttributes(attrs)
	}
	if err != nil {
		m.e.log.Debug("region not registered", "transport", inst.Name, "instance", inst.ID, "region", r.capability, "error", err)
		return nil, fmt.Errorf("transport %s: %w", inst.Name, err)
	}
	return attrs, nil
}

// cameUp registers everything with a new instance. A transport's observer calls
// it, so it does not wait.
func (m *memory) cameUp(inst *pluginhost.Instance) {
	if inst.Mover == nil {
		return
	}
	m.mu.Lock()
	m.movers = append(m.movers, inst)
	regions := slices.Clone(m.regions)
	m.mu.Unlock()
	if len(regions) == 0 {
		return
	}
	m.e.tasks.Go(func() {
		for _, r := range regions {
			_ = m.register(r, inst) // what it does not take is not published
		}
	})
}

// wentDown forgets an instance: what it had published is of no use any more.
func (m *memory) wentDown(inst *pluginhost.Instance) {
	if inst.Mover == nil {
		return
	}
	m.mu.Lock()
	i := slices.Index(m.movers, inst)
	if i < 0 {
		m.mu.Unlock()
		return
	}
	m.movers = slices.Delete(m.movers, i, i+1)
	m.refusers = slices.DeleteFunc(m.refusers, func(x *pluginhost.Instance) bool { return x == inst })
	for _, r := range m.regions {
		if _, ok := r.at[inst]; ok {
			delete(r.at, inst)
			r.knowLocked()
			if !isClosed(inst.Gone) {
				r.abandoned = slices.DeleteFunc(r.abandoned, func(x *pluginhost.Instance) bool { return isClosed(x.Gone) })
				r.abandoned = append(r.abandoned, inst) // it may still have it mapped
			}
		}
	}
	m.changedLocked()
	sources := m.sourcesLocked()
	m.mu.Unlock()
	for _, s := range sources {
		s.lost(inst)
	}
}

func (m *memory) sourcesLocked() []*source {
	list := make([]*source, 0, len(m.sources))
	for _, s := range m.sources {
		list = append(list, s)
	}
	return list
}

// all returns every source.
func (m *memory) all() []*source {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sourcesLocked()
}

// source returns what is known of a provider, or nil.
func (m *memory) source(i Incarnation) *source {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sources[i]
}

// uses reports whether ops on a provider's memory are under way.
func (m *memory) uses(i Incarnation) bool {
	return slices.ContainsFunc(m.lives(i), func(s *source) bool { return s.mover.uses() })
}

// retire moves transfers off an instance, and returns how many of its endpoints
// are still in use.
func (m *memory) retire(inst *pluginhost.Instance) int {
	if inst.Mover == nil {
		return 0
	}
	busy := m.gates.retire(inst)
	for _, s := range m.all() {
		busy += s.mover.retire(inst)
	}
	return busy
}

// ended takes in that an association has: its peer is dead, or has only been
// silent for so long that nothing is kept of it.
func (m *memory) ended(a *association, cause error) {
	n := a.node.Load()
	if n == nil {
		return
	}
	m.gates.shut(n.Incarnation)
	if !errors.Is(cause, errForgotten) && !errors.Is(cause, sdk.Closed) {
		m.forget(n.Incarnation)
	}
	if s := m.source(n.Incarnation); s != nil {
		s.die(cause)
		m.e.watch.forgetPeer(n.Incarnation) // what its endpoints have done since the association did
	}
}

// errForgotten is in the cause of an association's end that says nothing of the
// peer's, as does Closed, which is this engine's own end.
var errForgotten = errors.New("it is forgotten")

// lives returns what is left of a provider: its source, and those that are dead
// and still use something of it.
func (m *memory) lives(i Incarnation) (list []*source) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sources[i]; s != nil {
		list = append(list, s)
	}
	for s := range m.fading {
		if s.incarnation == i {
			list = append(list, s)
		}
	}
	return list
}

// sweep gives up what was not used for long.
func (m *memory) sweep(now time.Time) {
	m.gates.sweep()
	m.sweepReaders(now)
	for _, s := range m.all() {
		s.sweep(now)
	}
}

// close ends what is left once the transports have stopped, and gives the
// files back. Mappings stay until their regions are closed.
func (m *memory) close() {
	for _, s := range m.all() {
		s.die(sdk.Errorf(sdk.Closed, "the engine was closed"))
	}
	m.mu.Lock()
	fading := slices.Collect(maps.Keys(m.fading))
	m.mu.Unlock()
	for _, s := range fading {
		s.mover.abort()
	}
	m.settle()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.regions {
		r.closeFileLocked()
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
