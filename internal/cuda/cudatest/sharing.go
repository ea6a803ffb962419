//go:build linux

package cudatest

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// imported maps what the peer provided, and closes the descriptor.
func (b *bench) imported(c cuda.Context, a answer, writable bool) (*cuda.Mapping, error) {
	m, err := cuda.Import(c, a.Shared, writable)
	if a.Shared.Kind == cuda.PosixFD {
		err = errors.Join(err, unix.Close(a.Shared.FD))
	}
	return m, err
}

// free is the memory of the peer's device that nobody holds.
func (b *bench) free() uint64 {
	b.Helper()
	dev, err := b.Driver.Open(0)
	if err != nil {
		b.Fatal(err)
	}
	var free uint64
	err = dev.Do(func(c cuda.Context) (err error) {
		free, _, err = c.Memory()
		return err
	})
	if err := errors.Join(err, dev.Close()); err != nil {
		b.Fatal(err)
	}
	return free
}

func testShared(b *bench, kind cuda.Kind) {
	p := b.Peer(b.T)
	a := p.do(request{Op: "provide", Kind: kind, Size: size, Value: 0xa0})
	b.do(func(c cuda.Context) error {
		m, err := b.imported(c, a, true)
		if err != nil {
			return err
		}
		own, err := cuda.Allocate(c, size, 0)
		if err != nil {
			return err
		}
		err = errors.Join(
			holds(c, b.s, m.Base, size, 0xa0),
			c.Copy(own.Base, m.Base, size, b.s),
			holds(c, b.s, own.Base, size, 0xa0),
			fill(c, b.s, own.Base, size, 0xa1),
			c.Copy(m.Base, own.Base, size, b.s), c.SyncStream(b.s))
		if err != nil {
			return err
		}
		if err := uniform(p.do(request{Op: "read", ID: a.ID}).Bytes, 0xa1); err != nil {
			return fmt.Errorf("the peer reads what was written to it: %w", err)
		}
		p.do(request{Op: "fill", ID: a.ID, Value: 0xa2})
		return errors.Join(holds(c, b.s, m.Base, size, 0xa2), own.Close(c), m.Close(c), m.Close(c))
	})
	p.do(request{Op: "free", ID: a.ID})
}

// testCycles proves that nothing stays, however often.
func testCycles(b *bench, kind cuda.Kind) {
	const large, cycles = 16 << 20, 8
	p := b.Peer(b.T)
	cycle := func(value byte) {
		a := p.do(request{Op: "provide", Kind: kind, Size: large, Value: value})
		b.do(func(c cuda.Context) error {
			m, err := b.imported(c, a, true)
			if err != nil {
				return err
			}
			return errors.Join(holds(c, b.s, m.Base+large-size, size, value), m.Close(c))
		})
		p.do(request{Op: "free", ID: a.ID})
	}
	cycle(0) // what both processes set up once
	before := b.free()
	for i := range cycles {
		cycle(byte(i + 1))
	}
	// Less than one cycle's memory may be missing.
	b.eventually(func() error {
		if after := b.free(); after+large <= before {
			return fmt.Errorf("%d bytes were free, then %d", before, after)
		}
		return nil
	})
}

// testStale is the read that the transport has to prevent: an old mapping still
// reads the old bytes, and holds the memory.
func testStale(b *bench, kind cuda.Kind) {
	p := b.Peer(b.T)
	old := p.do(request{Op: "provide", Kind: kind, Size: size, Value: 0xa0})
	b.do(func(c cuda.Context) error {
		was, err := b.imported(c, old, true)
		if err != nil {
			return err
		}
		p.do(request{Op: "free", ID: old.ID})
		now := p.do(request{Op: "provide", Kind: kind, Size: size, Value: 0xb1})
		b.Logf("addresses %#x, then %#x", uint64(old.Base), uint64(now.Base))
		if b.Traits.SameAddress && now.Base != old.Base {
			err = fmt.Errorf("the address %#x was not used again, but %#x", uint64(old.Base), uint64(now.Base))
		}
		is, err2 := b.imported(c, now, true)
		if err2 != nil {
			return err2
		}
		return errors.Join(err,
			holds(c, b.s, was.Base, size, 0xa0),
			holds(c, b.s, is.Base, size, 0xb1),
			was.Close(c),
			holds(c, b.s, is.Base, size, 0xb1),
			is.Close(c))
	})
}

