package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/descriptor"
	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
)

// Close ends the region's use, in order: it leaves the descriptor, those who
// have read that are told, and each is waited for until it says that it has no
// transfer under way and nothing mapped, is dead, or has been silent for twice
// the longest deadline and has no endpoint here; then every transport gives the
// region up. A consumer of memory that was exported by a handle is waited for
// however long it is silent, unless [Engine.RetireMappings] says that it is
// gone: it may map the memory without an endpoint.
//
// nil means that nothing of Hawser's can touch the memory any more: host memory
// is unmapped, a GPU's may be freed. Otherwise the error has code [Busy] and
// names who holds the region; it stays withdrawn, and Close can be called again.
// Once the engine is closed no consumer can be asked: one that has not answered
// by then holds what was exported, and Close does not wait.
func (r *Region) Close(ctx context.Context) error {
	ctx = orBackground(ctx)
	r.m.withdraw(r)
	select {
	case r.closing <- struct{}{}:
	default:
		select {
		case r.closing <- struct{}{}:
		case <-ctx.Done():
			return busy(r, []string{"another call of Close"})
		}
	}
	defer func() { <-r.closing }()
	defer r.m.watchHeld(r)()
	if err := r.m.release(ctx, r); err != nil {
		r.m.tellHeld(r, err)
		return err
	}
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	if r.released {
		return nil
	}
	r.released = true
	r.closeFileLocked()
	r.m.removeLocked(r)
	r.m.e.stats.RegionsClosed.Add(1)
	if r.held {
		r.m.e.hub.tell(Event{Kind: RegionReleased, Region: r.capability.Short()})
	}
	return r.unmap()
}

// withdraw takes a region out of the descriptor, and leaves a tombstone. It is
// idempotent.
func (m *memory) withdraw(r *Region) {
	r.shut.Store(true)
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.withdrawn {
		return
	}
	r.withdrawn = true
	if r.opts.Private || r.published == 0 {
		return
	}
	m.tombstones = append(m.tombstones, r.capability)
	m.tombstones = slices.Clone(m.tombstones[max(0, len(m.tombstones)-descriptor.MaxTombstones):])
	for _, x := range m.readers {
		if x.described >= r.published {
			x.holds[r] = struct{}{}
		}
	}
	m.changedLocked()
}

// silenceCheck is how often Close looks whether a silent reader has been so for
// long enough.
const silenceCheck = time.Second

// release waits until nobody uses a withdrawn region, and has every transport
// give it up.
func (m *memory) release(ctx context.Context, r *Region) error {
	for {
		over := isClosed(m.e.closed) // then nobody is asked any more
		m.mu.Lock()
		holders, changed := m.holdersLocked(r, time.Now()), m.changed
		m.mu.Unlock()
		if len(holders) == 0 {
			break
		}
		if over {
			return busy(r, holders)
		}
		select {
		case <-changed:
		case <-time.After(silenceCheck):
		case <-ctx.Done():
			return busy(r, holders)
		}
		m.e.freeze.Awake()
	}
	select {
	case <-m.leases.Idle(r):
	case <-ctx.Done():
		if by := m.usersOf(r); len(by) > 0 {
			return busy(r, by)
		}
	}
	return m.deregister(ctx, r)
}

// recall withdraws what is exported, before the engine's end, and waits until
// nobody maps it, while ctx lasts, and a moment at least, and its readers answer:
// who is silent may be so for ever, and so may who has a process that does not
// die, and answers.
func (m *memory) recall(ctx context.Context) error {
	defer m.settle()
	ctx, cancel := context.WithTimeout(ctx, m.e.longest+settleOps+fenceTime) // which no op outlasts
	defer cancel()
	m.mu.Lock()
	regions := slices.DeleteFunc(slices.Clone(m.regions), func(r *Region) bool { return !r.exported() })
	m.mu.Unlock()
	for _, r := range regions {
		m.withdraw(r)
	}
	var done <-chan struct{}
	atLeast := time.After(goodbyeTimeout)
	for began := time.Now(); ; m.e.freeze.Awake() {
		answer, changed, held := m.heldStill(regions, began)
		if !answer {
			return held
		}
		select {
		case <-changed:
		case <-time.After(silenceCheck):
		case <-atLeast:
			done = ctx.Done()
		case <-done:
			return held
		}
	}
}

// heldStill tells which of the withdrawn regions are held, and whether any of
// their readers has answered a moment ago or may be about to.
func (m *memory) heldStill(regions []*Region, began time.Time) (answer bool, changed <-chan struct{}, held error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for _, r := range regions {
		if by := m.holdersLocked(r, now); len(by) > 0 {
			held = errors.Join(held, busy(r, by))
		}
		for _, x := range m.readers {
			_, ok := x.holds[r]
			answer = answer || ok && !x.undead && min(now.Sub(began), x.silentFor(m.e, now)) < stopTimeout
		}
	}
	return answer, m.changed, held
}

