package tcptransport

import (
	"sync"

	"github.com/hawser-transport/hawser/sdk"
)

// chunkSize holds two records of the largest size, so that a stream of them
// is read and written two at a time, and thousands of small ones.
const chunkSize = 2 * maxRecord

// chunk is a buffer of whole records, of which the first written bytes have
// left.
type chunk struct {
	b       []byte
	written int
	// in and done are a reader's, here so that they are lent out as well: for
	// a burst of tiny frames they are as large as the buffer.
	in   batch
	done []sdk.Completion
}

// room says whether n more bytes fit. The storage never moves, so that one
// goroutine can append while another writes what was there before.
func (c *chunk) room(n int) bool { return cap(c.b)-len(c.b) >= n }

// keptChunks is how many buffers wait for their next use.
const keptChunks = 32

// chunks lends out buffers. Endpoints hold one only while they have bytes in
// hand, so thousands of idle ones cost nothing. It is a stack and not a
// sync.Pool, since buffers are put by another processor than gets them, where
// a pool does not look, and the last one used is the one in the cache.
type chunks struct {
	mu   sync.Mutex
	free []*chunk
}

func (p *chunks) get() *chunk {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free) - 1; n >= 0 {
		c := p.free[n]
		p.free[n] = nil
		p.free = p.free[:n]
		return c
	}
	return &chunk{b: make([]byte, 0, chunkSize)}
}

func (p *chunks) put(c *chunk) {
	c.b, c.written = c.b[:0], 0
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) < keptChunks {
		p.free = append(p.free, c)
	}
}
