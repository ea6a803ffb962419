//go:build linux

package simcuda

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/internal/cuda"
)

const size = 4 << 20

// oneGPU is a machine with one device that grants everything.
func oneGPU(t *testing.T) Options {
	return Options{Dir: t.TempDir(), Devices: []Device{{Fabric: FabricWorks}}}
}

// gpuOf opens a driver's first device, and closes it at the end.
func gpuOf(t *testing.T, d *Driver) cuda.Device {
	t.Helper()
	dev, err := d.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return dev
}

// do runs f on a device, and must succeed.
func do(t *testing.T, dev cuda.Device, f func(c cuda.Context) error) {
	t.Helper()
	if err := dev.Do(f); err != nil {
		t.Fatal(err)
	}
}

// mustBeClean fails if a driver holds anything but its open devices.
func mustBeClean(t *testing.T, d *Driver) {
	t.Helper()
	c := d.Counts()
	c.Contexts = 0
	if !c.IsClean() {
		t.Errorf("left: %+v", c)
	}
}

// held reads memory through a stream of its own.
func held(c cuda.Context, p cuda.Ptr, n int) (b []byte, err error) {
	s, err := c.CreateStream()
	if err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	defer unix.Munmap(mem)
	err = errors.Join(c.RegisterHost(mem, false), c.Copy(cuda.Host(mem), p, uint64(n), s), c.SyncStream(s))
	b = append(b, mem...)
	return b, errors.Join(err, c.UnregisterHost(mem), c.DestroyStream(s))
}

// set fills memory and waits.
func set(c cuda.Context, p cuda.Ptr, value byte) error {
	s, err := c.CreateStream()
	return errors.Join(err, c.Set(p, value, size, s), c.SyncStream(s), c.DestroyStream(s))
}

// between exports from one process and imports into another, and gives all back.
// It goes on after errors, as far as it has something to close.
func between(from, to cuda.Device, kind cuda.Kind) (err error) {
	var a *cuda.Allocation
	var e *cuda.Exported
	var m *cuda.Mapping
	err = from.Do(func(c cuda.Context) (err error) {
		if a, err = cuda.Allocate(c, size, kind); err == nil {
			e, err = cuda.Export(c, a.Base, size, kind)
		}
		return err
	})
	if err == nil {
		err = to.Do(func(c cuda.Context) (err error) {
			m, err = cuda.Import(c, e.Shared, true)
			return err
		})
	}
	// Each is closed until the driver lets it.
	for dev, closers := range map[cuda.Device][]func(cuda.Context) error{
		to:   {func(c cuda.Context) error { return again(m != nil, c, m.Close) }},
		from: {func(c cuda.Context) error { return again(e != nil, c, e.Close) }, func(c cuda.Context) error { return again(a != nil, c, a.Close) }},
	} {
		for _, f := range closers {
			err = errors.Join(err, dev.Do(f))
		}
	}
	return err
}

func again(exists bool, c cuda.Context, closing func(cuda.Context) error) error {
	if !exists {
		return nil
	}
	first := closing(c)
	if first == nil {
		return nil
	}
	return errors.Join(first, closing(c), closing(c))
}

// TestEachCallFails: whatever call of an export and import fails, in either
// process, nothing is left once what came back was closed.
func TestEachCallFails(t *testing.T) {
	for _, kind := range []cuda.Kind{cuda.PosixFD, cuda.Fabric, cuda.IPC} {
		t.Run(kind.String(), func(t *testing.T) {
			o := oneGPU(t)
			drivers := [2]*Driver{startDriver(t, o), startDriver(t, o)}
			from, to := gpuOf(t, drivers[0]), gpuOf(t, drivers[1])
			calls := [2]int{drivers[0].Calls(), drivers[1].Calls()}
			if err := between(from, to, kind); err != nil {
				t.Fatal(err)
			}
			for i, d := range drivers {
				calls[i] = d.Calls() - calls[i]
			}
			for i, d := range drivers {
				n := calls[i]
				if n < 2 {
					t.Fatalf("process %d made %d calls", i, n)
				}
				for after := range n {
					d.Inject(Injection{Result: cuda.LaunchFailed, After: after})
					err := between(from, to, kind)
					if !errors.Is(err, cuda.LaunchFailed) && !releasedLater(kind, i, after, err) {
						t.Errorf("process %d, call %d failed, but %v came back", i, after, err)
					}
					if d.Injected() != 0 {
						t.Fatalf("process %d, call %d did not fail", i, after)
					}
					for _, d := range drivers {
						mustBeClean(t, d)
					}
				}
			}
		})
	}
}

