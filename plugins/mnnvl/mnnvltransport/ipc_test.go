//go:build linux

package mnnvltransport

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/internal/cuda/simcuda"
	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/plugins/mnnvl/internal/nvml"
	"github.com/hawser-transport/hawser/sdk"
)

// part is some of an application's memory, as a tensor is of a pool's.
type part struct {
	*deviceMemory
	at, size int
}

func (p part) Export(writable bool) (sdk.Region, error) {
	r, err := p.deviceMemory.Export(writable)
	r.Offset, r.Length = r.Offset+uint64(p.at), uint64(p.size)
	return r, err
}

func (p part) ReadAt(b []byte, offset int64) (int, error) {
	return p.deviceMemory.ReadAt(b, offset+int64(p.at))
}

func (p part) WriteAt(b []byte, offset int64) (int, error) {
	return p.deviceMemory.WriteAt(b, offset+int64(p.at))
}

const partSize = 4096

// parts makes an allocation of two parts.
func (l *lab) parts(t testing.TB, device int) [2]part {
	m := l.on(t, device, 2*partSize)
	return [2]part{{m, 0, partSize}, {m, partSize, partSize}}
}

// pools are two nodes of the simulated machine, each with an application that has
// two regions in one allocation.
type pools struct {
	*lab
	driver      *simcuda.Driver // of a's plugin
	a, b        *side
	mine        [2]part
	here, there [2]publishedRegion
	w           *line
}

func newPools(t *testing.T, kind cuda.Kind) *pools {
	t.Helper()
	p := &pools{lab: newLab(t, func(*simcuda.Options) {})}
	p.kinds = []cuda.Kind{kind}
	p.driver = p.process(t).(*simcuda.Driver)
	p.a, p.b = p.start(t, New(p.driver, nvml.Fake{}), 1), p.start(t, p.transport(t), 2)
	p.mine = p.parts(t, 0)
	theirs := p.parts(t, 1)
	for i := range 2 {
		fill(t, theirs[i], byte(0x10+i), partSize)
		p.here[i] = p.a.register(t, p.mine[i], true, uint64(1+i)<<40, 1)
		p.there[i] = p.b.register(t, theirs[i], true, uint64(4+i)<<40, 1)
		p.a.announce(t, p.there[i])
	}
	p.w = connect(t, p.a, p.b)
	return p
}

// read reads a peer's region into one of the application's.
func (p *pools) read(t *testing.T, here, there int) {
	t.Helper()
	fill(t, p.mine[here], 0xee, partSize)
	p.w.must(opOf(sdk.Read, p.here[here], p.there[there], partSize))
	if x, y := bytesOf(t, p.mine[here], partSize); x != byte(0x10+there) || y != x {
		t.Errorf("region %d into region %d: read %x..%x", there, here, x, y)
	}
}

func (p *pools) wantOpens(t *testing.T, want int) {
	t.Helper()
	if n := p.driver.Counts().IPCOpens; n != want {
		t.Errorf("%d IPC handles are open, want %d", n, want)
	}
}

// TestRegionsOfOneAllocation: they are used together, whatever their handle, and
// one goes while the other is in use.
func TestRegionsOfOneAllocation(t *testing.T) {
	each(t, func(t *testing.T, kind cuda.Kind) {
		p := newPools(t, kind)
		for i := range 4 {
			p.read(t, i/2, i%2)
		}
		opens := func(n int) {
			t.Helper()
			if kind == cuda.IPC {
				p.wantOpens(t, n)
			}
		}
		opens(2)
		resume := sync.OnceFunc(func() { _ = simcuda.Resume(p.options.Dir) })
		defer resume()
		if err := simcuda.Hold(p.options.Dir); err != nil {
			t.Fatal(err)
		}
		c := p.w.post(opOf(sdk.Read, p.here[1], p.there[1], partSize))
		eventually(t, func() error {
			if n := p.a.Transport.(*Transport).devices[0].cache.Stats().Leases; n != 2 {
				return fmt.Errorf("%d leases: the copy is not under way", n)
			}
			return nil
		})
		if err := p.a.mover.Withdraw(rigtest.Context(t), p.b.Inc, p.there[0].Capability); err != nil {
			t.Error(err)
		}
		p.here[0].deregister(t)
		opens(2)
		resume()
		if o := <-c; o.Outcome != sdk.Done {
			t.Errorf("%v (%v)", o.Outcome, o.Code)
		}
		p.there[0].deregister(t)
		p.read(t, 1, 1)
		if err := p.a.mover.Withdraw(rigtest.Context(t), p.b.Inc, p.there[1].Capability); err != nil {
			t.Error(err)
		}
		opens(1)
		p.here[1].deregister(t)
		opens(0)
		if n := len(p.a.Transport.(*Transport).handles.open); n > 0 {
			t.Errorf("%d handles are remembered", n)
		}
	})
}

