//go:build linux

package mnnvltransport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/internal/cuda/simcuda"
	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/plugins/mnnvl/internal/nvml"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// replaced registers memory, has it read, and registers other memory at the same
// place, whose bytes are other ones. It returns what a reader then finds.
func replaced(t *testing.T, kind cuda.Kind, addressOnly bool) (got byte, c sdk.Completion, want byte) {
	const size, base, old, new = 10_000, 0x7f00_0000_0000, 0xa0, 0xb1
	l := newLab(t)
	l.kinds = []cuda.Kind{kind}
	consumer := l.transport(t)
	consumer.addressOnly = addressOnly
	a, b := l.start(t, consumer, 1), l.start(t, l.transport(t), 2)
	mine := l.on(t, 0, size)
	here := a.register(t, mine, true, 1<<40, 1)
	first := l.on(t, len(l.devices)-1, size)
	fill(t, first, old, size)
	there := b.register(t, first, true, base, 1)
	a.announce(t, there)
	w := connect(t, a, b)
	w.must(opOf(sdk.Read, here, there, size))
	if x, y := bytesOf(t, mine, size); x != old || y != old {
		t.Fatalf("read %x..%x", x, y)
	}
	// The provider has other memory at the same address and says so; the old
	// memory is freed, as far as the application is concerned.
	there.deregister(t)
	if kind != cuda.IPC { // which may be freed only once the consumer has closed it
		if err := first.free(); err != nil {
			t.Fatal(err)
		}
	}
	second := l.on(t, len(l.devices)-1, size)
	fill(t, second, new, size)
	next := b.register(t, second, true, base, 2)
	a.announce(t, next)
	c = w.do(opOf(sdk.Read, here, next, size))
	got, _ = bytesOf(t, mine, size)
	if stale := w.do(opOf(sdk.Read, here, there, size)); stale.Outcome != sdk.NotPosted || stale.Code != sdk.StaleCapability {
		t.Errorf("an op with the old capability: %v (%v)", stale.Outcome, stale.Code)
	}
	return got, c, new
}

// TestNewDescriptor: once the consumer knows of the new memory it reads that.
func TestNewDescriptor(t *testing.T) {
	each(t, func(t *testing.T, kind cuda.Kind) {
		if kind == cuda.IPC && hardware() != nil {
			t.Skip("SKIPPED, a process cannot open its own IPC handles")
		}
		if got, c, want := replaced(t, kind, false); c.Outcome != sdk.Done || got != want {
			t.Errorf("read %x, %v (%v), want %x", got, c.Outcome, c.Code, want)
		}
	})
}

// TestAddressOnly: the test above can see the fault, for without the capability
// in the key the old bytes come back.
func TestAddressOnly(t *testing.T) {
	if got, c, want := replaced(t, cuda.PosixFD, true); c.Outcome != sdk.Done || got == want {
		t.Errorf("read %x, %v (%v): not the old bytes", got, c.Outcome, c.Code)
	}
}

// TestAgainAndAgain registers, reads and retires the same memory, and counts
// what is left: each process has to end clean.
func TestAgainAndAgain(t *testing.T) {
	each(t, func(t *testing.T, kind cuda.Kind) {
		if kind == cuda.IPC && hardware() != nil {
			t.Skip("SKIPPED, a process cannot open its own IPC handles")
		}
		cycles := 3334 // 10,000 of the three kinds
		if hardware() != nil {
			cycles = 10_000
		}
		if testing.Short() {
			cycles = 200
		}
		l := newLab(t)
		l.kinds = []cuda.Kind{kind}
		a, b := l.start(t, l.transport(t), 1), l.start(t, l.transport(t), 2)
		const size = 4096
		mine, theirs := l.on(t, 0, size), l.on(t, len(l.devices)-1, size)
		here := a.register(t, mine, true, 1<<40, 1)
		w := connect(t, a, b)
		files := rigtest.Descriptors()
		free := make([]uint64, len(l.devices))
		for i := range cycles {
			if i == 1 { // what the driver keeps for the first use is there
				for n, d := range l.devices {
					free[n] = freeMemory(t, d)
				}
			}
			there := b.register(t, theirs, true, 1<<41, uint64(i+1))
			a.announce(t, there)
			fill(t, theirs, byte(i), size)
			w.must(opOf(sdk.Read, here, there, size))
			if x, y := bytesOf(t, mine, size); x != byte(i) || y != byte(i) {
				t.Fatalf("cycle %d: read %x..%x", i, x, y)
			}
			there.deregister(t)
			if err := a.mover.Withdraw(rigtest.Context(t), b.Inc, there.Capability); err != nil {
				t.Fatal(err)
			}
		}
		rigtest.WaitDescriptors(t, files+4)
		for n, d := range l.devices {
			if now := freeMemory(t, d); now < free[n] {
				t.Errorf("GPU %d has %d bytes less after %d cycles", n, free[n]-now, cycles)
			}
		}
		t.Logf("%d cycles", cycles)
	})
}

