//go:build linux

package engine

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/descriptor"
	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
)

// invalidate asks a consumer, as the provider b would, which of the regions are
// in use.
func (w *world) invalidate(a, b *Engine, rs ...*Region) (leased []Capability) {
	w.t.Helper()
	q := control.InvalidateRequest{From: b.incarnation, Version: 1}
	for _, r := range rs {
		q.Withdrawn = append(q.Withdrawn, r.Capability())
	}
	reply, err := (&answers{e: a}).Invalidate(context.Background(), q)
	if err != nil {
		w.t.Fatal(err)
	}
	return reply.Leased
}

// A consumer that has given its provider up, since it was silent for long, still
// answers for the ops that have not ended: the provider may only be slow.
func TestWhatADeadSourceUsesCounts(t *testing.T) {
	moving(t, func(w *world) {
		first := w.undying("a:1")
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		defer w.letGo(first)
		if err := w.write(a, mine, theirs, g, 1); err != nil {
			t.Fatal(err)
		}
		w.fast.Delay("b:1", "a:1", "", time.Hour)
		x := w.submit(a, SubmitOptions{}, Op{Kind: Read, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
		synctest.Wait()
		w.fast.Kill("a:1")
		s := a.memory.source(b.incarnation)
		s.a.die(sdk.Errorf(sdk.Unavailable, "test: %w", errForgotten))
		if err := w.done(x); !errors.Is(err, OutcomeUnknown) {
			t.Errorf("%v", err)
		}
		if a.memory.source(b.incarnation) == s {
			t.Fatal("the source lives")
		}
		if got := w.invalidate(a, b, theirs); len(got) != 1 {
			t.Errorf("leased: %v, and a plugin that may run has an op", got)
		}
		w.letGo(first)
		time.Sleep(time.Minute)
		if got := w.invalidate(a, b, theirs); len(got) != 0 {
			t.Errorf("leased: %v", got)
		}
		if n := len(a.memory.fading); n != 0 {
			t.Errorf("%d sources are kept", n)
		}
		w.fast.Delay("b:1", "a:1", "", 0)
	})
}

// unreachable is a mover whose link is cut.
type unreachable struct{ sdk.Mover }

func (unreachable) Withdraw(context.Context, Incarnation, Capability) error {
	return sdk.PluginExited
}

// What a plugin maps that was lost is in use until the plugin is gone.
func TestALostPluginHoldsWhatItMaps(t *testing.T) {
	moving(t, func(w *world) {
		a, b, _, theirs, _, end := w.movers(100)
		defer end()
		gone := make(chan struct{})
		inst := &pluginhost.Instance{Mover: unreachable{}, Description: sdk.Description{Name: "fast"}, Gone: gone}
		s := a.memory.source(b.incarnation)
		s.mu.Lock()
		s.told[announceKey{inst, bufferKey{c: theirs.Capability()}}] = &announcement{ready: true, used: time.Now()}
		s.mu.Unlock()
		s.lost(inst)
		synctest.Wait()
		if got := w.invalidate(a, b, theirs); len(got) != 1 {
			t.Errorf("leased: %v, and a plugin that may run maps it", got)
		}
		close(gone)
		time.Sleep(time.Minute)
		if got := w.invalidate(a, b, theirs); len(got) != 0 {
			t.Errorf("leased: %v", got)
		}
	})
}

// A region outlives any number of plugins, and keeps none that is gone.
func TestLostPluginsAreForgotten(t *testing.T) {
	m := &memory{}
	m.init(&Engine{})
	r := &Region{m: m, at: map[*pluginhost.Instance]*registration{}}
	m.regions = []*Region{r}
	for range 5 {
		gone := make(chan struct{})
		inst := &pluginhost.Instance{Mover: &stubborn{}, Gone: gone}
		m.movers = []*pluginhost.Instance{inst}
		r.at[inst] = &registration{done: closedChan}
		m.wentDown(inst)
		if n := len(r.abandoned); n != 1 || r.abandoned[0] != inst {
			t.Errorf("%d lost plugins are remembered", n)
		}
		close(gone)
	}
}

// Calls about memory are believed from whom they say they are of only, as all
// others are, and answered to who has said hello.
func TestMemoryCallsInAnothersName(t *testing.T) {
	moving(t, func(w *world) {
		a, b, m := w.named()
		defer w.giveUp()
		defer w.shut(a, b)
		defer m.Close(context.Background()) //nolint:errcheck // the test's own
		mine, theirs := w.region(a, 100, RegionOptions{}), w.region(b, 100, RegionOptions{})
		g := w.segment(a, "b:1")
		defer g.Close()
		if err := w.write(a, mine, theirs, g, 1); err != nil {
			t.Fatal(err)
		}
		s := a.memory.source(b.incarnation)
		ctx := context.Background()

		// As the consumer, to the provider: a fence would end its endpoints.
		w.fast.HoldWrites("b:1", true)
		x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
		synctest.Wait()
		provider := m.Dial("b:1")
		fence := control.FenceRequest{From: a.incarnation, To: b.incarnation, Transport: "fast", Path: "p0", Generation: 1 << 40}
		w.refusedAs(b, 1, provider.Fence(ctx, fence), `"alice"`)
		_, err := provider.Describe(ctx, control.DescribeRequest{From: a.incarnation, To: b.incarnation})
		w.refusedAs(b, 2, err, `"alice"`)
		w.refusedAs(b, 3, provider.Goodbye(ctx, control.GoodbyeRequest{From: a.incarnation, Mapped: true}), `"alice"`)
		b.memory.mu.Lock()
		if x := b.memory.readers[a.incarnation]; x == nil || x.undead {
			t.Errorf("a goodbye was believed: %+v", x)
		}
		b.memory.mu.Unlock()
		w.fast.HoldWrites("b:1", false)
		if err := w.done(x); err != nil {
			t.Errorf("%v", err)
		}
		if n := a.stats.fences[fenceBegun].Load(); n != 0 {
			t.Errorf("%d endpoints have ended", n)
		}

		// As the provider, to the consumer: its regions would be taken for withdrawn.
		_, err = m.Dial("a:1").Invalidate(ctx, control.InvalidateRequest{From: b.incarnation, Version: 1 << 40, Withdrawn: []Capability{theirs.Capability()}})
		w.refusedAs(a, 1, err, `"bob"`)
		s.mu.Lock()
		if s.newest >= 1<<40 || len(s.withdrawn)+len(s.leaving) != 0 {
			t.Errorf("it was believed: version %d, %d withdrawn", s.newest, len(s.withdrawn))
		}
		s.mu.Unlock()

		// In his own name, without hello.
		stranger := Incarnation{7, 8: 7}
		fence.From = stranger
		if err := provider.Fence(ctx, fence); !errors.Is(err, SessionUnknown) {
			t.Errorf("fence: %v", err)
		}
		if _, err := provider.Describe(ctx, control.DescribeRequest{From: stranger, To: b.incarnation}); !errors.Is(err, SessionUnknown) {
			t.Errorf("describe: %v", err)
		}
		b.memory.mu.Lock()
		if b.memory.readers[stranger] != nil || len(b.memory.gates.by) != 1 {
			t.Error("a stranger is remembered")
		}
		b.memory.mu.Unlock()
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Error(err)
		}
	})
}

// denying says that it uses nothing.
type denying struct {
	control.Handler
	asked atomic.Int64
}

func (d *denying) Invalidate(context.Context, control.InvalidateRequest) (control.InvalidateReply, error) {
	d.asked.Add(1)
	return control.InvalidateReply{}, nil
}

// Somebody else at a consumer's address is not taken for it, also once nothing
// but what it has read is known of it: its answer is none.
func TestAnotherAnswersForAConsumer(t *testing.T) {
	moving(t, func(w *world) {
		a, b, _ := w.named()
		theirs := w.region(b, 100, RegionOptions{})
		g := w.segment(a, "b:1")
		for _, as := range b.directory.all() {
			as.die(sdk.Errorf(sdk.Unavailable, "test: %w", errForgotten))
		}
		b.memory.mu.Lock()
		x := b.memory.readers[a.incarnation]
		if x == nil || x.identity != `"alice"` {
			t.Errorf("the reader: %+v", x)
		}
		b.memory.mu.Unlock()
		w.network.Identify("b2:1", `"mallory"`)
		m, d := w.network.Carrier("b2:1"), &denying{}
		defer m.Close(context.Background()) //nolint:errcheck // the test's own
		if _, err := m.Listen(d); err != nil {
			t.Fatal(err)
		}
		w.network.Alias("a:1", "b2:1")
		_, err := b.invalidate(a.incarnation, "a:1", `"alice"`, control.InvalidateRequest{From: b.incarnation, Version: 2, Withdrawn: []Capability{theirs.Capability()}})
		if !errors.Is(err, control.ErrAnother) || !strings.Contains(err.Error(), "mallory") {
			t.Errorf("%v; asked %d times", err, d.asked.Load())
		}
		w.network.Alias("a:1", "a:1")
		_ = g.Close()
		w.shut(a, b)
		w.giveUp()
	})
}

// What a consumer may map that was exported is not forgotten because it is
// silent while nobody closes the region: Close waits for the operator's word all
// the same, and that covers it.
func TestASilentReaderOfExportedMemoryIsNotForgotten(t *testing.T) {
	for _, exported := range []bool{false, true} {
		moving(t, func(w *world) {
			a, b := w.open("a:1"), w.open("b:1")
			mine, theirs := w.region(a, 100, RegionOptions{}), w.region(b, 100, RegionOptions{})
			g := w.segment(a, "b:1")
			if err := w.write(a, mine, theirs, g, 100); err != nil {
				t.Fatal(err)
			}
			if exported {
				theirs.region.HandleKind = sdk.IPCHandle
			}
			w.freeze(a)
			time.Sleep(2 * silence)
			b.memory.mu.Lock()
			if known := b.memory.readers[a.incarnation] != nil; known != exported {
				t.Errorf("exported %v: the reader is known: %v", exported, known)
			}
			b.memory.mu.Unlock()
			short, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if exported {
				if err := theirs.Close(short); !errors.Is(err, Busy) {
					t.Errorf("%v", err)
				}
				if n, err := b.RetireMappings(context.Background(), a.incarnation.Short()); n != 1 || err != nil {
					t.Errorf("retired %d, %v", n, err)
				}
			}
			if err := theirs.Close(context.Background()); err != nil {
				t.Error(err)
			}
			if n := len(b.memory.readers); n != 0 {
				t.Errorf("%d readers are remembered", n)
			}
			w.thaw(a)
			_ = g.Close()
			ended, stop := context.WithTimeout(context.Background(), time.Second)
			defer stop()
			_ = a.Close(ended)
			w.shut(b)
			w.giveUp()
		})
	}
}

// Readers are bounded.
func TestReadersAreBounded(t *testing.T) {
	moving(t, func(w *world) {
		c := w.configs["b:1"]
		c.Sessions.Max = 2
		w.configs["b:1"] = c
		a, b, _, _, _, end := w.movers(100)
		defer end()
		as := theOnly(t, b)
		for i := byte(1); i < 4; i++ {
			if _, err := b.memory.describe(as, control.DescribeRequest{From: Incarnation{i, 8: 1}}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.memory.describe(as, control.DescribeRequest{From: Incarnation{9, 8: 1}}); !errors.Is(err, Busy) {
			t.Errorf("one more: %v", err)
		}
		if _, err := b.memory.describe(as, control.DescribeRequest{From: a.incarnation}); err != nil {
			t.Errorf("one that is known: %v", err)
		}
	})
}

// A source is not made of an association that has ended: nobody would end it.
func TestNoSourceOfAnAssociationThatHasEnded(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		as := a.memory.source(b.incarnation).a
		as.die(sdk.Errorf(sdk.Unavailable, "test: %w", errForgotten))
		if s, err := a.memory.open(as); s != nil || err != nil {
			t.Errorf("%+v, %v", s, err)
		}
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Error(err)
		}
		if s := a.memory.source(b.incarnation); s.a == as {
			t.Error("the transfer went over what has ended")
		}
	})
}

