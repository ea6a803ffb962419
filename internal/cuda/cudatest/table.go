//go:build linux

// Package cudatest is the table of tests that every implementation of
// [cuda.Driver] passes: on the simulation in CI, on the real driver where there
// is a GPU.
package cudatest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// Rig is what the table runs on.
type Rig struct {
	Driver cuda.Driver
	// Peer starts another process on the same machine.
	Peer func(t *testing.T) *Peer
	// Clean fails if this process holds anything. May be nil.
	Clean  func() error
	Traits Traits
}

// Traits are where drivers may differ.
type Traits struct {
	// SameAddress: an address is used again at once after it was freed.
	SameAddress bool
	// OpensAgain: a second open of an IPC handle answers the first's address.
	OpensAgain bool
	// UnmapsNothing: unmapping addresses that are reserved and not mapped is no
	// error, as with the driver 580 on H200s.
	UnmapsNothing bool
}

// Run runs the table. Open makes the rig of one test.
func Run(t *testing.T, open func(t *testing.T) Rig) {
	for _, e := range table {
		t.Run(e.name, func(t *testing.T) {
			e.run(start(t, open(t)))
		})
	}
	for _, kind := range []cuda.Kind{cuda.PosixFD, cuda.Fabric, cuda.IPC} {
		RunSharing(t, kind, open)
	}
}

// RunSharing runs the tests of two processes with one kind of handle. They are
// skipped where the driver does not grant it.
func RunSharing(t *testing.T, kind cuda.Kind, open func(t *testing.T) Rig) {
	for _, e := range sharing {
		if kind == cuda.IPC && e.noIPC {
			continue
		}
		t.Run(kind.String()+"/"+e.name, func(t *testing.T) {
			b := start(t, open(t))
			b.needs(kind)
			e.run(b, kind)
		})
	}
}

var table = []struct {
	name string
	run  func(*bench)
}{
	{"devices", testDevices},
	{"allocate and copy", testAllocate},
	{"host memory", testHost},
	{"read-only host memory", testReadOnlyHost},
	{"ordinary host memory", testOrdinaryHost},
	{"copies are in order", testOrder},
	{"events", testEvents},
	{"wait for an event", testWait},
	{"wrong orders are refused", testWrongOrders},
	{"gone memory is refused", testGone},
	{"read-only mapping", testReadOnlyMapping},
	{"pointers", testPointers},
	{"where memory is", testWhere},
	{"several allocations in a range", testSeveral},
	{"handles that lead nowhere", testNowhere},
	{"hazards", testHazards},
	{"closed device", testClosed},
	{"event of another process", testOtherEvent},
	{"event of the same process", testOwnEvent},
}

// sharing are the tests of two processes, for each kind.
var sharing = []struct {
	name  string
	noIPC bool // a case that is undefined for IPC
	run   func(*bench, cuda.Kind)
}{
	{"write and read", false, testShared},
	{"again and again", false, testCycles},
	{"old bytes after free", true, testStale},
	{"old bytes after SIGKILL", true, testKilled},
	{"a new allocation at the same address", false, testReplaced},
	{"open twice", false, testTwice},
}

// size is large enough to be several granules, of any device.
const size = 8 << 20

// soon is far more than anything here takes.
const soon = 10 * time.Second

// bench is a rig in a test, with the last device open: the peer's memory is on
// the first, so that copies cross devices where there are two.
type bench struct {
	*testing.T
	Rig
	infos []cuda.Info
	dev   cuda.Device
	s     cuda.Stream
}

func start(t *testing.T, r Rig) *bench {
	t.Helper()
	b := &bench{T: t, Rig: r}
	var err error
	if b.infos, err = r.Driver.Devices(); err != nil || len(b.infos) == 0 {
		t.Fatalf("devices: %v, %v", b.infos, err)
	}
	if b.dev, err = r.Driver.Open(len(b.infos) - 1); err != nil {
		t.Fatal(err)
	}
	b.do(func(c cuda.Context) error {
		b.s, err = c.CreateStream()
		return err
	})
	t.Cleanup(func() {
		if err := b.dev.Do(func(c cuda.Context) error { return c.DestroyStream(b.s) }); err != nil && !errors.Is(err, cuda.ErrClosed) {
			t.Error(err)
		}
		if err := b.dev.Close(); err != nil {
			t.Error(err)
		}
		if r.Clean != nil {
			if err := r.Clean(); err != nil {
				t.Error(err)
			}
		}
	})
	return b
}

// do runs f on the device, and must succeed.
func (b *bench) do(f func(cuda.Context) error) {
	b.Helper()
	if err := b.dev.Do(f); err != nil {
		b.Fatal(err)
	}
}