// TestAllocationIDs: an allocation has one id for as long as a region of it is
// registered; the next one with that handle has another.
func TestAllocationIDs(t *testing.T) {
	l := newLab(t, func(*simcuda.Options) {})
	l.kinds = []cuda.Kind{cuda.IPC}
	b := l.start(t, l.transport(t), 2)
	m := l.parts(t, 1)
	id := func(r publishedRegion) string { return r.Attributes[attrID] }
	first, second := b.register(t, m[0], true, 1<<41, 1), b.register(t, m[1], true, 1<<42, 1)
	if id(first) == "" || id(second) != id(first) {
		t.Errorf("one allocation has the ids %q and %q", id(first), id(second))
	}
	first.deregister(t)
	third := b.register(t, m[0], true, 1<<41, 2)
	if id(third) != id(first) {
		t.Error("it has another id while a region is registered")
	}
	second.deregister(t)
	third.deregister(t)
	if n := len(b.Transport.(*Transport).regions.shared); n > 0 {
		t.Errorf("%d allocations are remembered", n)
	}
	if last := b.register(t, m[0], true, 1<<41, 3); id(last) == id(first) {
		t.Error("it has the same id after its last region was gone")
	}
	if other := b.register(t, l.on(t, 1, 4096), true, 1<<43, 1); id(other) == id(first) {
		t.Error("another allocation has the same id")
	}
}

// TestOtherMemoryBehindAnIPCHandle: a provider has freed what is mapped here, and
// has other memory at the same address, whose handle is the same. It is not taken
// for the old memory.
func TestOtherMemoryBehindAnIPCHandle(t *testing.T) {
	l := newLab(t, func(o *simcuda.Options) { o.Poison = true })
	l.kinds = []cuda.Kind{cuda.IPC}
	d := l.process(t).(*simcuda.Driver)
	a, b := l.start(t, New(d, nvml.Fake{}), 1), l.start(t, l.transport(t), 2)
	mine, theirs := l.on(t, 0, partSize), l.on(t, 1, partSize)
	here, old := a.register(t, mine, true, 1<<40, 1), b.register(t, theirs, true, 1<<41, 1)
	a.announce(t, old)
	w := connect(t, a, b)
	w.must(opOf(sdk.Read, here, old, partSize))
	old.deregister(t)
	// A provider that frees memory while it is mapped: what a driver does then is
	// undefined, and defined by the simulated one.
	if err := theirs.free(); err != nil {
		t.Fatal(err)
	}
	theirs = l.on(t, 1, partSize)
	fill(t, theirs, 0x77, partSize)
	next := b.register(t, theirs, true, 1<<42, 2)
	if next.Attributes[attrHandle] != old.Attributes[attrHandle] {
		t.Fatal("the handle is another one: this shows nothing")
	}
	a.announce(t, next)
	w.must(opOf(sdk.Read, here, next, partSize))
	if x, y := bytesOf(t, mine, partSize); x != 0x77 || y != 0x77 {
		t.Errorf("read %x..%x", x, y)
	}
	if n := d.Counts().IPCOpens; n != 2 { // here and there
		t.Errorf("%d IPC handles are open", n)
	}
}

// TestIPCHandlesOfOlderPeers: without ids nobody knows that two regions are of
// one allocation, so they take turns.
func TestIPCHandlesOfOlderPeers(t *testing.T) {
	p := newPools(t, cuda.IPC)
	for i := range p.there {
		delete(p.there[i].Attributes, attrID)
		p.there[i].Version = 2
		p.a.announce(t, p.there[i])
	}
	before := p.a.Transport.(*Transport).devices[0].cache.Stats().Totals.Evicted
	for i := range 6 {
		p.read(t, 0, i%2)
		p.wantOpens(t, 2) // here and there
	}
	if n := p.a.Transport.(*Transport).devices[0].cache.Stats().Totals.Evicted - before; n != 5 {
		t.Errorf("%d were in the way, want 5", n)
	}
}

