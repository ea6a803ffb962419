//go:build linux

package cudatest

import (
	"crypto/rand"
	"errors"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// hazards are mistakes, and lies of another process, that may cost the context.
// They must end in an error all the same, whichever, and not in a crash. Memory
// is one granule that is mapped; beyond it nothing is.
var hazards = []struct {
	name string
	run  func(c cuda.Context, s cuda.Stream, memory *cuda.Allocation) error
}{
	{"a copy from memory that is gone", func(c cuda.Context, s cuda.Stream, memory *cuda.Allocation) error {
		gone, err := gone(c)
		return errors.Join(err, c.Copy(memory.Base, gone, 4096, s))
	}},
	{"a copy to memory that is gone", func(c cuda.Context, s cuda.Stream, memory *cuda.Allocation) error {
		gone, err := gone(c)
		return errors.Join(err, c.Copy(gone, memory.Base, 4096, s))
	}},
	{"a copy from beyond the memory's end", func(c cuda.Context, s cuda.Stream, memory *cuda.Allocation) error {
		return c.Copy(memory.Base, memory.Base+cuda.Ptr(memory.Size)-100, 4096, s)
	}},
	{"a copy to beyond the memory's end", func(c cuda.Context, s cuda.Stream, memory *cuda.Allocation) error {
		return c.Copy(memory.Base+cuda.Ptr(memory.Size)-100, memory.Base, 4096, s)
	}},
	{"a copy without access", func(c cuda.Context, s cuda.Stream, memory *cuda.Allocation) error {
		h, err := c.Create(memory.Size, 0)
		if err != nil {
			return err
		}
		p, err := c.Reserve(memory.Size)
		return errors.Join(err, c.Map(p, memory.Size, h), c.Copy(p, memory.Base, 4096, s))
	}},
	{"a copy from address 0", func(c cuda.Context, s cuda.Stream, memory *cuda.Allocation) error {
		return c.Copy(memory.Base, 0, 4096, s)
	}},
	{"a write to address 0", func(c cuda.Context, s cuda.Stream, memory *cuda.Allocation) error {
		return c.Write(0, make([]byte, 4096), s)
	}},
	{"a read from memory that is gone", func(c cuda.Context, s cuda.Stream, memory *cuda.Allocation) error {
		gone, err := gone(c)
		return errors.Join(err, c.Read(make([]byte, 4096), gone, s))
	}},
	{"an IPC handle of random bytes", func(c cuda.Context, s cuda.Stream, memory *cuda.Allocation) error {
		h := cuda.Shared{Kind: cuda.IPC, Size: memory.Size}
		rand.Read(h.Bytes[:])
		_, err := c.OpenIPC(h)
		return err
	}},
	{"an event handle of random bytes", func(c cuda.Context, s cuda.Stream, memory *cuda.Allocation) error {
		var h cuda.EventHandle
		rand.Read(h[:])
		_, err := c.OpenEvent(h)
		return err
	}},
}

// gone is an address where memory was.
func gone(c cuda.Context) (cuda.Ptr, error) {
	a, err := cuda.Allocate(c, size, 0)
	if err != nil {
		return 0, err
	}
	return a.Base, a.Close(c)
}

// risk meets a hazard, in a peer, on its own memory. Only the driver's refusal
// is an error, not what the test could not set up.
func risk(c cuda.Context, s cuda.Stream, number int) (refusal error, err error) {
	memory, err := cuda.Allocate(c, 1, 0)
	if err != nil {
		return nil, err
	}
	refusal = hazards[number].run(c, s, memory)
	if refusal == nil {
		refusal = c.SyncStream(s)
	}
	return refusal, nil
}

func testHazards(b *bench) {
	for i, h := range hazards {
		p := b.Peer(b.T)
		a, err := p.ask(request{Op: "risk", ID: i})
		p.Kill()
		if err != nil || a.Refusal == "" {
			b.Errorf("%s: %q, %v", h.name, a.Refusal, err)
			continue
		}
		b.Logf("%s: %s", h.name, a.Refusal)
	}
	// None of that has reached this process.
	b.do(func(c cuda.Context) error { return warm(c, b.s) })
}
