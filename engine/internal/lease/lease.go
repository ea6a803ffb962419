// Package lease counts who uses what, and lets whoever takes it away wait until
// nobody does. A name that was retired gets no new leases; those that are held
// go on. It knows nothing of what is leased.
package lease

import "sync"

// Table counts leases by name. The zero value is ready. Its methods are safe
// for concurrent use and never block.
type Table[K comparable] struct {
	mu   sync.Mutex
	rows map[K]*row
}

type row struct {
	held    int
	retired bool
	idle    chan struct{} // closed when none is held; nil unless somebody waits
}

func (t *Table[K]) row(k K) *row {
	if t.rows == nil {
		t.rows = map[K]*row{}
	}
	r := t.rows[k]
	if r == nil {
		r = &row{}
		t.rows[k] = r
	}
	return r
}

// Acquire takes a lease, unless the name is retired.
func (t *Table[K]) Acquire(k K) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.row(k)
	if r.retired {
		return false
	}
	r.held++
	return true
}

// Release gives one back. The last of a name that is not retired forgets it.
func (t *Table[K]) Release(k K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.rows[k]
	if r == nil || r.held == 0 {
		panic("lease: released more often than acquired")
	}
	if r.held--; r.held > 0 {
		return
	}
	if r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
	if !r.retired {
		delete(t.rows, k)
	}
}

// Retire lets nobody acquire a name from now on. It is idempotent.
func (t *Table[K]) Retire(k K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.row(k).retired = true
}

// Forget undoes Retire once nothing is held, so that the table does not grow.
func (t *Table[K]) Forget(k K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.rows[k]; r != nil && r.held == 0 {
		delete(t.rows, k)
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

// Idle returns a channel that is closed when no lease of the name is held.
func (t *Table[K]) Idle(k K) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.rows[k]
	if r == nil || r.held == 0 {
		return closed
	}
	if r.idle == nil {
		r.idle = make(chan struct{})
	}
	return r.idle
}

// Len is how many names the table knows.
func (t *Table[K]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.rows)
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()
