//go:build linux

package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// A transport that wants it gets several endpoints, and all of them carry; the
// next transport gets nothing.
func TestTransfersSpreadOverLanesAndPaths(t *testing.T) {
	moving(t, func(w *world) {
		c := w.configs["a:1"]
		c.Transfer.ChunkBytes = 4096
		w.configs["a:1"] = c
		w.fast = sdktest.NewFabric(sdktest.FabricOptions{
			Name: "fast", Moves: true, Paths: []string{"p0", "p1"}, Move: sdk.MoveLimits{Parallel: 3, Inflight: 2},
		})
		const size = 100 * 4096
		a, b, mine, theirs, g, end := w.movers(size)
		defer end()
		w.fast.Delay("a:1", "b:1", "", time.Millisecond)
		fill(mine.Bytes(), 3)
		if err := w.write(a, mine, theirs, g, size); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(theirs.Bytes(), filled(size, 3)) {
			t.Error("other bytes")
		}
		m := &a.memory.source(b.incarnation).mover
		m.mu.Lock()
		for k, l := range m.lanes {
			switch {
			case k.transport != "fast" && l.ch != nil:
				t.Errorf("%v is connected", k)
			case k.transport == "fast" && (l.ch == nil || l.ch.last < 5):
				t.Errorf("%v carried nothing: %+v", k, l.ch)
			}
		}
		m.mu.Unlock()
		if n := w.slow.Counters().Moved; n != 0 {
			t.Errorf("%d ops over the next transport", n)
		}
	})
}