// releasedLater reports whether the failed call is the early release, which is
// tried again when the export or the mapping is closed, and is no error.
func releasedLater(kind cuda.Kind, process, call int, err error) bool {
	early := [2]int{8, 4}
	return kind != cuda.IPC && call == early[process] && err == nil
}

// TestClosingGoesOn where it failed, and frees in the order that the driver
// wants.
func TestClosingGoesOn(t *testing.T) {
	d := startDriver(t, oneGPU(t))
	do(t, gpuOf(t, d), func(c cuda.Context) error {
		a, err := cuda.Allocate(c, size, cuda.PosixFD)
		if err != nil {
			return err
		}
		for i, call := range []string{"cuMemUnmap", "cuMemAddressFree", "cuMemRelease"} {
			d.Inject(Injection{Call: call, Result: cuda.Unknown})
			if err := a.Close(c); !errors.Is(err, cuda.Unknown) {
				return fmt.Errorf("%s failed, but %v came back", call, err)
			}
			want := Counts{Handles: 1, References: 1, Reservations: 1, Mappings: 1, Streams: 0}
			want.Mappings -= min(i, 1)
			want.Reservations -= min(i/2, 1)
			if got := d.count(nil); fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("after %s failed there is %+v, want %+v", call, got, want)
			}
		}
		return a.Close(c)
	})
	mustBeClean(t, d)
}

// TestTwice: what was given back is not given back again.
func TestTwice(t *testing.T) {
	d := startDriver(t, oneGPU(t))
	do(t, gpuOf(t, d), func(c cuda.Context) error {
		h, err := c.Create(size, 0)
		if err != nil {
			return err
		}
		p, err := c.Alloc(size)
		if err != nil {
			return err
		}
		s, err := c.CreateStream()
		if err != nil {
			return err
		}
		e, err := c.CreateEvent(false)
		if err != nil {
			return err
		}
		if err := errors.Join(c.Release(h), c.Free(p), c.DestroyStream(s), c.DestroyEvent(e)); err != nil {
			return err
		}
		for _, err := range []error{
			c.Release(h), c.Free(p), c.DestroyStream(s), c.DestroyEvent(e), c.CloseIPC(p),
			c.Set(p, 1, 1, s), c.Record(e, s), c.Map(p, size, h), c.FreeAddress(p, size),
		} {
			var r cuda.Result
			if !errors.As(err, &r) {
				t.Errorf("not refused: %v", err)
			}
		}
		return nil
	})
	mustBeClean(t, d)
}

// TestReferences: what export and import retain is released at once; the
// mapping holds the memory.
func TestReferences(t *testing.T) {
	o := oneGPU(t)
	owner, user := startDriver(t, o), startDriver(t, o)
	from, to := gpuOf(t, owner), gpuOf(t, user)
	var a *cuda.Allocation
	var e *cuda.Exported
	var m *cuda.Mapping
	do(t, from, func(c cuda.Context) (err error) {
		if a, err = cuda.Allocate(c, size, cuda.PosixFD); err == nil {
			e, err = cuda.Export(c, a.Base, size, cuda.PosixFD)
		}
		return err
	})
	do(t, to, func(c cuda.Context) (err error) { m, err = cuda.Import(c, e.Shared, true); return err })
	if c := owner.Counts(); c.References != 1 || c.FDs != 1 {
		t.Errorf("the exporter holds %+v", c)
	}
	if c := user.Counts(); c.References != 0 || c.Mappings != 1 {
		t.Errorf("the importer holds %+v", c)
	}
	do(t, from, func(c cuda.Context) error { return errors.Join(e.Close(c), a.Close(c)) })
	do(t, to, m.Close)
	mustBeClean(t, owner)
	mustBeClean(t, user)
}

