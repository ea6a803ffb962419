//go:build linux

package engine

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// Scenario 35.
func TestTwoOpensAndOneClose(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		second := w.segment(a, "b:1")
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Fatal(err)
		}
		_ = second.Close()
		_ = second.Close() // once more does nothing
		synctest.Wait()
		if _, remote := w.fast.Regions("a:1"); remote != 1 {
			t.Errorf("%d regions are known with one handle left", remote)
		}
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Error(err)
		}
		_ = g.Close()
		synctest.Wait()
		if _, remote := w.fast.Regions("a:1"); remote != 0 || a.Stats().Mappings != 0 {
			t.Errorf("%d regions are known with no handle left", remote)
		}
		_ = b
	})
}

// The last handle is closed while a transfer uses the peer's region: it goes
// with the transfer.
func TestCloseDuringATransfer(t *testing.T) {
	moving(t, func(w *world) {
		a, _, mine, theirs, g, end := w.movers(100)
		defer end()
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Fatal(err)
		}
		w.fast.HoldWrites("b:1", true)
		x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
		synctest.Wait()
		_ = g.Close()
		synctest.Wait()
		if _, remote := w.fast.Regions("a:1"); remote != 1 {
			t.Fatalf("%d regions are known while an op uses it", remote)
		}
		w.fast.HoldWrites("b:1", false)
		if err := w.done(x); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if _, remote := w.fast.Regions("a:1"); remote != 0 || a.Stats().Mappings != 0 {
			t.Errorf("%d regions are known with no handle and no op left", remote)
		}
	})
}

// Handles that come and go while an op is unresolved leave nothing behind.
func TestHandlesComeAndGoDuringAnOp(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Fatal(err)
		}
		s, k := a.memory.source(b.incarnation), bufferKey{c: theirs.Capability()}
		s.leases.Acquire(k) // as the op has, whose transfer has ended
		_ = g.Close()
		synctest.Wait()
		before := runtime.NumGoroutine()
		for range 20 {
			_ = w.segment(a, "b:1").Close()
		}
		synctest.Wait()
		if after := runtime.NumGoroutine(); after >= before+20 {
			t.Errorf("%d goroutines, %d before", after, before)
		}
		s.release(k)
		synctest.Wait()
		if _, remote := w.fast.Regions("a:1"); remote != 0 {
			t.Errorf("%d regions are known", remote)
		}
	})
}

func TestManyOpensAskOnce(t *testing.T) {
	moving(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.giveUp()
		defer w.shut(a, b)
		w.region(b, 100, RegionOptions{})
		w.network.Delay("a:1", "b:1", time.Second)
		var opens sync.WaitGroup
		for range 16 {
			opens.Go(func() {
				g, err := a.OpenSegment(context.Background(), "b:1")
				if err != nil {
					t.Error(err)
					return
				}
				buffers, version, err := g.Buffers(context.Background())
				if err != nil || len(buffers) != 1 || version == 0 || buffers[0].Length != 100 || !buffers[0].Writable || buffers[0].Capability.IsZero() {
					t.Errorf("%+v, %d, %v", buffers, version, err)
				}
				_ = g.Close()
			})
		}
		opens.Wait()
		if n := b.stats.descriptors[descServed].Load() + b.stats.descriptors[descUnchanged].Load(); n > 2 {
			t.Errorf("asked %d times", n)
		}
	})
}

// Scenario 36: what a provider changes is known to who reads it, at once.
func TestChangesAreTold(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, _, g, end := w.movers(100)
		defer end()
		r := w.region(b, 100, RegionOptions{})
		synctest.Wait()
		s := a.memory.source(b.incarnation)
		s.mu.Lock()
		known := slices.ContainsFunc(s.desc.Buffers, func(x bufferOf) bool { return x.Capability == r.Capability() })
		s.mu.Unlock()
		if !known {
			t.Error("a new region is not known")
		}
		if err := w.write(a, mine, r, g, 100); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := r.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("close took %v", took)
		}
		if _, remote := w.fast.Regions("a:1"); remote != 0 {
			t.Error("the consumer knows it still")
		}
		if own, _ := w.fast.Regions("b:1"); own != 1 {
			t.Errorf("%d regions are registered, 1 is left", own)
		}
		x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: r.Address(), Capability: r.Capability(), Length: 100})
		if err := w.done(x); !errors.Is(err, StaleCapability) || !strings.Contains(err.Error(), "was withdrawn") {
			t.Errorf("%v", err)
		}
	})
}

