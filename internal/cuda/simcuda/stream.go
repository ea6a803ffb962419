//go:build linux

package simcuda

import (
	"fmt"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// stream does its work in order, on a goroutine of its own.
type stream struct {
	d        *Driver
	gpu      *gpu
	wake     *sync.Cond // the driver's lock
	queue    []work     // the first is being done
	isEnding bool
}

// work runs without the lock. It returns what costs the context, or 0, and does
// not wait for anything once the driver is dead.
type work func() cuda.Result

// CreateStream implements [cuda.Context].
func (c *context) CreateStream() (cuda.Stream, error) {
	if err := c.enter("cuStreamCreate"); err != nil {
		return 0, err
	}
	defer c.leave()
	s := &stream{d: c.Driver, gpu: c.gpu, wake: sync.NewCond(&c.mu)}
	n := lowest(c.streams)
	c.streams[n] = s
	c.running.Go(s.run)
	return n, nil
}

func (s *stream) run() {
	d := s.d
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		for len(s.queue) == 0 && !s.isEnding && !d.isClosed {
			s.wake.Wait()
		}
		if len(s.queue) == 0 {
			return
		}
		if s.gpu.lost == 0 {
			w := s.queue[0]
			d.mu.Unlock()
			r := w()
			d.mu.Lock()
			if s.gpu.lost == 0 {
				s.gpu.lost = r
			}
		}
		s.queue = s.queue[1:]
		s.wake.Broadcast()
	}
}

func (s *stream) add(w work) {
	s.queue = append(s.queue, w)
	s.wake.Broadcast()
}

// end lets the goroutine end after what is queued.
func (s *stream) end() {
	s.isEnding = true
	s.wake.Broadcast()
}

// stream finds one for a call.
func (c *context) stream(n cuda.Stream, call string) (*stream, error) {
	s := c.streams[n]
	if s == nil || s.gpu != c.gpu {
		return nil, refuse(call, fmt.Sprintf("stream %d, which GPU %d does not have", n, c.gpu.ordinal), cuda.InvalidHandle)
	}
	return s, nil
}

// DestroyStream implements [cuda.Context].
func (c *context) DestroyStream(n cuda.Stream) error {
	const call = "cuStreamDestroy"
	if err := c.enter(call); err != nil {
		return err
	}
	defer c.leave()
	s, err := c.stream(n, call)
	if err != nil {
		return err
	}
	delete(c.streams, n)
	s.end()
	return nil
}

// QueryStream implements [cuda.Context].
func (c *context) QueryStream(n cuda.Stream) (bool, error) {
	const call = "cuStreamQuery"
	if err := c.enter(call); err != nil {
		return false, err
	}
	defer c.leave()
	s, err := c.stream(n, call)
	return err == nil && len(s.queue) == 0, err
}

// SyncStream implements [cuda.Context].
func (c *context) SyncStream(n cuda.Stream) error {
	const call = "cuStreamSynchronize"
	if err := c.enter(call); err != nil {
		return err
	}
	defer c.leave()
	s, err := c.stream(n, call)
	if err != nil {
		return err
	}
	return c.sync(call, s)
}

// sync waits for what is queued. The lock is held.
func (c *context) sync(call string, s *stream) error {
	for len(s.queue) > 0 && c.gpu.lost == 0 && !c.isClosed {
		s.wake.Wait()
	}
	if c.gpu.lost != 0 {
		return refuse(call, "", c.gpu.lost)
	}
	return nil
}

// Busy implements [cuda.Busier].
func (c *context) Busy(nanoseconds uint64, n cuda.Stream) error {
	const call = "cuLaunchKernel"
	if err := c.enter(call); err != nil {
		return err
	}
	defer c.leave()
	s, err := c.stream(n, call)
	if err == nil {
		s.add(func() cuda.Result { c.pass(time.Duration(nanoseconds)); return 0 })
	}
	return err
}

// pass lets time pass, and reports whether the driver lives.
func (d *Driver) pass(t time.Duration) bool {
	if t <= 0 {
		return true
	}
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-d.dead:
		return false
	}
}
