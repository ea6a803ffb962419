package mapping

import "context"

// Local is a worker's own view of a cache: for one goroutine at a time. A hit
// takes no lock and writes nothing that other workers write. It holds
// references to the cache's mappings, and asks each whether it is still live;
// so an invalidation counts at once, however warm the view is, and the leases
// count as the cache's own do.
type Local[M any] struct {
	cache *Cache[M]
	last  *ref[M]
	refs  map[Key]*ref[M]
	sweep int // at how many references those of retired mappings are dropped
	slots slots
}

// NewLocal makes a worker's view. Close it when the worker ends.
func (c *Cache[M]) NewLocal() *Local[M] {
	return &Local[M]{cache: c, refs: map[Key]*ref[M]{}, sweep: 16}
}

// Acquire is [Cache.Acquire]; the lease may be released by any goroutine. A
// hit does not look at ctx.
func (l *Local[M]) Acquire(ctx context.Context, k Key, offset, length uint64) (Lease[M], error) {
	r := l.last
	if r == nil || r.of.source.Key != k {
		r = l.refs[k]
	}
	// Within the range of a mapping that has been retired may be beyond that of
	// its successor, and the reverse: only a live one may answer.
	if r == nil || !within(offset, length, r.of.source.Length) || !r.take() {
		var err error
		if r, err = l.cache.acquire(ctx, k, offset, length, l); err != nil {
			return Lease[M]{}, err
		}
	} else if l.cache.on != nil {
		l.cache.on(Event{What: Hit, Key: k, Kind: r.of.source.Kind.Name})
	}
	l.last = r
	return lease(r, l.slots.take()), nil
}

// take counts a lease if the mapping is live. It counts first: whoever retires
// the mapping sets its state first, so that one of the two sees the other.
func (r *ref[M]) take() bool {
	r.taken.Add(1)
	if r.of.state.Load() == live {
		return true
	}
	r.release()
	return false
}

func lease[M any](r *ref[M], s *slot) Lease[M] {
	return Lease[M]{ref: r, slot: s, turn: s.turn.Load()}
}

// refTo returns the view's reference to a mapping. The cache's lock is held.
func (l *Local[M]) refTo(m *imported[M]) *ref[M] {
	k := m.source.Key
	if r := l.refs[k]; r != nil && r.of == m {
		return r
	}
	if len(l.refs) >= l.sweep {
		for k, r := range l.refs {
			if r.of.state.Load() == retiring {
				delete(l.refs, k)
			}
		}
		l.sweep = 2*len(l.refs) + 16
	}
	r := &ref[M]{of: m}
	m.refs = append(m.refs, r)
	l.refs[k] = r
	return r
}

// Close ends the view. Leases that are held stay, and count.
func (l *Local[M]) Close() {
	l.cache.mu.Lock()
	defer l.cache.unlock()
	for _, r := range l.refs {
		r.orphan = true
		r.of.prune()
	}
	l.last, l.refs = nil, map[Key]*ref[M]{}
}