// TestAllocationsOfARestartedPlugin: the provider's next plugin gives the same
// memory another id. What is mapped goes for what is not.
func TestAllocationsOfARestartedPlugin(t *testing.T) {
	p := newPools(t, cuda.IPC)
	p.read(t, 0, 0)
	for i := range p.there {
		next := p.there[i]
		next.Attributes = sdk.Attributes{}
		for k, v := range p.there[i].Attributes {
			next.Attributes[k] = v
		}
		next.Attributes[attrID], next.Version = fmt.Sprintf("%032x", 7), 2
		p.there[i] = next
		p.a.announce(t, next)
	}
	p.read(t, 0, 0) // of the mapping that there is
	p.read(t, 0, 1)
	p.read(t, 0, 0)
	p.read(t, 0, 1)
	p.wantOpens(t, 2)
	if n := p.a.Transport.(*Transport).devices[0].cache.Stats().Totals.Evicted; n != 1 {
		t.Errorf("%d were in the way, want 1", n)
	}
}

// TestEachIPCCallFails lets every call that IPC handles take fail once, while two
// regions of an allocation are used, on either side, and one of them goes.
func TestEachIPCCallFails(t *testing.T) {
	for _, calls := range [][]string{
		{"cuIpcOpenMemHandle"}, {"cuPointerGetAttribute"}, {"cuIpcCloseMemHandle"}, {"cuPointerGetAttribute", "cuIpcCloseMemHandle"},
	} {
		fired := 0
		for after := range 2 {
			t.Run(fmt.Sprintf("%s/%d", strings.Join(calls, "+"), after), func(t *testing.T) {
				p := newPools(t, cuda.IPC)
				ctx := rigtest.Context(t)
				retry := func(f func(context.Context) error) {
					t.Helper()
					eventually(t, func() error {
						short, cancel := context.WithTimeout(ctx, time.Second)
						defer cancel()
						return f(short)
					})
				}
				all := func(here, there int) {
					for i := range 4 {
						eventually(t, func() error {
							c := p.w.do(opOf(sdk.Read, p.here[max(here, i/2)], p.there[max(there, i%2)], partSize))
							if c.Outcome != sdk.Done {
								return fmt.Errorf("%v (%v)", c.Outcome, c.Code)
							}
							return nil
						})
					}
				}
				for _, call := range calls {
					p.driver.Inject(simcuda.Injection{Call: call, Result: cuda.OutOfMemory, After: after})
				}
				all(0, 0)
				p.wantOpens(t, 2)
				retry(func(ctx context.Context) error { return p.a.mover.Withdraw(ctx, p.b.Inc, p.there[0].Capability) })
				retry(func(ctx context.Context) error { return p.a.mover.Deregister(ctx, p.here[0].Capability) })
				all(1, 1)
				retry(func(ctx context.Context) error { return p.a.mover.Withdraw(ctx, p.b.Inc, p.there[1].Capability) })
				p.wantOpens(t, 1)
				retry(func(ctx context.Context) error { return p.a.mover.Deregister(ctx, p.here[1].Capability) })
				p.wantOpens(t, 0)
				if p.driver.Injected() == 0 {
					fired++
				}
			})
		}
		if fired < 2 {
			t.Errorf("%v have failed %d times", calls, fired)
		}
	}
}

// A handle that the driver does not close yet is taken by whoever needs it, and
// is closed by the last one.
func TestAnIPCHandleThatIsNotClosedYet(t *testing.T) {
	p := newPools(t, cuda.IPC)
	p.read(t, 0, 0)
	p.driver.Inject(simcuda.Injection{Call: "cuIpcCloseMemHandle", Result: cuda.OutOfMemory})
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.a.mover.Withdraw(ended, p.b.Inc, p.there[0].Capability)
	eventually(t, func() error {
		if n := p.a.Transport.(*Transport).devices[0].cache.Stats().Stuck; n != 1 {
			return fmt.Errorf("%d mappings are stuck", n)
		}
		return nil
	})
	p.read(t, 0, 1)
	if err := p.a.mover.Withdraw(rigtest.Context(t), p.b.Inc, p.there[0].Capability); err != nil {
		t.Error(err)
	}
	p.wantOpens(t, 2)
	p.read(t, 0, 1)
	if err := p.a.mover.Withdraw(rigtest.Context(t), p.b.Inc, p.there[1].Capability); err != nil {
		t.Error(err)
	}
	p.wantOpens(t, 1)
}