func freeMemory(t *testing.T, d cuda.Device) (free uint64) {
	t.Helper()
	err := d.Do(func(c cuda.Context) (err error) {
		free, _, err = c.Memory()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return free
}

// TestWarmWorkers: workers read without end while their memory is replaced. No
// read of the live capability fails, and none finds bytes of another one.
func TestWarmWorkers(t *testing.T) {
	const size, base, workers = 64 << 10, 1 << 41, 8
	rounds := 40
	if testing.Short() {
		rounds = 12
	}
	l := newLab(t)
	a, b := l.start(t, l.transport(t), 1), l.start(t, l.transport(t), 2)
	var mu sync.Mutex // the descriptor
	current, value := publishedRegion{}, byte(0)
	publish := func(round int) (old publishedRegion) {
		m := l.on(t, len(l.devices)-1, size)
		fill(t, m, byte(round), size)
		next := b.register(t, m, true, base, uint64(round))
		mu.Lock()
		defer mu.Unlock()
		a.announce(t, next)
		old, current, value = current, next, byte(round)
		return old
	}
	publish(1)
	stop := make(chan struct{})
	var reads, stale [workers]atomic.Int64
	var group sync.WaitGroup
	for i := range workers {
		mine := l.on(t, i%len(l.devices), size)
		here := a.register(t, mine, true, uint64(i+1)<<42, 1)
		w := connect(t, a, b)
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				mu.Lock()
				there, want := current, value
				mu.Unlock()
				c := w.do(opOf(sdk.Read, here, there, size))
				mu.Lock()
				live := current.Capability == there.Capability
				mu.Unlock()
				switch {
				case c.Outcome == sdk.Done:
					if x, y := bytesOf(t, mine, size); x != want || y != want {
						t.Errorf("worker %d read %x..%x, want %x", i, x, y, want)
						return
					}
					reads[i].Add(1)
				case live || c.Code != sdk.StaleCapability:
					t.Errorf("worker %d: %v (%v), live %t", i, c.Outcome, c.Code, live)
					return
				default:
					stale[i].Add(1)
				}
			}
		})
	}
	for round := 2; round < rounds; round++ {
		old := publish(round)
		old.deregister(t)
		var before [workers]int64
		for i := range reads {
			before[i] = reads[i].Load()
		}
		eventually(t, func() error { // the new memory is read by everybody
			for i := range reads {
				if reads[i].Load() < before[i]+2 && !t.Failed() {
					return fmt.Errorf("worker %d does not read", i)
				}
			}
			return nil
		})
	}
	close(stop)
	group.Wait()
	all := int64(0)
	for i := range stale {
		all += stale[i].Load()
	}
	if all == 0 {
		t.Error("no worker has met a capability that was replaced")
	}
}

// TestHandover: a descriptor is for whoever knows both ticket and capability.
func TestHandover(t *testing.T) {
	l := newLab(t)
	b := l.start(t, l.transport(t), 2)
	there := b.register(t, l.on(t, 0, 4096), true, 1<<41, 1)
	e, err := parseExport(there.Attributes, there.Length)
	if err != nil {
		t.Fatal(err)
	}
	ctx := rigtest.Context(t)
	f, err := fetch(ctx, e.door, e.ticket, there.Capability)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	if f, err = fetch(ctx, e.door, e.ticket, sdk.Capability{}); err != nil { // of an older descriptor
		t.Fatal(err)
	}
	_ = f.Close()
	wrong, other := there.Capability, e.ticket
	wrong[15]++
	other[15]++
	for what, ask := range map[string]func() (*os.File, error){
		"a wrong capability": func() (*os.File, error) { return fetch(ctx, e.door, e.ticket, wrong) },
		"a wrong ticket":     func() (*os.File, error) { return fetch(ctx, e.door, other, there.Capability) },
		"no ticket":          func() (*os.File, error) { return fetch(ctx, e.door, ticket{}, there.Capability) },
	} {
		if f, err := ask(); !errors.Is(err, sdk.StaleCapability) {
			t.Errorf("%s: %v, %v", what, f, err)
		}
	}
	there.deregister(t)
	if f, err := fetch(ctx, e.door, e.ticket, there.Capability); !errors.Is(err, sdk.StaleCapability) {
		t.Errorf("a region that was forgotten: %v, %v", f, err)
	}
	if n := len(b.Transport.(*Transport).regions.tickets); n > 0 {
		t.Errorf("%d tickets are left", n)
	}
}

