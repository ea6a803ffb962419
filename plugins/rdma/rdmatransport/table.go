package rdmatransport

import (
	"sync"
	"sync/atomic"
)

// table holds a device's endpoints by the number of their queue pairs. Numbers
// are unique within a device, and used again: an endpoint stays in the table
// until no completion of its queue pair can come any more, and one that gets
// its number waits for that.
type table struct {
	mu    sync.Mutex
	freed sync.Cond
	m     map[uint32]*endpoint
	// n is how many there are: endpoints ask under the table's lock, and
	// without it.
	n atomic.Int32
	// frames is how many of them share the receive buffers.
	frames atomic.Int32
}

func (t *table) init() {
	t.freed.L = &t.mu
	t.m = make(map[uint32]*endpoint)
}

// publish adds the endpoint, whose queue pair cannot have completions yet. It
// waits while the number still belongs to a queue pair that was destroyed.
func (t *table) publish(e *endpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.m[e.num] != nil {
		t.freed.Wait()
	}
	t.m[e.num] = e
	t.countLocked(e, 1)
}

// withdraw removes the endpoint, whose queue pair has no completions left.
func (t *table) withdraw(e *endpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.m, e.num)
	t.countLocked(e, -1)
	t.freed.Broadcast()
}

func (t *table) countLocked(e *endpoint, by int32) {
	t.n.Add(by)
	if !e.memory {
		t.frames.Add(by)
	}
}

// each calls do for every endpoint. It may take the endpoint's lock.
func (t *table) each(do func(*endpoint)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.m {
		do(e)
	}
}