func testKilled(b *bench, kind cuda.Kind) {
	const large = 64 << 20
	warmUp := b.Peer(b.T)
	a := warmUp.do(request{Op: "provide", Kind: kind, Size: size})
	b.do(func(c cuda.Context) error {
		m, err := b.imported(c, a, true)
		return errors.Join(err, m.Close(c))
	})
	warmUp.Kill()
	p := b.Peer(b.T)
	before := b.free()
	a = p.do(request{Op: "provide", Kind: kind, Size: large, Value: 0xa0})
	b.do(func(c cuda.Context) error {
		m, err := b.imported(c, a, true)
		if err != nil {
			return err
		}
		p.Kill()
		err = holds(c, b.s, m.Base, size, 0xa0)
		held := b.free()
		if held+large/2 > before {
			err = errors.Join(err, fmt.Errorf("%d bytes were free, and %d while the dead process's memory is mapped", before, held))
		}
		return errors.Join(err, m.Close(c))
	})
	b.eventually(func() error {
		if after := b.free(); after+large/2 < before {
			return fmt.Errorf("%d bytes were free, then %d", before, after)
		}
		return nil
	})
}

// testReplaced: whoever closes the old mapping and imports the new handle reads
// the new bytes, even if address and handle are the same.
func testReplaced(b *bench, kind cuda.Kind) {
	p := b.Peer(b.T)
	for i := range 5 {
		a := p.do(request{Op: "provide", Kind: kind, Size: size, Value: byte(i + 1)})
		b.do(func(c cuda.Context) error {
			m, err := b.imported(c, a, true)
			if err != nil {
				return err
			}
			return errors.Join(holds(c, b.s, m.Base, size, byte(i+1)), m.Close(c))
		})
		p.do(request{Op: "free", ID: a.ID})
	}
}

func testTwice(b *bench, kind cuda.Kind) {
	p := b.Peer(b.T)
	a := p.do(request{Op: "provide", Kind: kind, Size: size, Value: 4})
	b.do(func(c cuda.Context) error {
		one, err := cuda.Import(c, a.Shared, true)
		if err != nil {
			return err
		}
		two, err := b.imported(c, a, true)
		switch {
		case kind != cuda.IPC:
			if err != nil {
				return err
			}
			return errors.Join(one.Close(c), holds(c, b.s, two.Base, size, 4), two.Close(c))
		case b.Traits.OpensAgain && err == nil:
			b.Logf("the second open answers %#x, the first %#x", uint64(two.Base), uint64(one.Base))
			return errors.Join(two.Close(c), holds(c, b.s, one.Base, size, 4), one.Close(c))
		}
		return errors.Join(refuses("opening twice", err), holds(c, b.s, one.Base, size, 4), one.Close(c))
	})
}

// testOtherEvent: a copy waits for the kernel of another process, which still
// runs when the copy is submitted.
func testOtherEvent(b *bench) {
	if !b.dev.Info().EventIPC {
		b.Skip("SKIPPED, the device has no interprocess events")
	}
	b.needs(cuda.PosixFD)
	p := b.Peer(b.T)
	a := p.do(request{Op: "provide", Kind: cuda.PosixFD, Size: size, Value: 1})
	b.do(func(c cuda.Context) error {
		m, err := b.imported(c, a, true)
		if err != nil {
			return err
		}
		// Once for what the first time takes.
		p.do(request{Op: "produce", ID: a.ID, Value: 1, Nanoseconds: 1})
		p.do(request{Op: "produced", ID: a.ID})
		err = b.copier(c, m.Base, func(copied func(byte) error) error {
			return inFlight(func(nanoseconds uint64) error {
				p.do(request{Op: "fill", ID: a.ID, Value: 1})
				h := p.do(request{Op: "produce", ID: a.ID, Value: 2, Nanoseconds: nanoseconds}).Event
				defer p.do(request{Op: "produced", ID: a.ID})
				e, err := c.OpenEvent(h)
				if err != nil {
					return err
				}
				early := copied(1)
				if done, err := c.QueryEvent(e); done || err != nil {
					return errors.Join(errDone, err, c.DestroyEvent(e))
				}
				return errors.Join(early, c.Wait(b.s, e), copied(2), c.DestroyEvent(e))
			})
		})
		return errors.Join(err, m.Close(c))
	})
}

// testOwnEvent: a process cannot open its own events.
func testOwnEvent(b *bench) {
	if !b.dev.Info().EventIPC {
		b.Skip("SKIPPED, the device has no interprocess events")
	}
	b.do(func(c cuda.Context) error {
		e, err := c.CreateEvent(true)
		if err != nil {
			return err
		}
		h, err := c.ExportEvent(e)
		if err == nil {
			_, err = c.OpenEvent(h)
			err = refuses("opening one's own event", err)
		}
		plain, err2 := c.CreateEvent(false)
		if err2 == nil {
			_, err2 = c.ExportEvent(plain)
			err2 = refuses("exporting an event that is not interprocess", err2)
		}
		return errors.Join(err, err2, c.DestroyEvent(e), c.DestroyEvent(plain))
	})
}