// TestLyingProvider: an IPC handle of less memory than its provider says.
func TestLyingProvider(t *testing.T) {
	o := oneGPU(t)
	owner, user := startDriver(t, o), startDriver(t, o)
	from, to := gpuOf(t, owner), gpuOf(t, user)
	for _, kind := range []cuda.Kind{cuda.PosixFD, cuda.Fabric, cuda.IPC} {
		do(t, from, func(c cuda.Context) error {
			a, err := cuda.Allocate(c, size, kind)
			if err != nil {
				return err
			}
			e, err := cuda.Export(c, a.Base, size, kind)
			if err != nil {
				return err
			}
			e.Size *= 2
			err = to.Do(func(c cuda.Context) error {
				m, err := cuda.Import(c, e.Shared, true)
				if m != nil {
					return errors.New("there is a mapping")
				}
				return err
			})
			if !errors.Is(err, cuda.InvalidValue) {
				t.Errorf("%s: %v", kind, err)
			}
			return errors.Join(e.Close(c), a.Close(c))
		})
		mustBeClean(t, user)
		mustBeClean(t, owner)
	}
}

// TestKinds: what a machine does not grant is tried and passed over.
func TestKinds(t *testing.T) {
	for _, e := range []struct {
		device Device
		want   cuda.Kind
		shown  bool // the attribute says fabric
	}{
		{Device{Fabric: FabricWorks}, cuda.Fabric, true},
		{Device{Fabric: FabricRefused}, cuda.PosixFD, true},
		{Device{}, cuda.PosixFD, false},
		{Device{Fabric: FabricRefused, NoPosixFD: true}, cuda.IPC, true},
		{Device{Fabric: FabricWorks, NoVMM: true}, cuda.IPC, false},
	} {
		d := startDriver(t, Options{Dir: t.TempDir(), Devices: []Device{e.device}})
		dev := gpuOf(t, d)
		if dev.Info().Fabric != e.shown {
			t.Errorf("%+v shows as %+v", e.device, dev.Info())
		}
		do(t, dev, func(c cuda.Context) error {
			a, err := cuda.Allocate(c, size, cuda.Fabric, cuda.PosixFD, cuda.IPC)
			if err != nil {
				return err
			}
			if a.Kind != e.want {
				t.Errorf("%+v grants %s, want %s", e.device, a.Kind, e.want)
			}
			return a.Close(c)
		})
		mustBeClean(t, d)
	}
}

// TestFreedIPC: the exporter frees what another process has open.
func TestFreedIPC(t *testing.T) {
	for _, poison := range []bool{false, true} {
		for _, dies := range []bool{false, true} {
			t.Run(fmt.Sprintf("poison %v, dies %v", poison, dies), func(t *testing.T) {
				o := oneGPU(t)
				o.Poison = poison
				owner, user := startDriver(t, o), startDriver(t, o)
				from, to := gpuOf(t, owner), gpuOf(t, user)
				var a *cuda.Allocation
				var m *cuda.Mapping
				do(t, from, func(c cuda.Context) (err error) {
					a, err = cuda.Allocate(c, size, cuda.IPC)
					if err != nil {
						return err
					}
					if err := set(c, a.Base, 1); err != nil {
						return err
					}
					e, err := cuda.Export(c, a.Base, size, cuda.IPC)
					if err != nil {
						return err
					}
					return to.Do(func(c cuda.Context) error {
						m, err = cuda.Import(c, e.Shared, true)
						return err
					})
				})
				if dies {
					owner.Close()
				} else {
					do(t, from, a.Close)
				}
				var b []byte
				err := to.Do(func(c cuda.Context) (err error) {
					b, err = held(c, m.Base, size)
					return err
				})
				if !poison {
					if !errors.Is(err, cuda.IllegalAddress) || !cuda.IsLost(err) {
						t.Errorf("%v", err)
					}
					// The context is lost, for everything; closing it is the end.
					if err := to.Do(func(c cuda.Context) error { _, _, err := c.Memory(); return err }); !errors.Is(err, cuda.IllegalAddress) {
						t.Errorf("%v", err)
					}
					if err := to.Close(); err != nil {
						t.Error(err)
					}
					mustBeClean(t, user)
					return
				}
				if err != nil || b[0] != PoisonByte || b[size-1] != PoisonByte {
					t.Errorf("%v, %x", err, b[:1])
				}
				do(t, to, m.Close)
				mustBeClean(t, user)
			})
		}
	}
}

