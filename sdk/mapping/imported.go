package mapping

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// The states of an imported mapping, in the order in which it has them. A
// failed import goes from the first to the last.
const (
	importing uint32 = iota
	live
	retiring
)

// imported is one import of one source, from its begin until all it acquired
// is given back. What is imported again is another one.
type imported[M any] struct {
	cache  *Cache[M]
	source Source // of which it was imported; never changes
	number uint64 // of the import
	// state is set under the cache's lock; hits read it without.
	state atomic.Uint32
	value M             // set before state is live, never changed
	ready chan struct{} // closed once state is not importing
	// cleanup is the importer's while it imports, then the cleaner's.
	cleanup Cleanup

	// Guarded by the cache's lock.
	refs     []*ref[M] // the first is the cache's own
	cancel   context.CancelFunc
	err      error // why the import failed
	returned bool  // the importer has
	cleaning bool
	cause    Cause
	since    time.Time // of its state
	uses     uint64    // leases taken and released when it was looked at last
	used     time.Time // when it was last seen to have been used: not before it was
	stuck    Stuck
}

// held is how many leases there are, or were a moment ago.
func (m *imported[M]) held() (n uint64) {
	for _, r := range m.refs {
		n += r.held()
	}
	return n
}

// look notes whether a lease was taken or released since the last look, and
// returns how many there are.
func (m *imported[M]) look(now time.Time) uint64 {
	m.prune()
	var uses uint64
	for _, r := range m.refs {
		uses += r.taken.Load() + r.released.Load()
	}
	if uses != m.uses {
		m.uses, m.used = uses, now
	}
	return m.held()
}

// prune drops the references of closed views; their counts stay.
func (m *imported[M]) prune() {
	own := m.refs[0]
	m.refs = slices.DeleteFunc(m.refs, func(r *ref[M]) bool {
		if !r.orphan || r.held() > 0 {
			return false
		}
		n := r.taken.Load()
		own.taken.Add(n)
		own.released.Add(n)
		return true
	})
}

// drainable reports whether what it acquired can be given back now.
func (m *imported[M]) drainable() bool {
	return m.state.Load() == retiring && m.returned && !m.cleaning && m.held() == 0
}

// idle reports whether nobody would miss it.
func (m *imported[M]) idle() bool { return m.state.Load() == live && m.held() == 0 }

// idlerThan reports whether it has not been used for longer.
func (m *imported[M]) idlerThan(o *imported[M]) bool {
	if !m.used.Equal(o.used) {
		return m.used.Before(o.used)
	}
	return m.number < o.number
}

// why says why it is not gone, for errors.
func (m *imported[M]) why() string {
	held := m.held()
	switch {
	case !m.returned: // who waits for it counts as a lease
		return "its import is still under way"
	case m.stuck.Step != "":
		return fmt.Sprintf("%q has been refused since %s (%d times): %v", m.stuck.Step, m.stuck.Since.Format(time.RFC3339), m.stuck.Tries, m.stuck.Reason)
	case held == 1:
		return "1 lease is held"
	case held > 1:
		return fmt.Sprintf("%d leases are held", held)
	default:
		return "it is being given back"
	}
}

// waiting is the error of a call that waited for the mapping's end in vain.
func (m *imported[M]) waiting(what string) error {
	return sdk.Errorf(sdk.Busy, "%s mapping %s: %s", what, m.source.Key, m.why())
}