// Scenario 33: a failed call keeps what is known, and says why it failed.
func TestAFailedFetchKeepsTheDescriptor(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		w.network.Silence("a:1", "b:1", true)
		if err := g.Refresh(context.Background()); !errors.Is(err, Unavailable) {
			t.Errorf("%v", err)
		}
		if n := w.network.Faults().Held; n == 0 {
			t.Error("no call was held")
		}
		// Connected paths carry on; the descriptor is the one from before.
		if buffers, _, err := g.Buffers(context.Background()); err != nil || len(buffers) != 1 {
			t.Errorf("%v, %v", buffers, err)
		}
		w.network.Silence("a:1", "b:1", false)
		time.Sleep(10 * time.Second)
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Error(err)
		}
		_ = b
	})
}

// Scenario 34: with a central registry one look-up follows a failed call, and the
// call is repeated only if the address has changed.
func TestARegistryIsAskedOnceMore(t *testing.T) {
	moving(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.giveUp()
		defer w.shut(a, b)
		names := &lookups{answers: []string{"nobody:1", "b:1"}}
		a.registry, a.cfg.Registry.Type = names, "static"
		g, err := a.OpenSegment(context.Background(), "peer")
		if err != nil {
			t.Fatal(err)
		}
		_ = g.Close()
		if n := names.n.Load(); n != 2 {
			t.Errorf("%d look-ups", n)
		}
		names = &lookups{answers: []string{"nobody:1", "nobody:1"}}
		a.registry = names
		if _, err := a.OpenSegment(context.Background(), "peer"); !errors.Is(err, Unavailable) {
			t.Errorf("%v", err)
		}
		if n := names.n.Load(); n != 2 || w.network.Faults().Refused != 2 {
			t.Errorf("%d look-ups, %d calls", n, w.network.Faults().Refused)
		}
	})
}

// A region that was registered again at the same place: who has the old
// descriptor finds the new one with one question, and never writes to what was
// there before; who means the old one gets StaleCapability.
func TestAnotherRegionAtTheSamePlace(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, _, g, end := w.movers(100)
		defer end()
		for round := range 12 { // less than describeEvery
			old := w.regionAt(b, 100, 1<<40)
			if err := g.Refresh(context.Background()); err != nil {
				t.Fatal(err)
			}
			if err := w.write(a, mine, old, g, 1); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()                // nothing is being asked
			b.memory.forget(a.incarnation) // the word of it gets lost
			if err := old.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
			fresh := w.regionAt(b, 100, 1<<40)
			synctest.Wait()
			asked := a.stats.descriptors[descFetched].Load()
			fill(mine.Bytes(), byte(round))
			if round%2 == 0 {
				x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: 1 << 40, Capability: old.Capability(), Length: 100})
				if err := w.done(x); !errors.Is(err, StaleCapability) {
					t.Fatalf("round %d: %v", round, err)
				}
				if !bytes.Equal(fresh.Bytes(), make([]byte, 100)) {
					t.Fatal("written to another region")
				}
			} else if err := w.write(a, mine, fresh, g, 100); err != nil {
				t.Fatalf("round %d: %v", round, err)
			} else if !bytes.Equal(fresh.Bytes(), filled(100, byte(round))) {
				t.Fatal("not written to the new region")
			}
			if n := a.stats.descriptors[descFetched].Load() - asked; n != 1 {
				t.Fatalf("round %d: asked %d times", round, n)
			}
			if err := fresh.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Scenario 53: without a newer descriptor what is known to be wrong is not used.
func TestARefreshThatFailsIsFailClosed(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, _, g, end := w.movers(100)
		defer end()
		old := w.regionAt(b, 100, 1<<40)
		if err := g.Refresh(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := w.write(a, mine, old, g, 1); err != nil {
			t.Fatal(err)
		}
		b.memory.forget(a.incarnation)
		if err := old.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		fresh := w.regionAt(b, 100, 1<<40)
		w.network.Silence("b:1", "a:1", true)
		calls := func() uint64 { return a.stats.descriptors[descNotFetched].Load() - a.stats.FailedFast.Load() }
		failed := calls()
		err := w.write(a, mine, fresh, g, 100)
		if !errors.Is(err, StaleCapability) {
			t.Errorf("%v", err)
		}
		if n := calls() - failed; n != 1 {
			t.Errorf("asked %d times", n)
		}
		if !bytes.Equal(fresh.Bytes(), make([]byte, 100)) {
			t.Error("written")
		}
		w.network.Silence("b:1", "a:1", false)
		time.Sleep(time.Minute)
	})
}

