package sdktest

import (
	"context"
	"slices"

	"github.com/hawser-transport/hawser/sdk"
)

// fabricRegion is a region of the node's own. It is read and written through
// its file: nothing is mapped.
type fabricRegion struct {
	sdk.Region
	leaving bool // Deregister was called
}

// fabricRemote is a peer's region, as Announce said.
type fabricRemote struct {
	sdk.RemoteRegion
}

// HoldWrites keeps a node, as the target of writes, from carrying them out, or
// lets it go on. What is held counts as begun there: its sender gets no
// outcome, and, once the sender's end has ended, it is still carried out when
// the node goes on, unless the node's own end has ended before. An empty node
// is every one.
func (f *Fabric) HoldWrites(node string, hold bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held[node] = hold
	if node == "" && !hold {
		clear(f.held)
	}
	f.changedLocked()
}

// Regions returns how many regions a node has registered, and how many of
// peers' it was told of and still holds.
func (f *Fabric) Regions(node string) (own, remote int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.membersLocked() {
		if node == "" || m.node == node {
			own, remote = own+len(m.regions), remote+len(m.remotes)
		}
	}
	return own, remote
}

// Register implements [sdk.Mover].
func (m *member) Register(ctx context.Context, r sdk.Region) (sdk.Attributes, error) {
	err := m.thawed(ctx)
	if err == nil {
		err = m.register(r)
	}
	if err != nil {
		if r.File != nil {
			r.File.Close() //nolint:errcheck // it is not used
		}
		return nil, err
	}
	return sdk.Attributes{attrAddr: m.addr}, nil
}

func (m *member) register(r sdk.Region) error {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	if err := m.usableLocked(); err != nil {
		return err
	}
	if err := r.Check(); err != nil {
		return err
	}
	if r.Kind != sdk.HostMemory {
		return sdk.Errorf(sdk.Unsupported, "the memory transport reaches no %v memory", r.Kind)
	}
	if m.regions[r.Capability] != nil {
		return sdk.Errorf(sdk.Busy, "region %v is registered", r.Capability)
	}
	m.regions[r.Capability] = &fabricRegion{Region: r}
	return nil
}

// Deregister implements [sdk.Mover].
func (m *member) Deregister(ctx context.Context, c sdk.Capability) error {
	m.f.mu.Lock()
	r := m.regions[c]
	if r != nil {
		r.leaving = true
		for _, e := range m.endsLocked() {
			e.flushLocked()
		}
	}
	m.f.mu.Unlock()
	if r == nil {
		return nil
	}
	err := m.quiet(ctx, "region "+c.Short(), func(op *fabricOp) bool { return op.local == r || op.target == r })
	if err != nil {
		return err
	}
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	if m.regions[c] == r {
		delete(m.regions, c)
		r.File.Close() //nolint:errcheck // it was read and written without buffers
	}
	return nil
}

// regionLocked finds a region that is registered, by its capability, or, if
// that is zero, by its base.
func (m *member) regionLocked(c sdk.Capability, base uint64) *fabricRegion {
	for _, r := range m.regions {
		if !r.leaving && (r.Capability == c || c.IsZero() && r.Base == base) {
			return r
		}
	}
	return nil
}

// Announce implements [sdk.Mover].
func (m *member) Announce(ctx context.Context, r sdk.RemoteRegion) error {
	if err := m.thawed(ctx); err != nil {
		return err
	}
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	if err := m.usableLocked(); err != nil {
		return err
	}
	if err := r.Check(); err != nil {
		return err
	}
	for i, old := range m.remotes {
		if old.Provider != r.Provider || old.Base != r.Base && (old.Capability != r.Capability || r.Capability.IsZero()) {
			continue
		}
		if old.Version <= r.Version {
			m.remotes[i] = &fabricRemote{r}
		}
		return nil
	}
	m.remotes = append(m.remotes, &fabricRemote{r})
	return nil
}

// Withdraw implements [sdk.Mover].
func (m *member) Withdraw(ctx context.Context, provider sdk.Incarnation, c sdk.Capability) error {
	means := func(r *fabricRemote) bool {
		return r.Provider == provider && (c.IsZero() || r.Capability == c)
	}
	m.f.mu.Lock()
	m.remotes = slices.DeleteFunc(m.remotes, means)
	m.f.mu.Unlock()
	return m.quiet(ctx, "what peer "+provider.Short()+" has", func(op *fabricOp) bool {
		return op.remote != nil && means(op.remote)
	})
}

// quiet waits until no op is under way that uses something.
func (m *member) quiet(ctx context.Context, what string, uses func(*fabricOp) bool) error {
	f := m.f
	for {
		left := 0
		f.mu.Lock()
		changed := f.changed
		m.eachOpLocked(func(op *fabricOp) {
			if uses(op) {
				left++
			}
		})
		f.mu.Unlock()
		if left == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return sdk.Errorf(sdk.Busy, "%d ops are under way with %s", left, what)
		}
	}
}

// eachOpLocked visits what has begun here and has not ended: the ops of the
// node's active ends, and those that it holds as a target.
func (m *member) eachOpLocked(visit func(*fabricOp)) {
	for _, e := range m.endsLocked() {
		for _, op := range e.ops {
			visit(op)
		}
		if e.side == 0 {
			continue
		}
		for _, p := range e.c.lanes[0].frames {
			if p.op != nil && p.op.target != nil {
				visit(&fabricOp{target: p.op.target})
			}
		}
	}
}

// forgetMemoryLocked is the end of the node's transport: its ends have ended.
func (m *member) forgetMemoryLocked() {
	for _, r := range m.regions {
		if !m.f.unfenced {
			r.File.Close() //nolint:errcheck // it was read and written without buffers
		}
	}
	clear(m.regions)
	m.remotes = nil
	m.f.wakeLocked()
}