// A transport that is replaced under load: what is under way ends in order, at
// either end, and nothing is lost.
func TestTransportsAreReplacedUnderTransfers(t *testing.T) {
	moving(t, func(w *world) {
		c := w.configs["a:1"]
		c.Transfer.ChunkBytes = 4096
		w.configs["a:1"] = c
		const size = 8 * 4096
		a, b, mine, theirs, g, end := w.movers(size)
		defer end()
		w.fast.Delay("a:1", "b:1", "", 2*time.Millisecond)
		var load sync.WaitGroup
		stop := make(chan struct{})
		load.Go(func() {
			for round := 0; ; round++ {
				select {
				case <-stop:
					return
				default:
				}
				fill(mine.Bytes(), byte(round))
				if err := w.write(a, mine, theirs, g, size); err != nil {
					t.Error(err)
					return
				}
				if !bytes.Equal(theirs.Bytes(), filled(size, byte(round))) {
					t.Error("other bytes")
					return
				}
			}
		})
		for _, e := range []*Engine{a, b, a, b} {
			time.Sleep(200 * time.Millisecond)
			if err := e.RestartTransport(context.Background(), "fast"); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(200 * time.Millisecond)
		close(stop)
		load.Wait()
		if n := a.stats.moves[moveConnected].Load(); n < 5 {
			t.Errorf("%d endpoints", n)
		}
		if s := a.Stats(); s.OpsFailed+s.OpsUnknown+s.ChunksRepeated != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Many small ops and a large one share the ways: the small ones do not wait for
// all of the large one.
func TestSmallOpsPassLargeOnes(t *testing.T) {
	moving(t, func(w *world) {
		c := w.configs["a:1"]
		c.Transfer.ChunkBytes = 4096
		w.configs["a:1"] = c
		w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast", Moves: true, Move: sdk.MoveLimits{Inflight: 4}})
		const size = 400 * 4096
		a, _, mine, theirs, g, end := w.movers(size)
		defer end()
		w.fast.Delay("a:1", "b:1", "", time.Millisecond)
		large := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: size})
		time.Sleep(20 * time.Millisecond)
		began := time.Now()
		if err := w.write(a, mine, theirs, g, 10); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 10*time.Millisecond || isClosed(large.Done()) {
			t.Errorf("the small one took %v", took)
		}
		if err := w.done(large); err != nil {
			t.Error(err)
		}
	})
}

// Many ops in one batch, more than are looked at in one go.
func TestManyOpsInOneTransfer(t *testing.T) {
	moving(t, func(w *world) {
		w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast", Moves: true, Move: sdk.MoveLimits{NeedsFlush: true}})
		const n = 5000
		a, b, mine, theirs, g, end := w.movers(n)
		defer end()
		fill(mine.Bytes(), 8)
		var ops []Op
		for i := range n {
			ops = append(ops, Op{Kind: Write, Local: mine, LocalOffset: uint64(i), Segment: g, Address: theirs.Address() + uint64(i), Length: 1})
		}
		note := &Notification{Name: "n"}
		x := w.submit(a, SubmitOptions{Notification: note}, ops...)
		if _, err := w.receive(b, time.Minute); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(theirs.Bytes(), mine.Bytes()) {
			t.Error("the notification came before the data")
		}
		if err := w.done(x); err != nil {
			t.Fatal(err)
		}
		if p := x.Progress(); p.Done != n || p.Bytes != n {
			t.Errorf("%+v", p)
		}
		if a.memory.leases.Held(mine) != 0 {
			t.Error("leases are held")
		}
	})
}

// Scenario 54, as far as it is the engine's: regions of an older provider have
// no capability. They are named by their base, and announced anew with every
// descriptor.
func TestAnOlderProvider(t *testing.T) {
	moving(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		mine := w.region(a, 100, RegionOptions{})
		old := w.regionAt(b, 100, 1<<40)
		b.withoutCapabilities()
		g := w.segment(a, "b:1")
		buffers, _, err := g.Buffers(context.Background())
		if err != nil || len(buffers) != 1 || !buffers[0].Capability.IsZero() {
			t.Fatalf("%+v, %v", buffers, err)
		}
		fill(mine.Bytes(), 4)
		if err := w.write(a, mine, old, g, 100); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(old.Bytes(), filled(100, 4)) {
			t.Error("not written")
		}
		b.memory.forget(a.incarnation)
		if err := old.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		fresh := w.regionAt(b, 100, 1<<40)
		b.withoutCapabilities()
		if err := g.Refresh(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := w.write(a, mine, fresh, g, 100); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(fresh.Bytes(), filled(100, 4)) {
			t.Error("not written to the new region")
		}
		_ = g.Close()
		w.shut(a, b)
		w.giveUp()
	})
}

func TestNoSegmentOfNobody(t *testing.T) {
	moving(t, func(w *world) {
		a := w.open("a:1")
		defer w.shut(a)
		if _, err := a.OpenSegment(context.Background(), "nobody:1"); !errors.Is(err, Unavailable) {
			t.Errorf("%v", err)
		}
		if _, err := a.OpenSegment(context.Background(), "not an address"); !errors.Is(err, InvalidArgument) {
			t.Errorf("%v", err)
		}
	})
}

// withoutFallback leaves both nodes the fast transport alone.
func (w *world) withoutFallback() {
	no := false
	for _, at := range []string{"a:1", "b:1"} {
		c := w.configs[at]
		c.Notification.RPCFallback = &no
		c.Transports = []TransportConfig{{Name: "fast", InProcess: func() sdk.Transport { return w.fast.New(at) }}}
		w.configs[at] = c
	}
}

// Transfers alone keep what they need: neither side forgets the other while a
// segment is open.
func TestASegmentOutlivesSilence(t *testing.T) {
	moving(t, func(w *world) {
		w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast", Moves: true, NoFrames: true})
		w.withoutFallback()
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		if err := w.write(a, mine, theirs, g, 1); err != nil {
			t.Fatal(err)
		}
		lives := []*association{theOnly(t, a), theOnly(t, b)}
		time.Sleep(2 * silence)
		for i, e := range []*Engine{a, b} {
			if e.Stats().Associations != 1 || theOnly(t, e) != lives[i] {
				t.Errorf("%s has forgotten its peer", e.address)
			}
		}
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Error(err)
		}
	})
}

// An op that waits for the application's event is not taken for a stalled one.
func TestAnOpThatWaitsIsNotStalled(t *testing.T) {
	moving(t, func(w *world) {
		both := []sdk.MemoryKind{sdk.HostMemory, sdk.DeviceMemory}
		w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast", Moves: true, Move: sdk.MoveLimits{Local: both, TargetWrites: true}})
		a, _, mine, theirs, g, end := w.movers(100)
		defer end()
		op := Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100, Event: &[sdk.EventBytes]byte{1}}
		if err := w.done(w.submit(a, SubmitOptions{}, op)); !errors.Is(err, NotSent) || !strings.Contains(err.Error(), "its event is a GPU's") {
			t.Errorf("an event between regions of host memory: %v", err)
		}
		mine.region.Kind = sdk.DeviceMemory
		w.fast.HoldWrites("b:1", true)
		x := w.submit(a, SubmitOptions{}, op)
		time.Sleep(4 * stalledAfter)
		if a.stats.moves[moveStalled].Load() != 0 || isClosed(x.Done()) {
			t.Errorf("%v", x.Results())
		}
		w.fast.HoldWrites("b:1", false)
		if err := w.done(x); err != nil {
			t.Error(err)
		}
	})
}

// What a plugin says that makes no sense changes nothing.
func TestNonsenseOfMovers(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		if err := w.write(a, mine, theirs, g, 1); err != nil {
			t.Fatal(err)
		}
		m := &a.memory.source(b.incarnation).mover
		m.mu.Lock()
		ch := m.lanes[laneKey{"fast", "p0", 0}].ch
		m.mu.Unlock()
		before := a.Stats().Nonsense
		ch.Completed([]sdk.Completion{{ID: 1, Outcome: sdk.Done}, {ID: 99, Outcome: sdk.NotPosted}, {ID: 0, Outcome: 9}})
		ch.Received([][]byte{{1}})
		b.memory.gates.mu.Lock()
		var ends []*passive
		for _, d := range b.memory.gates.by[a.incarnation].lanes {
			ends = append(ends, d.ends...)
		}
		b.memory.gates.mu.Unlock()
		if len(ends) != 1 {
			t.Fatalf("%d ends", len(ends))
		}
		ends[0].Received(nil)
		ends[0].Completed(nil)
		if n := a.Stats().Nonsense - before; n != 4 || b.Stats().Nonsense != 2 {
			t.Errorf("%d and %d counted", n, b.Stats().Nonsense)
		}
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}

