//go:build linux

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
	driver "github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/internal/cuda/simcuda"
	"github.com/hawser-transport/hawser/sdk"
)

// TestRegister: a part of an allocation of each kind, on the last GPU, arrives
// at the transport as what another process can import, and nothing is kept.
func TestRegister(t *testing.T) {
	for kind, want := range map[driver.Kind]sdk.HandleKind{
		driver.Fabric: sdk.FabricHandle, driver.PosixFD: sdk.FileHandle, driver.IPC: sdk.IPCHandle,
		driver.Fabric | driver.PosixFD: sdk.FabricHandle,
	} {
		t.Run(kind.String(), func(t *testing.T) {
			l := newLab(t)
			gpu := len(l.app) - 1
			a := l.allocate(gpu, kind)
			e, w := l.open()
			const offset, length = 12345, 100
			bytesOf := bytes.Repeat([]byte{0xa5}, length)
			l.copied(gpu, func(c driver.Context, s driver.Stream) error { return c.Write(a.Base+offset, bytesOf, s) })

			r, err := l.gpus.Register(e, uintptr(a.Base+offset), length, engine.RegionOptions{ReadOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			got, n := w.last()
			info := l.gpus.Devices()[gpu]
			if n != 1 || got.HandleKind != want || got.Offset != offset || got.Allocation != a.Size || got.Device != gpu ||
				got.DeviceUUID != info.UUID || got.Base != uint64(a.Base+offset) || got.Length != length || got.Writable {
				t.Errorf("%d regions, the last is %+v", n, got)
			}
			if r.Address() != uint64(a.Base+offset) || r.Len() != length {
				t.Errorf("the region is %d bytes at %#x", r.Len(), r.Address())
			}
			l.isBalanced(got.File)
			if b := l.imported(got, length); !bytes.Equal(b, bytesOf) {
				t.Errorf("the other process has read %x", b)
			}
			l.shut(r)
		})
	}
}

// isBalanced fails if more is retained or open than the application's memory,
// and the copy of a descriptor that a transport has.
func (l *lab) isBalanced(file *os.File) {
	l.t.Helper()
	if l.sim == nil {
		return
	}
	c := l.sim.Counts()
	// The application's allocation holds a reference of its own.
	if c.References > c.Mappings || c.FDs != 0 || len(c.Faults) > 0 {
		l.t.Errorf("held: %+v", c)
	}
}

// TestRefused: what is no memory of a GPU's, or not one piece of it.
func TestRefused(t *testing.T) {
	l := newLab(t)
	e, w := l.open()
	a := l.allocate(0, driver.PosixFD)
	heap := make([]byte, 4096)
	for _, c := range []struct {
		name    string
		pointer driver.Ptr
		length  uint64
		want    error
		says    string
	}{
		{"nothing", a.Base, 0, engine.InvalidArgument, "not within one allocation"},
		{"beyond the end", a.Base + size - 10, 11, engine.InvalidArgument, "not within one allocation"},
		{"a length that wraps", a.Base + 10, 1<<64 - 5, engine.InvalidArgument, "not within one allocation"},
		{"address 0", 0, 10, engine.InvalidArgument, "nothing that the driver knows"},
		{"Go's heap", driver.Host(heap), 10, engine.InvalidArgument, "nothing that the driver knows"},
	} {
		l.refuses(e, c.name, c.pointer, c.length, c.want, c.says)
	}
	l.unshareable(func(p driver.Ptr) { l.refuses(e, "not shareable", p, 10, engine.Unsupported, "cuMemCreate") })
	l.adjacent(func(p driver.Ptr, unit uint64) {
		l.refuses(e, "two allocations", p+driver.Ptr(unit)-10, 20, engine.InvalidArgument, "not within one allocation")
	})
	if l.sim != nil { // nobody asks a real GPU for managed memory
		l.do(0, func(c driver.Context) error {
			p, err := c.(simcuda.Managed).AllocManaged(size)
			if err != nil {
				return err
			}
			l.refuses(e, "managed memory", p, 10, engine.InvalidArgument, "managed memory")
			return c.Free(p)
		})
	}
	if _, n := w.last(); n != 0 {
		t.Errorf("%d regions were registered", n)
	}
	l.isBalanced(nil)
	_ = os.Getpid()
}

func (l *lab) refuses(e *engine.Engine, name string, p driver.Ptr, n uint64, want error, says string) {
	l.t.Helper()
	r, err := l.gpus.Register(e, uintptr(p), n, engine.RegionOptions{})
	if r != nil || !errors.Is(err, want) || !strings.Contains(err.Error(), says) {
		l.t.Errorf("%s: %v, want %v that says %q", name, err, want, says)
	}
}

// unshareable runs do with memory that was made for this process alone.
func (l *lab) unshareable(do func(p driver.Ptr)) {
	l.t.Helper()
	a := l.allocate(0, 0)
	do(a.Base)
}

// adjacent runs do with two allocations of unit bytes, one behind the other.
func (l *lab) adjacent(do func(p driver.Ptr, unit uint64)) {
	l.t.Helper()
	var unit uint64
	var p driver.Ptr
	l.do(0, func(c driver.Context) (err error) {
		if unit, err = c.Granularity(driver.PosixFD); err != nil {
			return err
		}
		if p, err = c.Reserve(2 * unit); err != nil {
			return err
		}
		for at := p; at < p+driver.Ptr(2*unit); at += driver.Ptr(unit) {
			h, err := c.Create(unit, driver.PosixFD)
			if err := errors.Join(err, c.Map(at, unit, h), c.SetAccess(at, unit, true), c.Release(h)); err != nil {
				return err
			}
		}
		return nil
	})
	do(p, unit)
	l.do(0, func(c driver.Context) error {
		return errors.Join(c.Unmap(p, unit), c.Unmap(p+driver.Ptr(unit), unit), c.FreeAddress(p, 2*unit))
	})
}

// TestEachCallFails: whichever call of the driver fails, and the one after it,
// nothing is kept; what the driver does not take back at once is given back
// later.
func TestEachCallFails(t *testing.T) {
	for _, kind := range []driver.Kind{driver.Fabric, driver.PosixFD, driver.IPC} {
		t.Run(kind.String(), func(t *testing.T) {
			l := newLab(t, func(*simcuda.Options) {})
			a := l.allocate(1, kind)
			l.eachCallFails(func(g *GPUs) error {
				x, err := g.export(a.Base+100, 1000)
				if err == nil && x.File != nil {
					err = x.File.Close()
				}
				return err
			})
		})
	}
}

// eachCallFails makes each call of an attempt fail in turn, and then each with
// the next one.
func (l *lab) eachCallFails(do func(g *GPUs) error) {
	attempt := func() error {
		g, err := open(held{l.sim})
		if err != nil {
			return err
		}
		return errors.Join(do(g), again(g.Close))
	}
	calls := l.sim.Calls()
	if err := attempt(); err != nil {
		l.t.Fatal(err)
	}
	holds, files := l.counts(), descriptors(l.t)
	n := l.sim.Calls() - calls
	if n < 7 {
		l.t.Fatalf("only %d calls", n)
	}
	silent := 0
	for after := range 2 * n {
		for range 1 + after/n {
			l.sim.Inject(simcuda.Injection{Result: driver.Unknown, After: after % n})
		}
		switch err := attempt(); {
		case err == nil:
			silent++
		case !errors.Is(err, driver.Unknown):
			l.t.Errorf("call %d failed, but %v came back", after, err)
		}
		for l.sim.Injected() > 0 { // what nobody was left to call
			if after < n {
				l.t.Fatalf("call %d did not fail", after)
			}
			_, _ = l.sim.Devices()
		}
		if got := l.counts(); got != holds {
			l.t.Errorf("call %d failed: held is %s, before %s", after, got, holds)
		}
		// Others of this process's may still be on their way out.
		now := descriptors(l.t)
		for end := time.Now().Add(10 * time.Second); now > files && time.Now().Before(end); now = descriptors(l.t) {
			time.Sleep(time.Millisecond)
		}
		if now > files {
			l.t.Errorf("call %d failed: %d descriptors, before %d", after, now, files)
		}
	}
	// Some may fail in silence: an early release, which is tried again, alone and
	// with what comes next.
	if silent > 3 {
		l.t.Errorf("%d of %d failures were not told", silent, 2*n)
	}
}

// again is for what may be called again after an error, and goes on.
func again(f func() error) error {
	first := f()
	for i := 0; i < 3 && f() != nil; i++ {
	}
	return first
}

// counts are the simulated driver's, for comparison.
func (l *lab) counts() string { return fmt.Sprintf("%+v", l.sim.Counts()) }

// TestTheEngineRefuses: the export is given back if no transport takes it, or
// the engine is closed.
func TestTheEngineRefuses(t *testing.T) {
	for _, kind := range []driver.Kind{driver.PosixFD, driver.IPC} {
		l := newLab(t)
		a := l.allocate(0, kind)
		e, w := l.open()
		before := descriptors(t)
		w.refuse = sdk.Errorf(sdk.Unsupported, "not this memory")
		if r, err := l.gpus.Register(e, uintptr(a.Base), 10, engine.RegionOptions{}); r != nil || !errors.Is(err, engine.Unsupported) {
			t.Errorf("%v", err)
		}
		l.isBalanced(nil)
		if now := descriptors(t); now > before {
			t.Errorf("%d descriptors, before %d", now, before)
		}
	}
}

// TestReleasedLater: a reference that the driver does not take back at once is
// released by the next call.
func TestReleasedLater(t *testing.T) {
	l := newLab(t, func(*simcuda.Options) {})
	a := l.allocate(0, driver.PosixFD)
	held := l.sim.Counts().References
	for range 2 { // the early release, and the one after it
		l.sim.Inject(simcuda.Injection{Call: "cuMemRelease", Result: driver.Unknown})
	}
	export := func() {
		x, err := l.gpus.export(a.Base, size)
		if err != nil {
			t.Fatal(err)
		}
		_ = x.File.Close()
	}
	export()
	if n := l.sim.Counts().References; n != held+1 || l.sim.Injected() != 0 {
		t.Fatalf("%d references are held, %d more than before; %d calls have still to fail", n, n-held, l.sim.Injected())
	}
	export()
	if n := l.sim.Counts().References; n != held {
		t.Errorf("%d references are held, %d more than before", n, n-held)
	}
}