// A provider restarts under its name: the segment leads to the new life, and
// what the transports know of the old one goes at once (scenario 56), without
// waiting for a successor.
func TestAProviderRestarts(t *testing.T) {
	moving(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.giveUp()
		mine := w.region(a, 100, RegionOptions{})
		old := w.regionAt(b, 100, 1<<40)
		g := w.segment(a, "b:1")
		if err := w.write(a, mine, old, g, 100); err != nil {
			t.Fatal(err)
		}
		w.shut(b)
		time.Sleep(2 * time.Second)
		if _, remote := w.fast.Regions("a:1"); remote != 0 || a.Stats().Mappings != 0 {
			t.Errorf("%d regions of the dead provider are kept", remote)
		}
		x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: 1 << 40, Length: 100})
		if err := w.done(x); !errors.Is(err, Unavailable) || !errors.Is(err, NotSent) {
			t.Errorf("nobody there: %v", err)
		}
		b = w.open("b:1")
		fresh := w.regionAt(b, 100, 1<<40)
		fill(mine.Bytes(), 3)
		fill(old.Bytes(), 4)
		x = w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: 1 << 40, Capability: old.Capability(), Length: 100})
		if err := w.done(x); !errors.Is(err, StaleCapability) {
			t.Errorf("the old capability: %v", err)
		}
		if err := w.write(a, mine, fresh, g, 100); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(fresh.Bytes(), filled(100, 3)) || !bytes.Equal(old.Bytes(), filled(100, 4)) {
			t.Error("written to the wrong life's memory")
		}
		_ = g.Close()
		w.shut(a, b)
	})
}

// A provider is killed and started again, unseen: who only transfers learns that
// it is another life as soon as it answers, not when it is next asked for its
// descriptor.
func TestAKilledProviderIsBackAtOnce(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100) // no endpoint's end tells of it
		defer end()
		w.vanish(b)
		next := w.open("b:1")
		fresh := w.region(next, 100, RegionOptions{})
		began := time.Now()
		if err := w.write(a, mine, theirs, g, 100); !errors.Is(err, NotSent) {
			t.Errorf("to the life that is over: %v", err)
		}
		if err := w.write(a, mine, fresh, g, 100); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
		w.shut(next)
	})
}

// A provider is killed while nobody transfers, and no notification ever went:
// the end of its endpoint is enough for its mappings to go.
func TestAKilledProvidersMappingsGo(t *testing.T) {
	moving(t, func(w *world) {
		w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast", Moves: true, NoFrames: true})
		w.withoutFallback()
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Fatal(err)
		}
		if len(a.Mappings()) == 0 {
			t.Fatal("no mapping: there is nothing to go")
		}
		time.Sleep(describeEvery / 2)
		w.vanish(b)
		time.Sleep(2 * time.Second)
		if list := a.Mappings(); len(list) > 0 {
			t.Errorf("%+v", list)
		}
	})
}

// A plugin that was started again gets every region, and its peers what it made
// of them.
func TestRegionsOutliveTransports(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Fatal(err)
		}
		capability := theirs.Capability()
		for round := range 20 {
			victim := []string{"a:1", "b:1"}[round%2]
			if w.fast.Kill(victim)+w.slow.Kill(victim) == 0 {
				t.Fatal("nothing was killed")
			}
			fill(mine.Bytes(), byte(round))
			if err := w.write(a, mine, theirs, g, 100); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			if !bytes.Equal(theirs.Bytes(), filled(100, byte(round))) {
				t.Fatal("other bytes")
			}
			time.Sleep(time.Minute)
		}
		if theirs.Capability() != capability {
			t.Error("the capability has changed")
		}
		if own, _ := w.fast.Regions("b:1"); own != 1 {
			t.Errorf("%d regions at the new instance", own)
		}
		_ = b
	})
}