// TestNumbersRepeat: address, IPC handle and descriptor are the same for another
// allocation, so that none of them is an identity.
func TestNumbersRepeat(t *testing.T) {
	for _, kind := range []cuda.Kind{cuda.PosixFD, cuda.IPC} {
		d := startDriver(t, oneGPU(t))
		var seen [2]cuda.Exported
		var base [2]cuda.Ptr
		for i := range 2 {
			do(t, gpuOf(t, d), func(c cuda.Context) error {
				a, err := cuda.Allocate(c, size, kind)
				if err != nil {
					return err
				}
				e, err := cuda.Export(c, a.Base, size, kind)
				if err != nil {
					return err
				}
				base[i], seen[i].Shared = a.Base, e.Shared
				return errors.Join(e.Close(c), a.Close(c))
			})
		}
		if base[0] != base[1] || seen[0].Shared != seen[1].Shared {
			t.Errorf("%s: %#x and %#x, %v and %v", kind, uint64(base[0]), uint64(base[1]), seen[0].Shared, seen[1].Shared)
		}
		mustBeClean(t, d)
	}
}

// TestHold: what is in flight stays so, and unmapping its memory costs the context.
func TestHold(t *testing.T) {
	o := oneGPU(t)
	d := startDriver(t, o)
	dev := gpuOf(t, d)
	var a *cuda.Allocation
	var s cuda.Stream
	if err := Hold(o.Dir); err != nil {
		t.Fatal(err)
	}
	do(t, dev, func(c cuda.Context) (err error) {
		if a, err = cuda.Allocate(c, size, 0); err != nil {
			return err
		}
		if s, err = c.CreateStream(); err != nil {
			return err
		}
		if err := c.Set(a.Base, 1, size, s); err != nil {
			return err
		}
		if idle, err := c.QueryStream(s); idle || err != nil {
			return fmt.Errorf("a held stream answers %v, %v", idle, err)
		}
		return c.Unmap(a.Base, size)
	})
	if faults := d.Counts().Faults; len(faults) != 1 {
		t.Errorf("faults: %v", faults)
	}
	if err := Resume(o.Dir); err != nil {
		t.Fatal(err)
	}
	err := dev.Do(func(c cuda.Context) error { return c.SyncStream(s) })
	if !errors.Is(err, cuda.IllegalAddress) {
		t.Errorf("%v", err)
	}
}

// TestSlow: copies take what the options say.
func TestSlow(t *testing.T) {
	o := oneGPU(t)
	o.Delay, o.BytesPerSecond = 20*time.Millisecond, 100<<20
	d := startDriver(t, o)
	do(t, gpuOf(t, d), func(c cuda.Context) error {
		a, err := cuda.Allocate(c, size, 0)
		if err != nil {
			return err
		}
		began := time.Now()
		err = set(c, a.Base, 1)
		if took := time.Since(began); took < 60*time.Millisecond {
			t.Errorf("4 MiB at 100 MiB/s after 20 ms took %v", took)
		}
		return errors.Join(err, a.Close(c))
	})
	mustBeClean(t, d)
}

func TestMemoryIsLimited(t *testing.T) {
	o := oneGPU(t)
	o.Devices[0].Memory = 3 * size
	one, two := startDriver(t, o), startDriver(t, o)
	a, b := gpuOf(t, one), gpuOf(t, two)
	free := func(dev cuda.Device) (free uint64) {
		do(t, dev, func(c cuda.Context) (err error) {
			free, _, err = c.Memory()
			return err
		})
		return free
	}
	var x, y *cuda.Allocation
	do(t, a, func(c cuda.Context) (err error) { x, err = cuda.Allocate(c, 2*size, 0); return err })
	err := b.Do(func(c cuda.Context) error { _, err := cuda.Allocate(c, 2*size, cuda.PosixFD, cuda.IPC); return err })
	if !errors.Is(err, cuda.OutOfMemory) || free(b) != size {
		t.Errorf("%v, and %d bytes are free", err, free(b))
	}
	do(t, b, func(c cuda.Context) (err error) { y, err = cuda.Allocate(c, size, cuda.IPC); return err })
	if free(a) != 0 {
		t.Errorf("%d bytes are free", free(a))
	}
	do(t, a, x.Close)
	do(t, b, y.Close)
	if free(a) != 3*size || free(b) != 3*size {
		t.Errorf("%d bytes are free", free(a))
	}
	mustBeClean(t, one)
	mustBeClean(t, two)
}