// A descriptor of another provider, or of another version than was said, is
// refused, and nothing of it is used.
func TestADescriptorOfAnotherIsRefused(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		set := func(change func(*descriptor.Descriptor)) {
			b.memory.mu.Lock()
			defer b.memory.mu.Unlock()
			b.memory.version++
			b.memory.body = nil
			d, err := descriptor.Parse(b.memory.bodyLocked())
			if err != nil {
				t.Fatal(err)
			}
			change(d)
			b.memory.body = d.Encode()
		}
		s := a.memory.source(b.incarnation)
		for _, change := range []func(*descriptor.Descriptor){
			func(d *descriptor.Descriptor) { d.Provider[0]++ },
			func(d *descriptor.Descriptor) { d.Version++ },
			func(d *descriptor.Descriptor) { d.Version-- },
		} {
			set(change)
			before := s.desc
			if err := g.Refresh(context.Background()); !errors.Is(err, Refused) || !strings.Contains(err.Error(), "the descriptor of another") {
				t.Errorf("%v", err)
			}
			if s.desc != before {
				t.Error("it is used")
			}
		}
		set(func(*descriptor.Descriptor) {})
		if err := g.Refresh(context.Background()); err != nil {
			t.Error(err)
		}
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Error(err)
		}
	})
}

// A transfer whose peer is still being asked for ends when it is cancelled, not
// when the peer has answered.
func TestCancelWhileThePeerIsAsked(t *testing.T) {
	moving(t, func(w *world) {
		c := w.configs["a:1"]
		c.RPC.RequestTimeoutMS = 60_000
		w.configs["a:1"] = c
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		w.network.Silence("a:1", "b:1", true)
		s := a.memory.source(b.incarnation)
		s.mu.Lock()
		s.newest = 1 << 40 // what is known is out of date
		s.mu.Unlock()
		x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
		synctest.Wait()
		if isClosed(x.Done()) || w.network.Faults().Held == 0 {
			t.Fatalf("%v", x.Results())
		}
		began := time.Now()
		x.Cancel()
		if err := w.done(x); !errors.Is(err, context.Canceled) || !errors.Is(err, NotSent) {
			t.Errorf("%v", err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
		if n := a.memory.leases.Held(mine); n != 0 {
			t.Errorf("%d leases are held", n)
		}
		s.mu.Lock()
		s.newest = s.desc.Version
		s.mu.Unlock()
		w.network.Silence("a:1", "b:1", false)
	})
}

// An engine that is closed while it uses a peer's memory does not say goodbye to
// it: the peer would take its memory to be free.
func TestNoGoodbyeWhileMemoryIsUsed(t *testing.T) {
	for _, busy := range []bool{false, true} {
		moving(t, func(w *world) {
			a, b, mine, theirs, g, _ := w.movers(100)
			events := b.Events(context.Background())
			defer events.Close()
			if err := w.write(a, mine, theirs, g, 1); err != nil {
				t.Fatal(err)
			}
			if busy {
				w.fast.HoldWrites("b:1", true)
				w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
				synctest.Wait()
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if err := a.Close(ctx); (err != nil) != busy {
				t.Errorf("%v", err)
			}
			w.fast.HoldWrites("b:1", false)
			if err := theirs.Close(context.Background()); err != nil {
				t.Error(err)
			}
			w.shut(b)
			said := false
			for ev := range events.C() {
				said = said || ev.Err != nil && strings.Contains(ev.Err.Error(), "said goodbye")
			}
			if said == busy {
				t.Errorf("busy %v: goodbye was said: %v", busy, said)
			}
			w.giveUp()
		})
	}
}

// Regions that a transport would not hear of are forgotten as those that it
// knows are.
func TestRefusedAnnouncementsAreForgotten(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		if err := w.write(a, mine, theirs, g, 1); err != nil {
			t.Fatal(err)
		}
		s := a.memory.source(b.incarnation)
		s.mu.Lock()
		for k := range s.told {
			k.buffer = bufferKey{c: Capability{9}}
			s.told[k] = &announcement{err: Busy, used: time.Now()}
			break
		}
		s.mu.Unlock()
		time.Sleep(a.cfg.Memory.MappingIdle() + 2*sweepEvery)
		s.mu.Lock()
		if len(s.told)+len(s.leaving) != 0 {
			t.Errorf("%d are remembered, %d are leaving", len(s.told), len(s.leaving))
		}
		s.mu.Unlock()
	})
}

// slowly is an endpoint whose Close does not return for a while.
type slowly struct {
	sdk.Endpoint
	goOn chan struct{}
}

func (s *slowly) Close() { <-s.goOn }

// A transport that takes its time to close an endpoint keeps nobody from what
// the engine has of memory.
func TestNoLockIsHeldAcrossAClose(t *testing.T) {
	moving(t, func(w *world) {
		b := w.open("b:1")
		s := &slowly{goOn: make(chan struct{})}
		peer := Incarnation{5, 8: 5}
		gs := &b.memory.gates
		p := &passive{gs: gs, from: peer, over: make(chan struct{}), se: s}
		gs.mu.Lock()
		gs.doorwayLocked(peer, laneKey{"fast", "p0", 0}).ends = []*passive{p}
		gs.mu.Unlock()
		b.memory.mu.Lock()
		b.memory.readers[peer] = &reader{incarnation: peer, name: "x:1", heard: time.Now()}
		b.memory.mu.Unlock()
		retired := make(chan struct{})
		go func() {
			defer close(retired)
			_, _ = b.RetireMappings(context.Background(), "x:1")
		}()
		synctest.Wait()
		if !isClosed(retired) {
			t.Error("it waits for the transport")
		}
		close(s.goOn)
		<-retired
		p.gone()
		b.memory.forget(peer)
		w.shut(b)
	})
}

// However many registrations end at once, ops are looked at by one goroutine.
func TestOneGoroutineLooksAfterABurst(t *testing.T) {
	moving(t, func(w *world) {
		a, _, mine, theirs, g, end := w.movers(100)
		defer end()
		synctest.Wait()
		a.memory.mu.Lock()
		before := runtime.NumGoroutine()
		for range 100 {
			a.memory.stirLocked()
		}
		if n := runtime.NumGoroutine() - before; n > 1 {
			t.Errorf("%d goroutines", n)
		}
		a.memory.mu.Unlock()
		synctest.Wait()
		a.memory.mu.Lock()
		if a.memory.stirring {
			t.Error("the next burst is not looked at")
		}
		a.memory.mu.Unlock()
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Error(err)
		}
	})
}