// A segment that nothing uses for memory.mapping_idle_secs leaves nothing at
// the transports.
func TestIdleMappingsAreGivenUp(t *testing.T) {
	moving(t, func(w *world) {
		c := w.configs["a:1"]
		c.Memory.MappingIdleSecs = 60
		w.configs["a:1"] = c
		a, _, mine, theirs, g, end := w.movers(100)
		defer end()
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Second)
		if n := a.Stats().Mappings; n == 0 {
			t.Error("given up too early")
		}
		time.Sleep(time.Minute)
		if _, remote := w.fast.Regions("a:1"); remote != 0 || a.Stats().Mappings != 0 || a.stats.MappingIdle.Load() == 0 {
			t.Errorf("%d regions are kept", remote)
		}
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Error(err)
		}
	})
}

// Scenario 29: a frozen peer costs one timeout; later transfers fail at once.
func TestAFrozenPeerCostsATransferOneTimeout(t *testing.T) {
	for _, connected := range []bool{false, true} {
		moving(t, func(w *world) {
			c := w.configs["a:1"]
			c.RPC.RequestTimeoutMS, c.RPC.BootstrapTimeoutMS = 3000, 3000
			w.configs["a:1"] = c
			w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast", Moves: true, StallTimeout: 2 * time.Second})
			a, b, mine, theirs, g, end := w.movers(100)
			defer end()
			if connected {
				if err := w.write(a, mine, theirs, g, 1); err != nil {
					t.Fatal(err)
				}
			}
			w.network.Freeze("b:1", true)
			w.fast.Freeze("b:1")
			w.slow.Freeze("b:1")
			began := time.Now()
			x := w.submit(a, SubmitOptions{}, Op{Kind: Read, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
			if err := w.done(x); !errors.Is(err, Unavailable) {
				t.Errorf("%v", err)
			}
			if took := time.Since(began); took > stalledAfter+4*time.Second {
				t.Errorf("connected=%v: the first took %v", connected, took)
			}
			began = time.Now()
			x = w.submit(a, SubmitOptions{}, Op{Kind: Read, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
			if err := w.done(x); !errors.Is(err, Unavailable) || !errors.Is(err, errMarked) {
				t.Errorf("%v", err)
			}
			if took := time.Since(began); took > 10*time.Millisecond {
				t.Errorf("connected=%v: the second took %v", connected, took)
			}
			w.network.Freeze("b:1", false)
			w.fast.Thaw("b:1")
			w.slow.Thaw("b:1")
			time.Sleep(10 * time.Second)
			if err := w.write(a, mine, theirs, g, 100); err != nil {
				t.Error(err)
			}
			_ = b
		})
	}
}

// lookups is a registry that answers one after the other.
type lookups struct {
	answers []string
	n       atomic.Int64
}

// The word that a region is withdrawn may come before the descriptor that still
// has it: what that says is not used any more.
func TestAWithdrawalOvertakesTheDescriptor(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		s := a.memory.source(b.incarnation)
		s.mu.Lock()
		version := s.desc.Version
		s.mu.Unlock()
		w.network.Silence("a:1", "b:1", true) // the next one does not come
		if leased, err := s.invalidated(version+1, []Capability{theirs.Capability()}); err != nil || leased != nil {
			t.Fatalf("%v, %v", leased, err)
		}
		s.mu.Lock()
		_, err := s.resolveLocked(&op{kind: Write, address: theirs.Address(), length: 1})
		s.mu.Unlock()
		if !errors.Is(err, StaleCapability) {
			t.Errorf("it got a lease: %v", err)
		}
		if _, err := s.invalidated(version+1, make([]Capability, maxWithdrawn)); !errors.Is(err, Busy) {
			t.Errorf("more than is remembered: %v", err)
		}
		w.network.Silence("a:1", "b:1", false)
		time.Sleep(time.Minute)
		_, _ = mine, g
	})
}

// Who cancels a question to a peer is told that, not that the peer was slow.
func TestACancelledQuestion(t *testing.T) {
	moving(t, func(w *world) {
		a, _, _, _, g, end := w.movers(100)
		defer end()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		w.network.Freeze("a:1", true)
		defer w.network.Freeze("a:1", false)
		_, hello := a.OpenSegment(ctx, "c:1")
		for what, err := range map[string]error{"descriptor of ": g.Refresh(ctx), "hello": hello} {
			says(t, err, []Code{NotSent}, []string{"cancelled before", what}, []string{"in time"})
			if !errors.Is(err, context.Canceled) || errors.Is(err, DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		}
	})
}