func TestComputeMode(t *testing.T) {
	o := Options{Dir: t.TempDir(), Devices: []Device{{Mode: cuda.ModeExclusiveProcess}, {Mode: cuda.ModeProhibited}}}
	one, two := startDriver(t, o), startDriver(t, o)
	dev := gpuOf(t, one)
	second, err := one.Open(0)
	if err != nil {
		t.Fatalf("the process that has the device cannot open it again: %v", err)
	}
	var missing *cuda.MissingError
	if _, err := two.Open(0); !errors.As(err, &missing) || !errors.Is(err, cuda.DeviceUnavailable) {
		t.Errorf("another process's device: %v", err)
	}
	if _, err := one.Open(1); !errors.Is(err, cuda.DeviceUnavailable) {
		t.Errorf("a prohibited device: %v", err)
	}
	second.Close()
	dev.Close()
	if dev, err = two.Open(0); err != nil {
		t.Fatalf("a device that was given back: %v", err)
	}
	dev.Close()
	mustBeClean(t, one)
	mustBeClean(t, two)
}

func TestMissing(t *testing.T) {
	o := oneGPU(t)
	o.Missing = "libcuda.so.1"
	d := startDriver(t, o)
	var missing *cuda.MissingError
	if _, err := d.Devices(); !errors.As(err, &missing) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if _, err := d.Open(0); !errors.As(err, &missing) {
		t.Errorf("%v", err)
	}
}

// TestFaults: wrong orders that the real driver lets pass are recorded, by the
// process and by the machine.
func TestFaults(t *testing.T) {
	o := oneGPU(t)
	d := startDriver(t, o)
	dev := gpuOf(t, d)
	var kept cuda.Context
	do(t, dev, func(c cuda.Context) error {
		kept = c
		_, err := c.CreateStream()
		return err
	})
	if _, err := kept.CreateStream(); !errors.Is(err, cuda.InvalidContext) {
		t.Errorf("a context outside Do: %v", err)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
	c := d.Counts()
	if len(c.Faults) != 2 || c.Streams != 1 || c.IsClean() {
		t.Errorf("%+v", c)
	}
	if all, err := Faults(o.Dir); err != nil || len(all) != 2 {
		t.Errorf("of the machine: %q, %v", all, err)
	}
}

// TestEventOfAnotherGPU: what crashes the process on the real driver is a fault.
func TestEventOfAnotherGPU(t *testing.T) {
	d := startDriver(t, Options{Dir: t.TempDir(), Devices: make([]Device, 2)})
	other, err := d.Open(1)
	if err != nil {
		t.Fatal(err)
	}
	var e cuda.Event
	do(t, gpuOf(t, d), func(c cuda.Context) (err error) { e, err = c.CreateEvent(true); return err })
	err = other.Do(func(c cuda.Context) error { _, err := c.ExportEvent(e); return err })
	if faults := d.Counts().Faults; !errors.Is(err, cuda.InvalidContext) || len(faults) != 1 {
		t.Errorf("%v, faults: %v", err, faults)
	}
	do(t, other, func(c cuda.Context) error { return c.DestroyEvent(e) })
	if err := other.Close(); err != nil {
		t.Error(err)
	}
}

// TestEventOfTheDead: the end of a process ends its work, and with it whoever
// waits for that.
func TestEventOfTheDead(t *testing.T) {
	o := oneGPU(t)
	owner, user := startDriver(t, o), startDriver(t, o)
	var h cuda.EventHandle
	do(t, gpuOf(t, owner), func(c cuda.Context) error {
		s, err := c.CreateStream()
		if err != nil {
			return err
		}
		e, err := c.CreateEvent(true)
		if err != nil {
			return err
		}
		if err := errors.Join(c.(cuda.Busier).Busy(uint64(time.Hour), s), c.Record(e, s)); err != nil {
			return err
		}
		h, err = c.ExportEvent(e)
		return err
	})
	do(t, gpuOf(t, user), func(c cuda.Context) error {
		e, err := c.OpenEvent(h)
		if err != nil {
			return err
		}
		s, err := c.CreateStream()
		if err != nil {
			return err
		}
		if done, err := c.QueryEvent(e); done || err != nil {
			return fmt.Errorf("an event of work that takes an hour answers %v, %v", done, err)
		}
		if err := c.Wait(s, e); err != nil {
			return err
		}
		owner.alive.Close() // all that another process sees of its death
		return errors.Join(c.SyncStream(s), c.SyncEvent(e), c.DestroyStream(s), c.DestroyEvent(e))
	})
	mustBeClean(t, user)
}
