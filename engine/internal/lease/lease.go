// Package lease counts who uses what, and lets whoever takes it away wait until
// nobody does. Who may still acquire is the caller's to decide: it takes the
// name out of reach first, and waits then.
package lease

import "sync"

// Table counts leases by name. The zero value is ready. It keeps nothing of
// names without a lease. Its methods are safe for concurrent use and never
// block.
type Table[K comparable] struct {
	mu   sync.Mutex
	rows map[K]*row
}

type row struct {
	held int
	idle chan struct{} // closed when none is held; nil unless somebody waits
}

// Acquire takes a lease.
func (t *Table[K]) Acquire(k K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows == nil {
		t.rows = map[K]*row{}
	}
	r := t.rows[k]
	if r == nil {
		r = &row{}
		t.rows[k] = r
	}
	r.held++
}

// Release gives one back.
func (t *Table[K]) Release(k K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.rows[k]
	if r == nil {
		panic("lease: released more often than acquired")
	}
	if r.held--; r.held > 0 {
		return
	}
	delete(t.rows, k)
	if r.idle != nil {
		close(r.idle)
	}
}

// Held is how many leases of a name there are.
func (t *Table[K]) Held(k K) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.rows[k]; r != nil {
		return r.held
	}
	return 0
}

// Idle returns a channel that is closed when no lease of the name is held, now
// or once the last one is released.
func (t *Table[K]) Idle(k K) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.rows[k]
	if r == nil {
		return closed
	}
	if r.idle == nil {
		r.idle = make(chan struct{})
	}
	return r.idle
}

// Len is how many names have leases.
func (t *Table[K]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.rows)
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()
