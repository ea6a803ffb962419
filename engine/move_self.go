package engine

import (
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// To this engine's own memory a mover needs no transport: one goroutine copies
// between the regions' mappings, a chunk at a time, with ops taking turns. So
// progress, cancellation and withdrawal are what they are with any peer. Only
// host memory is mapped here.

// copyBytes is the largest of these chunks, as transports have one.
const copyBytes = 4 << 20

// self reports whether the provider is this engine.
func (m *mover) self() bool { return m.s.incarnation == m.s.e.incarnation }

// copyQueuedLocked is pumpLocked to oneself.
func (m *mover) copyQueuedLocked() {
	if !m.pumping && len(m.queue.heap) > 0 {
		m.pumping = true
		m.s.e.tasks.Go(m.copyQueued)
	}
	m.armLocked(time.Now())
}

func (m *mover) copyQueued() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		o, _ := m.queue.next()
		if o == nil {
			break
		}
		m.queue.take()
		m.copyLocked(o)
	}
	m.pumping = false
	m.armLocked(time.Now())
}

// copyLocked copies an op's next chunk; the lock is released meanwhile. The
// region at the other end is looked up, checked and leased for each chunk: what
// a descriptor says does not make memory, and whoever closes a region waits.
func (m *mover) copyLocked(o *op) {
	e := m.s.e
	remote := e.memory.lendOwn(o.key.c)
	if remote == nil {
		o.stale = sdk.Errorf(sdk.StaleCapability, "region %s is withdrawn", o.key.c.Short())
		m.settleLocked(o)
		return
	}
	if err := o.copies(remote); err != nil {
		e.memory.leases.Release(remote)
		m.failLocked(o, err)
		return
	}
	piece, rest := o.spans[0].Cut(uint64(min(e.cfg.Transfer.ChunkBytes, copyBytes)))
	o.spans[0] = rest
	if rest.Length == 0 {
		o.spans = o.spans[1:]
	}
	o.posted, o.touched = o.posted+1, true
	m.mu.Unlock()
	here := o.local.bytes[o.localOffset+piece.Offset:][:piece.Length]
	there := remote.bytes[o.offset+piece.Offset:][:piece.Length]
	if o.kind == sdk.Read {
		here, there = there, here
	}
	copy(there, here)
	e.memory.leases.Release(remote)
	m.mu.Lock()
	o.posted--
	o.t.moved.Add(piece.Length)
	e.stats.local.moved.Add(piece.Length)
	if len(o.spans) > 0 {
		m.enqueueLocked(o)
	}
	m.settleLocked(o)
}

// copies reports why an op cannot be a copy to or from a region of this
// engine's.
func (o *op) copies(remote *Region) error {
	to := remote
	if o.kind == sdk.Read {
		to = o.local
	}
	switch {
	case o.local.bytes == nil || remote.bytes == nil:
		return sdk.Errorf(sdk.Unsupported, "a GPU's memory is not moved to or from this engine itself: copy it with CUDA, in the process that has it")
	case o.offset > remote.Len() || o.length > remote.Len()-o.offset:
		return sdk.Errorf(sdk.StaleCapability, "%d bytes at offset %d are not within region %s", o.length, o.offset, o.key.c.Short())
	case to.opts.ReadOnly:
		return sdk.Errorf(sdk.Refused, "region %s was registered read-only", to.capability.Short())
	case remote == o.local && o.offset < o.localOffset+o.length && o.localOffset < o.offset+o.length:
		return sdk.Errorf(sdk.InvalidArgument, "its two ranges overlap")
	}
	return nil
}

// lendOwn takes a lease on a published region of this engine's, or returns nil.
func (m *memory) lendOwn(c sdk.Capability) *Region {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.regions {
		if r.capability == c && !r.opts.Private && m.lend(r) {
			return r
		}
	}
	return nil
}