// A peer whose paths come and go under ever other names is remembered so far
// and no further.
func TestLanesAreBounded(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		if err := w.write(a, mine, theirs, g, 1); err != nil {
			t.Fatal(err)
		}
		s := a.memory.source(b.incarnation)
		s.a.mu.Lock()
		routes := slices.Clone(s.a.found)
		s.a.mu.Unlock()
		m := &s.mover
		// change has the peer list another path.
		change := func(i int) (lanes, listed int) {
			other := slices.Clone(routes)
			other[0].paths = []string{fmt.Sprint("x", i)}
			m.routed(other)
			m.mu.Lock()
			defer m.mu.Unlock()
			return len(m.lanes), len(m.all)
		}
		for i := range 3 * maxLanes {
			if lanes, listed := change(i); lanes > maxLanes+2 || lanes != listed {
				t.Fatalf("%d lanes, %d listed", lanes, listed)
			}
		}
		m.routed(routes)
		m.stir()
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Error(err)
		}
	})
}

// A transport that reached both memories, and takes its time to start again, is
// waited for, and not forever.
func TestATransportThatStartsAgainIsWaitedFor(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		if err := w.write(a, mine, theirs, g, 1); err != nil {
			t.Fatal(err)
		}
		s := a.memory.source(b.incarnation)
		s.a.mu.Lock()
		routes := slices.Clone(s.a.found)
		s.a.mu.Unlock()
		route := func(routes []route) {
			s.mover.routed(routes)
			s.mover.stir()
		}
		route(nil)
		x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
		time.Sleep(2 * strandedFor)
		if isClosed(x.Done()) {
			t.Errorf("not waited for: %v", x.Results())
		}
		route(routes)
		if err := w.done(x); err != nil {
			t.Error(err)
		}
		route(nil)
		began := time.Now()
		if err := w.write(a, mine, theirs, g, 100); !errors.Is(err, Unavailable) || !errors.Is(err, NotSent) {
			t.Error(err)
		}
		if took := time.Since(began); took < registeringFor || took > 2*registeringFor {
			t.Errorf("waited for %v", took)
		}
		route(routes)
	})
}

// Ops that wait, however many, hold up none that can go at once.
func TestOpsThatWaitHoldUpNoOthers(t *testing.T) {
	for _, regions := range []int{1, 2 * maxWaiting} {
		moving(t, func(w *world) {
			const size = 200 * 4096
			heard, letGo := w.listening("a:1"), make(chan struct{})
			c := w.configs["a:1"]
			c.Transfer.ChunkBytes = 4096
			w.configs["a:1"] = c
			a, b, mine, theirs, g, end := w.movers(size)
			defer end()
			other := w.region(b, 4096, RegionOptions{})
			heard.before = func(r sdk.RemoteRegion) {
				if r.Base == other.Address() {
					<-letGo
				}
			}
			var others []*Region
			for range regions {
				others = append(others, w.region(a, 4096, RegionOptions{}))
			}
			if err := w.write(a, mine, theirs, g, 1); err != nil {
				t.Fatal(err)
			}
			ops := make([]Op, maxOps)
			for i := range ops {
				ops[i] = Op{Kind: Write, Local: others[i%regions], Segment: g, Address: other.Address(), Length: 1}
			}
			x := w.submit(a, SubmitOptions{}, ops...)
			synctest.Wait()
			began := time.Now()
			for range 3 {
				if err := w.write(a, mine, theirs, g, size); err != nil {
					t.Error(err)
				}
			}
			if took := time.Since(began); took > 10*time.Millisecond || x.Progress().Done > 0 {
				t.Errorf("%d regions: it took %v, %+v", regions, took, x.Progress())
			}
			close(letGo)
			if err := w.done(x); err != nil {
				t.Error(err)
			}
		})
	}
}

// Ops that no way takes end together, however many.
func TestOpsWithoutAWayEndTogether(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		if err := w.write(a, mine, theirs, g, 1); err != nil {
			t.Fatal(err)
		}
		s := a.memory.source(b.incarnation)
		s.mover.routed(nil)
		s.mover.stir()
		ops := make([]Op, 5000)
		for i := range ops {
			ops[i] = Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 1}
		}
		began := time.Now()
		fetched := a.stats.descriptors[descFetched].Load()
		if err := w.done(w.submit(a, SubmitOptions{}, ops...)); !errors.Is(err, Unavailable) || !errors.Is(err, NotSent) {
			t.Error(err)
		}
		if took := time.Since(began); took < registeringFor || took > 2*registeringFor {
			t.Errorf("it took %v", took)
		}
		if n := a.stats.descriptors[descFetched].Load() - fetched; n > 3 {
			t.Errorf("the descriptor was asked for %d times", n)
		}
	})
}
