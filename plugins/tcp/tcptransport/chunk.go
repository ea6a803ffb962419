package tcptransport

import "sync"

// chunkSize holds two records of the largest size, so that a stream of them
// is read and written two at a time, and thousands of small ones.
const chunkSize = 2 * maxRecord

// chunk is a buffer of whole records, of which the first written bytes have
// left.
type chunk struct {
	b       []byte
	written int
}

// room says whether n more bytes fit. The storage never moves, so that one
// goroutine can append while another writes what was there before.
func (c *chunk) room(n int) bool { return cap(c.b)-len(c.b) >= n }

// chunks lends out buffers. Endpoints hold one only while they have bytes in
// hand, so thousands of idle ones cost nothing.
type chunks struct{ pool sync.Pool }

func (p *chunks) get() *chunk {
	if c, ok := p.pool.Get().(*chunk); ok {
		return c
	}
	return &chunk{b: make([]byte, 0, chunkSize)}
}

func (p *chunks) put(c *chunk) {
	c.b, c.written = c.b[:0], 0
	p.pool.Put(c)
}
