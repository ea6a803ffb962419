//go:build linux

package simcuda

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// piece is a part of a range that lies in one mapping.
type piece struct {
	m  *mapping
	at uint64 // in the mapping's memory
	n  uint64
}

// find finds the pieces of a range that the context may use.
func (c *context) find(p cuda.Ptr, n uint64, write bool) ([]piece, error) {
	var pieces []piece
	for at := uint64(p); n > 0; {
		m := c.anyAt(at)
		if m == nil || !m.access[c.gpu].read || write && !m.access[c.gpu].write {
			return nil, fmt.Errorf("memory at %#x, which GPU %d cannot access so", at, c.gpu.ordinal)
		}
		k := min(n, m.size-(at-m.base))
		pieces = append(pieces, piece{m, at - m.base, k})
		at += k
		n -= k
	}
	return pieces, nil
}

func (c *context) isHost(p cuda.Ptr) bool {
	m := c.anyAt(uint64(p))
	return m != nil && m.host != nil
}

func (c *context) anyAt(p uint64) *mapping {
	if m, _ := c.at(p, 1); m != nil {
		return m
	}
	return c.hostAt(p)
}

// hostAt finds registered host memory.
func (d *Driver) hostAt(p uint64) *mapping {
	for _, m := range d.hosts {
		if p >= m.base && p-m.base < m.size {
			return m
		}
	}
	return nil
}

// Copy implements [cuda.Context].
func (c *context) Copy(dst, src cuda.Ptr, n uint64, s cuda.Stream) error {
	const call = "cuMemcpyAsync"
	if err := c.enter(call); err != nil {
		return err
	}
	defer c.leave()
	from, err := c.find(src, n, false)
	if err == nil && len(from) > 0 && from[0].m.host != nil && c.isHost(dst) {
		err = fmt.Errorf("host memory to host memory")
	}
	if err != nil {
		return refuse(call, err.Error(), cuda.InvalidValue)
	}
	return c.queue(call, dst, n, s, from, func(b []byte, at uint64) error { return read(c.Driver, from, b, at) })
}

// Write implements [cuda.Context].
func (c *context) Write(dst cuda.Ptr, from []byte, s cuda.Stream) error {
	const call = "cuMemcpyHtoD"
	if err := c.enter(call); err != nil {
		return err
	}
	defer c.leave()
	err := c.queue(call, dst, uint64(len(from)), s, nil, func(b []byte, at uint64) error {
		copy(b, from[at:])
		return nil
	})
	if err != nil {
		return err
	}
	return c.sync(call, c.streams[s])
}

// Read implements [cuda.Context].
func (c *context) Read(into []byte, src cuda.Ptr, number cuda.Stream) error {
	const call = "cuMemcpyDtoH"
	if err := c.enter(call); err != nil {
		return err
	}
	defer c.leave()
	s, err := c.stream(number, call)
	if err != nil {
		return err
	}
	from, err := c.find(src, uint64(len(into)), false)
	if err != nil {
		return refuse(call, err.Error(), cuda.InvalidValue)
	}
	if len(into) == 0 {
		return nil
	}
	c.copying(s, from, func() cuda.Result {
		if read(c.Driver, from, into, 0) != nil {
			return cuda.IllegalAddress
		}
		return 0
	})
	return c.sync(call, s)
}

// Set implements [cuda.Context].
func (c *context) Set(dst cuda.Ptr, value byte, n uint64, s cuda.Stream) error {
	const call = "cuMemsetD8Async"
	if err := c.enter(call); err != nil {
		return err
	}
	defer c.leave()
	return c.queue(call, dst, n, s, nil, func(b []byte, at uint64) error {
		copy(b, bytes.Repeat([]byte{value}, len(b)))
		return nil
	})
}

// queue queues writing n bytes, which next gives.
func (c *context) queue(call string, dst cuda.Ptr, n uint64, number cuda.Stream, from []piece, next func(b []byte, at uint64) error) error {
	s, err := c.stream(number, call)
	if err != nil {
		return err
	}
	to, err := c.find(dst, n, true)
	if err != nil {
		return refuse(call, err.Error(), cuda.InvalidValue)
	}
	if n == 0 {
		return nil
	}
	c.copying(s, slices.Concat(from, to), func() cuda.Result { return c.move(to, n, next) })
	return nil
}

// copying queues a copy that uses memory.
func (c *context) copying(s *stream, pieces []piece, w work) {
	use := func(by int) {
		for _, p := range pieces {
			p.m.used += by
		}
	}
	use(1)
	s.add(func() cuda.Result {
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			use(-1)
		}()
		return w()
	})
}

// move is a copy: it takes its time, then its bytes pass through a buffer.
func (d *Driver) move(to []piece, n uint64, next func(b []byte, at uint64) error) cuda.Result {
	for d.machine.isHeld() {
		if !d.pass(time.Millisecond) {
			return 0
		}
	}
	took := d.options.Delay
	if rate := d.options.BytesPerSecond; rate > 0 {
		took += time.Duration(float64(n) / float64(rate) * float64(time.Second))
	}
	if !d.pass(took) {
		return 0
	}
	b := make([]byte, min(n, 1<<20))
	for at := uint64(0); at < n; at += uint64(len(b)) {
		b = b[:min(uint64(len(b)), n-at)]
		if next(b, at) != nil || write(d, to, b, at) != nil {
			return cuda.IllegalAddress
		}
	}
	return 0
}

func read(d *Driver, from []piece, b []byte, at uint64) error {
	return each(d, from, b, at, func(m *mapping, b []byte, at uint64) error {
		if m.host != nil {
			copy(b, m.host[at:])
			return nil
		}
		_, err := m.mem.file.ReadAt(b, int64(at))
		return err
	})
}

func write(d *Driver, to []piece, b []byte, at uint64) error {
	return each(d, to, b, at, func(m *mapping, b []byte, at uint64) error {
		if m.host != nil {
			copy(m.host[at:], b)
			return nil
		}
		// The memory's seal keeps this from growing what was freed.
		_, err := m.mem.file.WriteAt(b, int64(at))
		return err
	})
}

// each moves b to or from the pieces, beginning at their byte at.
func each(d *Driver, pieces []piece, b []byte, at uint64, do func(m *mapping, b []byte, at uint64) error) error {
	for _, p := range pieces {
		if at >= p.n {
			at -= p.n
			continue
		}
		k := min(uint64(len(b)), p.n-at)
		if err := d.check(p.m); err != nil {
			return err
		}
		if err := do(p.m, b[:k], p.at+at); err != nil {
			return err
		}
		if b = b[k:]; len(b) == 0 {
			return nil
		}
		at = 0
	}
	return fmt.Errorf("%d bytes beyond the range", len(b))
}

// check fails if a mapping is gone. The memory of a dead process that was
// opened by IPC is what freed memory is.
func (d *Driver) check(m *mapping) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.isGone {
		return fmt.Errorf("%#x was unmapped", m.base)
	}
	if m.mem != nil && m.mem.owner != "" && !d.machine.lives(m.mem.owner) {
		return spoil(m.mem.file, d.options.Poison)
	}
	return nil
}
