package mapping

import "sync/atomic"

// Lease keeps a mapping from being retired. It is a small value; its copies
// are one lease. The zero Lease holds nothing.
//
// Release is idempotent: of all calls, on all copies, the first counts. A
// release that is counted twice would let go of somebody else's lease, and
// unmap memory under a copy: too much for two error paths that both clean up.
type Lease[M any] struct {
	ref  *ref[M]
	slot *slot
	turn uint64
}

// Mapping returns what the importer made of the source; it covers the whole
// range, so the offset is still to be added. After Release it returns the zero
// value: a pointer that cannot be used instead of one that must not be.
func (l Lease[M]) Mapping() (m M) {
	if l.slot == nil || l.slot.turn.Load() != l.turn {
		return m
	}
	return l.ref.of.value
}

// Release gives the lease back, from any goroutine. Whoever copies into the
// mapping calls it once the copy has ended, not once it was submitted.
func (l Lease[M]) Release() {
	if l.slot == nil || !l.slot.turn.CompareAndSwap(l.turn, l.turn+1) {
		return
	}
	if l.slot.home != nil {
		l.slot.home.put(l.slot)
	}
	l.ref.release()
}

// slot is what the copies of a lease share. It serves many leases, one at a
// time: turn tells them apart.
type slot struct {
	turn atomic.Uint64
	next *slot
	home *slots // nil: it serves one lease only
}

// slots are free slots of one goroutine that takes them; any may put them
// back. There are never more than the leases that were held at once.
type slots struct {
	mine *slot                // the taker's own
	back atomic.Pointer[slot] // a stack of those put back
}

func (s *slots) take() *slot {
	if s.mine == nil {
		s.mine = s.back.Swap(nil) // all, so that no put sees one come and go
	}
	f := s.mine
	if f == nil {
		return &slot{home: s}
	}
	s.mine, f.next = f.next, nil
	return f
}

func (s *slots) put(f *slot) {
	for {
		f.next = s.back.Load()
		if s.back.CompareAndSwap(f.next, f) {
			return
		}
	}
}

// ref counts the leases that one taker (a [Local], or the cache itself) has of
// one mapping. Its counters only grow: released is read before taken, so that
// equal ones mean that nothing was held in between.
type ref[M any] struct {
	of       *imported[M]
	taken    atomic.Uint64
	released atomic.Uint64
	orphan   bool // its Local is closed; guarded by the cache's lock
	// Counters of different takers share no cache line.
	_ [96]byte
}

// held returns at least as many leases as were held since the call began.
func (r *ref[M]) held() uint64 {
	released := r.released.Load()
	return r.taken.Load() - released
}

// release uncounts one. The order matters: whoever retires the mapping first
// sets its state and then counts, so that one of the two sees the other.
func (r *ref[M]) release() {
	r.released.Add(1)
	if r.of.state.Load() == retiring {
		r.of.cache.drained(r.of)
	}
}