// settle forgets, at the engine's end, all readers but those that may map
// exported memory, which nobody can be asked any more: of all else they had what
// this engine's transports did for them.
func (m *memory) settle() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, x := range m.readers {
		maps.DeleteFunc(x.holds, func(r *Region, _ struct{}) bool { return !r.exported() })
		if len(x.holds) == 0 || i == m.e.incarnation {
			delete(m.readers, i)
		}
	}
	m.signalLocked()
}

// holdersLocked names the readers that may still use a region.
func (m *memory) holdersLocked(r *Region, now time.Time) (names []string) {
	for _, x := range m.readers {
		if _, ok := x.holds[r]; !ok {
			continue
		}
		own := x.incarnation == m.e.incarnation
		if isClosed(m.e.closed) && (own || !r.exported()) {
			delete(x.holds, r) // what could reach it has stopped
			continue
		}
		if !r.exported() && (x.undead || x.silentFor(m.e, now) >= m.e.silence()) && m.gates.shut(x.incarnation) == 0 {
			delete(x.holds, r)
			continue
		}
		if own {
			names = append(names, "this engine's transfers to itself")
			continue
		}
		name := "consumer " + x.name + " (" + x.incarnation.Short() + ")"
		if x.undead {
			name += ", of which a process does not die"
		} else if now.Sub(x.heard) > 2*helloMax {
			name += fmt.Sprintf(", silent for %v", now.Sub(x.heard).Round(time.Second))
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// deregister has every transport give a region up.
func (m *memory) deregister(ctx context.Context, r *Region) error {
	m.mu.Lock()
	at := make(map[*pluginhost.Instance]*registration, len(r.at))
	for inst, g := range r.at {
		at[inst] = g
	}
	abandoned := slices.Clone(r.abandoned)
	m.mu.Unlock()
	var mu sync.Mutex
	var left []string
	var calls sync.WaitGroup
	for inst, g := range at {
		calls.Go(func() {
			if err := m.deregisterAt(ctx, r, inst, g); err != nil {
				mu.Lock()
				defer mu.Unlock()
				left = append(left, err.Error())
			}
		})
	}
	for _, inst := range abandoned {
		calls.Go(func() {
			select {
			case <-inst.Gone:
			case <-ctx.Done():
				mu.Lock()
				defer mu.Unlock()
				left = append(left, fmt.Sprintf("instance %d of transport %s, which does not die", inst.ID, inst.Name))
			}
		})
	}
	calls.Wait()
	if len(left) > 0 {
		slices.Sort(left)
		return busy(r, left)
	}
	return nil
}

// deregisterAt repeats the call until the transport has given the region up, or
// is gone.
func (m *memory) deregisterAt(ctx context.Context, r *Region, inst *pluginhost.Instance, g *registration) error {
	select {
	case <-g.done: // Register is not overtaken
	case <-ctx.Done():
		if !isClosed(g.done) {
			return sdk.Errorf(sdk.Busy, "transport %s, which is still registering it", inst.Name)
		}
	}
	for wait := helloMin; ; wait = min(2*wait, helloMax) {
		if isClosed(inst.Gone) {
			return nil
		}
		call, cancel := context.WithTimeout(ctx, registerTimeout)
		err := inst.Mover.Deregister(call, r.capability)
		cancel()
		if err == nil {
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(r.at, inst)
			r.knowLocked()
			return nil
		}
		select {
		case <-inst.Gone:
			return nil
		case <-time.After(wait):
		case <-ctx.Done():
			return sdk.Errorf(sdk.Busy, "transport %s, which has not given it up: %w", inst.Name, err)
		}
		m.e.freeze.Awake()
	}
}

// usersOf names the ops of this engine's that use a region of its own.
func (m *memory) usersOf(r *Region) (names []string) {
	rest := m.leases.Held(r)
	for _, s := range m.everySource() {
		going, unresolved := s.mover.using(r)
		rest -= going + unresolved
		if going > 0 {
			names = append(names, fmt.Sprintf("this engine's ops with %s (%d)", s.a.peer(), going))
		}
		if unresolved > 0 {
			names = append(names, fmt.Sprintf("ops with %s of unknown outcome (%d), until it answers or is known to be dead", s.a.peer(), unresolved))
		}
	}
	if rest > 0 { // on their way to a peer
		names = append(names, fmt.Sprintf("this engine's ops (%d)", rest))
	}
	slices.Sort(names)
	return names
}

// using counts the ops whose local side is in a region.
func (m *mover) using(r *Region) (going, unresolved int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for o := range m.live {
		switch {
		case o.local != r:
		case o.ended:
			unresolved++
		default:
			going++
		}
	}
	return going, unresolved
}

func busy(r *Region, holders []string) error {
	return sdk.Errorf(sdk.Busy, "close region %s: it is held by %s; it is withdrawn, call Close again", r.capability.Short(), strings.Join(holders, "; "))
}
