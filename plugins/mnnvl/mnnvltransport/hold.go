//go:build linux

package mnnvltransport

import "sync"

// hold counts the ops that use a region, until it leaves.
type hold struct {
	mu      sync.Mutex
	n       int
	leaving bool
	free    chan struct{} // closed once it is leaving and no op uses it
}

func (h *hold) init() { h.free = make(chan struct{}) }

// take counts an op, unless the region is leaving.
func (h *hold) take() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.leaving {
		h.n++
	}
	return !h.leaving
}

func (h *hold) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n--
	h.settle()
}

// leave lets no op begin any more. It is idempotent.
func (h *hold) leave() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.leaving {
		h.leaving = true
		h.settle()
	}
	return h.free
}

func (h *hold) settle() {
	if h.leaving && h.n == 0 {
		close(h.free)
	}
}

func (h *hold) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}