// TestAnIPCHandleOfLessMemory: a provider says that an allocation is larger than
// it is. Nobody shares a mapping that was refused, and is not closed yet.
func TestAnIPCHandleOfLessMemory(t *testing.T) {
	p := newPools(t, cuda.IPC)
	for i := range p.there {
		p.there[i].Attributes[attrAllocation] = "1048576"
		p.there[i].Version = 2
		p.a.announce(t, p.there[i])
	}
	p.driver.Inject(simcuda.Injection{Call: "cuIpcCloseMemHandle", Result: cuda.Unknown})
	p.driver.Inject(simcuda.Injection{Call: "cuIpcCloseMemHandle", Result: cuda.Unknown})
	for i := range p.there {
		if c := p.w.do(opOf(sdk.Read, p.here[0], p.there[i], partSize)); c.Outcome != sdk.NotPosted {
			t.Errorf("region %d: %v (%v)", i, c.Outcome, c.Code)
		}
	}
	if p.driver.Injected() > 0 {
		t.Error("it was closed at once: this shows nothing")
	}
}

// TestTheApplicationsOwnMappingStays: an op may hold it while it waits for a
// peer's, so a peer's does not wait for it.
func TestTheApplicationsOwnMappingStays(t *testing.T) {
	l := newLab(t, func(*simcuda.Options) {})
	l.kinds = []cuda.Kind{cuda.IPC}
	a := l.start(t, l.transport(t), 1)
	one, two := a.register(t, l.on(t, 0, partSize), true, 1<<40, 1), a.register(t, l.on(t, 1, partSize), true, 1<<41, 1)
	a.announce(t, one)
	w := connect(t, a, a)
	w.must(opOf(sdk.Read, one, one, partSize))
	if c := w.do(opOf(sdk.Read, two, one, partSize)); c.Outcome != sdk.NotPosted || c.Code != sdk.Busy {
		t.Errorf("%v (%v)", c.Outcome, c.Code)
	}
}

// TestOneApplicationToItself: a node is its own peer.
func TestOneApplicationToItself(t *testing.T) {
	l := newLab(t, func(*simcuda.Options) {})
	l.kinds = []cuda.Kind{cuda.IPC}
	a := l.start(t, l.transport(t), 1)
	m := l.parts(t, 0)
	fill(t, m[1], 0x42, partSize)
	here, there := a.register(t, m[0], true, 1<<40, 1), a.register(t, m[1], true, 1<<41, 1)
	a.announce(t, there)
	w := connect(t, a, a)
	w.must(opOf(sdk.Read, here, there, partSize))
	if x, y := bytesOf(t, m[0], partSize); x != 0x42 || y != 0x42 {
		t.Errorf("read %x..%x", x, y)
	}
}

// Two devices that want the same IPC handle take turns, however many of their
// ops do, and of whichever of its regions.
func TestDevicesTakeTurnsWithAnIPCHandle(t *testing.T) {
	if hardware() != nil {
		t.Skip("SKIPPED, a process cannot open its own IPC handles")
	}
	l := newLab(t)
	l.kinds = []cuda.Kind{cuda.IPC}
	a, b := l.start(t, l.transport(t), 1), l.start(t, l.transport(t), 2)
	var there [2]publishedRegion
	for i, m := range l.parts(t, 0) {
		there[i] = b.register(t, m, true, 1<<42+uint64(i)<<20, 1)
		a.announce(t, there[i])
	}
	w := connect(t, a, b)
	var workers sync.WaitGroup
	for i := range 4 {
		here := a.register(t, l.on(t, i%2, 4096), true, 1<<40+uint64(i)<<20, 1)
		workers.Go(func() {
			for range 100 {
				w.must(opOf(sdk.Read, here, there[i/2], 4096))
				if t.Failed() {
					return
				}
			}
		})
	}
	workers.Wait()
	for i, d := range a.Transport.(*Transport).devices {
		if d.cache.Stats().Totals.Evicted == 0 {
			t.Errorf("no mapping of device %d was in the way", i)
		}
	}
}