// needs skips the test where the driver does not grant a kind.
func (b *bench) needs(kind cuda.Kind) {
	b.Helper()
	err := b.dev.Do(func(c cuda.Context) error {
		a, err := cuda.Allocate(c, size, kind)
		if err != nil {
			return err
		}
		return a.Close(c)
	})
	switch {
	case errors.Is(err, cuda.NotPermitted), errors.Is(err, cuda.NotSupported):
		b.Skipf("SKIPPED, this machine does not grant %s handles: %v", kind, err)
	case err != nil:
		b.Fatal(err)
	}
}

// eventually fails unless f succeeds soon.
func (b *bench) eventually(f func() error) {
	b.Helper()
	deadline := time.Now().Add(soon)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			b.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

// refuses fails unless the driver refuses.
func refuses(what string, err error) error {
	var r cuda.Result
	if errors.As(err, &r) {
		return nil
	}
	return errors.Join(fmt.Errorf("%s is not refused", what), err)
}

func testDevices(b *bench) {
	seen := map[cuda.UUID]bool{}
	for i, info := range b.infos {
		if info.Ordinal != i || info.Name == "" || seen[info.UUID] {
			b.Errorf("device %d is %+v", i, info)
		}
		seen[info.UUID] = true
		b.Logf("%d: %+v", i, info)
	}
	if b.dev.Info() != b.infos[len(b.infos)-1] {
		b.Errorf("%+v is open", b.dev.Info())
	}
	if _, err := b.Driver.Open(len(b.infos)); !errors.Is(err, cuda.InvalidDevice) {
		b.Errorf("one device too many answers %v", err)
	}
	b.do(func(c cuda.Context) error {
		free, total, err := c.Memory()
		if err == nil && (free == 0 || free > total) {
			err = fmt.Errorf("%d bytes of %d are free", free, total)
		}
		unit, err2 := c.Granularity(0)
		if err2 == nil && (unit == 0 || size%unit != 0) {
			err2 = fmt.Errorf("granularity %d", unit)
		}
		return errors.Join(err, err2)
	})
}

// allocated runs do with two allocations, of values 1 and 2.
func (b *bench) allocated(do func(c cuda.Context, one, two *cuda.Allocation) error) {
	b.Helper()
	b.do(func(c cuda.Context) error {
		one, err := cuda.Allocate(c, size, 0)
		if err != nil {
			return err
		}
		two, err := cuda.Allocate(c, size, 0)
		if err != nil {
			return errors.Join(err, one.Close(c))
		}
		err = errors.Join(fill(c, b.s, one.Base, size, 1), fill(c, b.s, two.Base, size, 2))
		if err == nil {
			err = do(c, one, two)
		}
		return errors.Join(err, c.SyncStream(b.s), one.Close(c), two.Close(c), two.Close(c)) // closing twice does nothing
	})
}

func testAllocate(b *bench) {
	b.allocated(func(c cuda.Context, one, two *cuda.Allocation) error {
		const from, to, n = 12345, 4<<20 + 777, 1<<20 + 1
		return errors.Join(
			c.Copy(two.Base+to, one.Base+from, n, b.s),
			holds(c, b.s, two.Base, to, 2),
			holds(c, b.s, two.Base+to, n, 1),
			holds(c, b.s, two.Base+to+n, size-to-n, 2))
	})
	b.do(func(c cuda.Context) error {
		a, err := cuda.Allocate(c, 1, 0)
		if err != nil {
			return err
		}
		if a.Size < 1<<10 || size%a.Size != 0 {
			err = fmt.Errorf("1 byte was rounded up to %d", a.Size)
		}
		return errors.Join(err, a.Close(c))
	})
}

func testHost(b *bench) {
	b.allocated(func(c cuda.Context, one, two *cuda.Allocation) error {
		const n = 1 << 20
		return withHost(c, n, func(mem []byte) error {
			for i := range mem {
				mem[i] = byte(i * 7)
			}
			if err := errors.Join(
				c.Copy(one.Base+100, cuda.Host(mem), n, b.s),
				c.Copy(two.Base, one.Base+100, n, b.s),
				c.SyncStream(b.s)); err != nil {
				return err
			}
			got, err := load(c, b.s, two.Base, n)
			if err == nil && string(got) != string(mem) {
				err = errors.New("the bytes that came back are others")
			}
			return errors.Join(err,
				refuses("registering twice", c.RegisterHost(mem, false)),
				refuses("unregistering other memory", c.UnregisterHost(mem[4096:])),
				refuses("more host memory than is registered", c.Copy(one.Base, cuda.Host(mem)+4096, n, b.s)))
		})
	})
}

func testReadOnlyHost(b *bench) {
	if !b.dev.Info().ReadOnlyHost {
		b.Skip("SKIPPED, the device registers no read-only host memory")
	}
	mem, err := hostMemory(1<<16, unix.PROT_READ)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	b.allocated(func(c cuda.Context, one, two *cuda.Allocation) error {
		if err := c.RegisterHost(mem, true); err != nil {
			return err
		}
		return errors.Join(
			c.Copy(one.Base, cuda.Host(mem), 1<<16, b.s),
			holds(c, b.s, one.Base, 1<<16, 0),
			c.UnregisterHost(mem))
	})
}

// testOrdinaryHost: bytes of Go's heap go in and come out, after what was queued
// before.
func testOrdinaryHost(b *bench) {
	b.allocated(func(c cuda.Context, one, two *cuda.Allocation) error {
		in, out := make([]byte, 1<<20+3), make([]byte, 1<<20+3)
		for i := range in {
			in[i] = byte(i * 11)
		}
		err := errors.Join(
			c.Set(one.Base, 9, size, b.s),
			c.Write(one.Base+1000, in, b.s),
			c.Copy(two.Base, one.Base, size, b.s),
			c.Read(out, two.Base+1000, b.s),
			holds(c, b.s, two.Base, 1000, 9),
			c.Write(one.Base, nil, b.s), c.Read(nil, one.Base, b.s))
		if err == nil && string(in) != string(out) {
			err = errors.New("the bytes that came back are others")
		}
		return err
	})
}

func testOrder(b *bench) {
	b.allocated(func(c cuda.Context, one, two *cuda.Allocation) error {
		var err error
		for i := range 10 {
			err = errors.Join(err,
				c.Set(one.Base, byte(140+i), size, b.s),
				c.Copy(two.Base, one.Base, size, b.s))
		}
		return errors.Join(err, holds(c, b.s, two.Base, size, 149))
	})
}

// errDone is a producer that was done before this process came to look.
var errDone = errors.New("the work was done before it could be seen in flight")

// inFlight runs do with work that takes long enough to be seen in flight, for
// longer each time that it was not.
func inFlight(do func(nanoseconds uint64) error) error {
	for busy := 200 * time.Millisecond; ; busy *= 2 {
		if err := do(uint64(busy)); !errors.Is(err, errDone) || busy > soon {
			return err
		}
	}
}

func busy(c cuda.Context, nanoseconds uint64, s cuda.Stream) error {
	return c.(cuda.Busier).Busy(nanoseconds, s)
}

// warm runs the busy kernel once: its first launch waits for its translation.
func warm(c cuda.Context, s cuda.Stream) error {
	return errors.Join(busy(c, 1, s), c.SyncStream(s))
}

func testEvents(b *bench) {
	b.do(func(c cuda.Context) error {
		e, err := c.CreateEvent(false)
		if err != nil {
			return err
		}
		if done, err := c.QueryEvent(e); !done || err != nil {
			return errors.Join(fmt.Errorf("an event that was never recorded answers %v", done), err)
		}
		err = errors.Join(warm(c, b.s), inFlight(func(nanoseconds uint64) error {
			if err := errors.Join(busy(c, nanoseconds, b.s), c.Record(e, b.s)); err != nil {
				return err
			}
			event, err1 := c.QueryEvent(e)
			stream, err2 := c.QueryStream(b.s)
			if err := errors.Join(err1, err2); event || stream || err != nil {
				return errors.Join(errDone, err)
			}
			if err := c.SyncEvent(e); err != nil {
				return err
			}
			event, err1 = c.QueryEvent(e)
			err1 = errors.Join(err1, c.SyncStream(b.s))
			stream, err2 = c.QueryStream(b.s)
			if err := errors.Join(err1, err2); !event || !stream || err != nil {
				return errors.Join(fmt.Errorf("after its work the event answers %v, the stream %v", event, stream), err)
			}
			return nil
		}))
		return errors.Join(err, c.DestroyEvent(e))
	})
}

// copier copies memory out, into host memory that is registered beforehand: that
// may wait for work in flight.
func (b *bench) copier(c cuda.Context, from cuda.Ptr, do func(copied func(want byte) error) error) error {
	return withHost(c, size, func(mem []byte) error {
		return do(func(want byte) error {
			if err := errors.Join(c.Copy(cuda.Host(mem), from, size, b.s), c.SyncStream(b.s)); err != nil {
				return err
			}
			return uniform(mem, want)
		})
	})
}

func testWait(b *bench) {
	b.allocated(func(c cuda.Context, one, two *cuda.Allocation) error {
		other, err := c.CreateStream()
		if err != nil {
			return err
		}
		e, err := c.CreateEvent(false)
		if err != nil {
			return err
		}
		err = b.copier(c, one.Base, func(copied func(byte) error) error {
			return errors.Join(warm(c, other), inFlight(func(nanoseconds uint64) error {
				if err := errors.Join(
					fill(c, other, one.Base, size, 1),
					busy(c, nanoseconds, other),
					c.Set(one.Base, 3, size, other), c.Record(e, other)); err != nil {
					return err
				}
				// Without the wait a copy overtakes the producer.
				early := copied(1)
				if done, err := c.QueryEvent(e); done || err != nil {
					return errors.Join(errDone, err)
				}
				return errors.Join(early, c.Wait(b.s, e), copied(3))
			}))
		})
		return errors.Join(err, c.SyncStream(other), c.DestroyEvent(e), c.DestroyStream(other))
	})
}