// TestProviderKilled: the provider's plugin is killed, and its engine's peer
// withdraws all that was its: nothing of it stays mapped, without a successor.
func TestProviderKilled(t *testing.T) {
	l := newLab(t, func(*simcuda.Options) {})
	path := plugin(t)
	d := l.process(t).(*simcuda.Driver)
	a := l.start(t, New(d, nvml.Fake{}), 1)
	provider := sdktest.Binary(t, path, "HAWSER_CUDA_SIM="+l.file(t))
	setup, err := provider.Configure(rigtest.Context(t), sdk.Config{Instance: 2, Incarnation: sdk.Incarnation{15: 7}, Settings: json.RawMessage("{}")})
	if err != nil {
		t.Fatal(err)
	}
	b := &side{&rigtest.Node{Transport: provider, Inc: sdk.Incarnation{15: 7}, Setup: setup}, provider.(sdk.Mover), 2}
	const size = 1 << 20
	here := a.register(t, l.on(t, 0, size), true, 1<<40, 1)
	before := d.Counts().Mappings
	there := b.register(t, l.on(t, 1, size), true, 1<<41, 1)
	a.announce(t, there)
	w := connect(t, a, b)
	w.must(opOf(sdk.Read, here, there, size))
	if n := d.Counts().Mappings; n != before+2 { // here and there
		t.Fatalf("%d mappings", n)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = provider.Close(ended) // kills the process, whatever it does
	select {
	case err := <-w.ended:
		t.Logf("the endpoint ended: %v", err)
	case <-time.After(rigtest.Patience):
		t.Fatal("the endpoint has not ended with its peer")
	}
	began := time.Now()
	if err := a.mover.Withdraw(rigtest.Context(t), b.Inc, sdk.Capability{}); err != nil {
		t.Fatal(err)
	}
	if n, took := d.Counts().Mappings, time.Since(began); n != before+1 || took > 2*time.Second {
		t.Errorf("%d mappings after %s", n, took)
	}
}

// TestAMappingThatStaysIsSaid: what the driver does not give back keeps a
// peer waiting, and is said once.
func TestAMappingThatStaysIsSaid(t *testing.T) {
	l := newLab(t, func(*simcuda.Options) {})
	d := l.process(t).(*simcuda.Driver)
	var said rigtest.Log
	n := rigtest.Start(t, New(d, nvml.Fake{}), sdk.Config{Instance: 1, Log: slog.New(slog.NewTextHandler(&said, nil))})
	a, b := &side{n, n.Transport.(sdk.Mover), 1}, l.start(t, l.transport(t), 2)
	here, there := a.register(t, l.on(t, 0, 4096), true, 1<<40, 1), b.register(t, l.on(t, 1, 4096), true, 1<<41, 1)
	a.announce(t, there)
	w := connect(t, a, b)
	w.must(opOf(sdk.Read, here, there, 4096))
	d.Inject(simcuda.Injection{Call: "cuMemUnmap", Result: cuda.OutOfMemory})
	eventually(t, func() error { return a.mover.Withdraw(rigtest.Context(t), b.Inc, there.Capability) })
	if d.Injected() != 0 {
		t.Error("the driver has refused nothing")
	}
	if s := said.String(); strings.Count(s, "level=WARN") != 1 || !strings.Contains(s, "cuMemUnmap") || !strings.Contains(s, there.Capability.String()) {
		t.Errorf("said: %s", s)
	}
}

// TestIdleMappingsGo: nobody's memory stays mapped by a reader that is idle.
func TestIdleMappingsGo(t *testing.T) {
	l := newLab(t, func(*simcuda.Options) {})
	d := l.process(t).(*simcuda.Driver)
	n := rigtest.Start(t, New(d, nvml.Fake{}), sdk.Config{Instance: 1, Settings: json.RawMessage(`{"mapping_idle_secs": 1}`)})
	a, b := &side{n, n.Transport.(sdk.Mover), 1}, l.start(t, l.transport(t), 2)
	here, there := a.register(t, l.on(t, 0, 4096), true, 1<<40, 1), b.register(t, l.on(t, 1, 4096), true, 1<<41, 1)
	a.announce(t, there)
	w := connect(t, a, b)
	w.must(opOf(sdk.Read, here, there, 4096))
	eventually(t, func() error {
		if n := d.Counts().Mappings; n > 0 {
			return fmt.Errorf("%d mappings", n)
		}
		return nil
	})
	w.must(opOf(sdk.Read, here, there, 4096))
}
