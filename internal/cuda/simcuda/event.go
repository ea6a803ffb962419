//go:build linux

package simcuda

import (
	"crypto/rand"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// event counts how often it was recorded, and which of these has completed: in
// memory that processes share, if it is an interprocess one.
type event struct {
	d     *Driver
	gpu   *gpu
	words *[2]atomic.Uint64
	holds int // the event itself, and work that is queued

	// Of an interprocess one.
	mem    []byte
	file   *os.File
	name   string
	handle *[64]byte
	owner  string // another process, of one that was opened
}

func (e *event) recorded() *atomic.Uint64  { return &e.words[0] }
func (e *event) completed() *atomic.Uint64 { return &e.words[1] }

// complete completes a record, and those before it.
func (e *event) complete(record uint64) {
	for {
		at := e.completed().Load()
		if at >= record || e.completed().CompareAndSwap(at, record) {
			return
		}
	}
}

// has reports whether a record has completed. The death of the process whose
// work it was completes it, as it ends the work.
func (e *event) has(record uint64) bool {
	return e.completed().Load() >= record || e.owner != "" && !e.d.machine.lives(e.owner)
}

// release drops a hold.
func (e *event) release() {
	if e.holds--; e.holds > 0 {
		return
	}
	if e.handle != nil {
		e.d.machine.withdraw(*e.handle)
	}
	if e.file != nil {
		_ = unix.Munmap(e.mem)
		e.file.Close()
	}
}

const wordsSize = 16

// share puts the words where other processes can have them.
func (e *event) share(f *os.File) error {
	mem, err := unix.Mmap(int(f.Fd()), 0, wordsSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		f.Close()
		return err
	}
	e.mem, e.file, e.words = mem, f, (*[2]atomic.Uint64)(unsafe.Pointer(&mem[0]))
	return nil
}

func (c *context) addEvent(e *event) cuda.Event {
	n := lowest(c.events)
	c.events[n] = e
	return n
}

// CreateEvent implements [cuda.Context].
func (c *context) CreateEvent(interprocess bool) (cuda.Event, error) {
	const call = "cuEventCreate"
	if err := c.enter(call); err != nil {
		return 0, err
	}
	defer c.leave()
	e := &event{d: c.Driver, gpu: c.gpu, holds: 1, words: new([2]atomic.Uint64)}
	if interprocess {
		if c.gpu.NoEventIPC {
			return 0, refuse(call, "an interprocess event", cuda.NotSupported)
		}
		e.name = "simcuda-event:" + rand.Text()
		f, err := newFile(e.name, wordsSize, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
		if err == nil {
			err = e.share(f)
		}
		if err != nil {
			return 0, refused(call, "an interprocess event", err)
		}
	}
	return c.addEvent(e), nil
}

// event finds one for a call.
func (c *context) event(n cuda.Event, call string) (*event, error) {
	if e := c.events[n]; e != nil {
		return e, nil
	}
	return nil, refuse(call, fmt.Sprintf("event %d, which does not exist", n), cuda.InvalidHandle)
}

// DestroyEvent implements [cuda.Context].
func (c *context) DestroyEvent(n cuda.Event) error {
	const call = "cuEventDestroy"
	if err := c.enter(call); err != nil {
		return err
	}
	defer c.leave()
	e, err := c.event(n, call)
	if err != nil {
		return err
	}
	delete(c.events, n)
	e.release()
	return nil
}

// both finds an event and a stream.
func (c *context) both(n cuda.Event, number cuda.Stream, call string) (*event, *stream, error) {
	e, err := c.event(n, call)
	if err != nil {
		return nil, nil, err
	}
	s, err := c.stream(number, call)
	return e, s, err
}

// after queues work with an event, which lives until it is done.
func (s *stream) after(e *event, w func()) {
	e.holds++
	s.add(func() cuda.Result {
		w()
		s.d.mu.Lock()
		defer s.d.mu.Unlock()
		e.release()
		return 0
	})
}

// Record implements [cuda.Context].
func (c *context) Record(n cuda.Event, number cuda.Stream) error {
	const call = "cuEventRecord"
	if err := c.enter(call); err != nil {
		return err
	}
	defer c.leave()
	e, s, err := c.both(n, number, call)
	if err != nil {
		return err
	}
	record := e.recorded().Add(1)
	s.after(e, func() { e.complete(record) })
	return nil
}

// Wait implements [cuda.Context].
func (c *context) Wait(number cuda.Stream, n cuda.Event) error {
	const call = "cuStreamWaitEvent"
	if err := c.enter(call); err != nil {
		return err
	}
	defer c.leave()
	e, s, err := c.both(n, number, call)
	if err != nil {
		return err
	}
	record := e.recorded().Load()
	d := c.Driver
	s.after(e, func() {
		for !e.has(record) && d.pass(50*time.Microsecond) {
		}
	})
	return nil
}

// QueryEvent implements [cuda.Context].
func (c *context) QueryEvent(n cuda.Event) (bool, error) {
	const call = "cuEventQuery"
	if err := c.enter(call); err != nil {
		return false, err
	}
	defer c.leave()
	e, err := c.event(n, call)
	return err == nil && e.has(e.recorded().Load()), err
}

// SyncEvent implements [cuda.Context].
func (c *context) SyncEvent(n cuda.Event) error {
	const call = "cuEventSynchronize"
	if err := c.enter(call); err != nil {
		return err
	}
	e, err := c.event(n, call)
	if err != nil {
		c.leave()
		return err
	}
	e.holds++
	c.leave()
	record := e.recorded().Load()
	var lost cuda.Result
	for lost == 0 && !e.has(record) && c.pass(50*time.Microsecond) {
		c.mu.Lock()
		lost = c.gpu.lost
		c.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e.release()
	if lost != 0 {
		return refuse(call, "", lost)
	}
	return nil
}

// ExportEvent implements [cuda.Context].
func (c *context) ExportEvent(n cuda.Event) (cuda.EventHandle, error) {
	const call = "cuIpcGetEventHandle"
	if err := c.enter(call); err != nil {
		return cuda.EventHandle{}, err
	}
	defer c.leave()
	e, err := c.event(n, call)
	if err != nil {
		return cuda.EventHandle{}, err
	}
	if e.file == nil || e.owner != "" {
		return cuda.EventHandle{}, refuse(call, "an event that is not this process's interprocess one", cuda.InvalidHandle)
	}
	if e.gpu != c.gpu {
		c.fault("%s of an event of GPU %d with GPU %d's context, where the real driver crashes", call, e.gpu.ordinal, c.gpu.ordinal)
		return cuda.EventHandle{}, refuse(call, "an event of another GPU", cuda.InvalidContext)
	}
	if e.handle == nil {
		var h [64]byte
		rand.Read(h[:])
		at := place{Process: c.process, PID: os.Getpid(), FD: int(e.file.Fd()), File: e.name}
		if err := c.machine.publish(h, at); err != nil {
			return cuda.EventHandle{}, refused(call, "", err)
		}
		e.handle = &h
	}
	return *e.handle, nil
}

// OpenEvent implements [cuda.Context].
func (c *context) OpenEvent(h cuda.EventHandle) (cuda.Event, error) {
	const call = "cuIpcOpenEventHandle"
	if err := c.enter(call); err != nil {
		return 0, err
	}
	defer c.leave()
	at, f, err := c.machine.resolve(h)
	if err != nil {
		return 0, refuse(call, "a handle that leads nowhere ("+err.Error()+")", cuda.InvalidHandle)
	}
	if at.Process == c.process {
		f.Close()
		return 0, refuse(call, "this process's own event", cuda.InvalidContext)
	}
	e := &event{d: c.Driver, gpu: c.gpu, holds: 1, name: at.File, owner: at.Process}
	if err := e.share(f); err != nil {
		return 0, refused(call, "", err)
	}
	return c.addEvent(e), nil
}
