package rdmatransport

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/simverbs"
	"github.com/hawser-transport/hawser/sdk"
)

// The reference system freed its slots by count: a buffer could be written to
// while the device still read it.
func TestSlotsAreTakenByID(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var l slotList
		var ids []uint32
		for i := range 1 + r.IntN(20) {
			l.push(&slot{id: uint32(i)})
			ids = append(ids, uint32(i))
		}
		if l.take(1000) != nil {
			t.Fatal("took a slot that is not there")
		}
		for len(ids) > 0 {
			k := r.IntN(len(ids))
			if s := l.take(ids[k]); s == nil || s.id != ids[k] || s.next != nil {
				t.Fatalf("took %+v, not %d", s, ids[k])
			}
			ids = slices.Delete(ids, k, k+1)
			var left []uint32
			for s := l.head; s != nil; s = s.next {
				left = append(left, s.id)
			}
			if !slices.Equal(left, ids) || l.n != len(ids) || (l.tail == nil) != (len(ids) == 0) {
				t.Fatalf("left %v (%d), want %v", left, l.n, ids)
			}
		}
	}
}

// A failed completion gives its slot back; in the reference system 256 of them
// stopped the sender for good.
func TestFailedSendsGiveTheirSlotsBack(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, patient), f.node(t, patient)
	for i := range 12 {
		x, y := join(t, a, b, uint64(i+1))
		must(t, f.CutBoth(simverbs.PortName{Host: a.host, Device: "sim0", Port: 1}, simverbs.PortName{Host: b.host, Device: "sim0", Port: 1}))
		for range 30 {
			must(t, x.Send([]byte("into the void")))
		}
		must(t, f.ToError(f.name(a, x.e)))
		if err := x.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable {
			t.Fatalf("ended with %v", err)
		}
		must(t, f.HealBoth(simverbs.PortName{Host: a.host, Device: "sim0", Port: 1}, simverbs.PortName{Host: b.host, Device: "sim0", Port: 1}))
		y.Close()
		y.WaitEnded()
	}
	idle(t, a.device("sim0"))
	idle(t, b.device("sim0"))
}

// Receives that the device refuses are posted later, and none is posted twice,
// which the simulation would report.
func TestReceivesArePostedExactlyOnce(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, patient), f.node(t, patient)
	x, y := join(t, a, b, 1)
	for range 20 {
		b.provider.Inject(simverbs.Injection{Call: "ibv_post_srq_recv", Errno: syscall.ENOMEM})
		talk(t, x, y, 5)
	}
	x.Close()
	y.WaitEnded()
	x.WaitEnded()
	d := b.device("sim0")
	until(t, "all receives", func() bool {
		d.receives.mu.Lock()
		defer d.receives.mu.Unlock()
		return !slices.Contains(d.receives.posted, false) && len(d.receives.free) == 0
	})
	idle(t, d)
}

// refusing takes no receives, once.
type refusing struct {
	nullReceives
	refused bool
}

func (r *refusing) Post(wrs []verbs.RecvWR) (int, error) {
	if !r.refused {
		r.refused = true
		return 0, syscall.ENOMEM
	}
	return r.nullReceives.Post(wrs)
}

// A device that refuses receives gets them again, also if nothing comes any more.
func TestRefusedReceivesArePostedLater(t *testing.T) {
	d, _, _ := onNothing(t)
	r := d.receives
	r.srq = &refusing{}
	_, _, ok := r.take(recvID | 3)
	r.put([]uint32{3})
	r.mu.Lock()
	if !ok || r.posted[3] || r.left.Load() != int64(r.n-1) {
		t.Errorf("refused, and posted: %v; %d are", r.posted[3], r.left.Load())
	}
	r.mu.Unlock()
	until(t, "the next try", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.posted[3] && len(r.free) == 0 && r.left.Load() == int64(r.n)
	})
}

// One region per area, however many endpoints: one per buffer ran into ENOMEM.
func TestRegionsAreShared(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, patient), f.node(t, patient)
	x, y := join(t, a, b, 1)
	talk(t, x, y, 1)
	first := a.provider.Accounts().MRs
	for i := range 20 {
		x, y := join(t, a, b, uint64(i+2))
		talk(t, x, y, 1)
	}
	if n := a.provider.Accounts().MRs; n != first {
		t.Errorf("%d regions with 21 endpoints, %d with one", n, first)
	}
}

// Whatever fails, and when: no frame has two outcomes, what is Done has
// landed, and what is NotPosted never left.
func TestOutcomesAreExact(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, wide), f.node(t, wide)
	r := rand.New(rand.NewPCG(7, 7))
	seen := map[sdk.Outcome]int{}
	for round := range uint64(40) {
		x, y := join(t, a, b, round+1)
		fault := r.IntN(5)
		after := r.IntN(60)
		for i := range 100 {
			if i == after {
				switch fault {
				case 0:
					a.provider.Inject(simverbs.Injection{Call: "ibv_post_send", Errno: syscall.EINVAL, After: r.IntN(3)})
				case 1:
					a.provider.Inject(simverbs.Injection{Call: "ibv_post_send", Errno: syscall.ENOMEM, After: r.IntN(3)})
				case 2:
					must(t, f.ToError(f.name(a, x.e)))
				case 3:
					must(t, f.ToError(f.name(b, y.e)))
				case 4:
					x.Close()
				}
			}
			if x.Try(fmt.Appendf(nil, "%d", i)) != nil {
				break
			}
		}
		if fault == 3 {
			x.Close() // it would take the retries to notice
		}
		if fault == 1 {
			x.WaitDone(x.Sent())
			x.Close()
		}
		x.WaitEnded()
		y.Close()
		y.WaitEnded()
		landed := map[string]bool{}
		for _, frame := range y.WaitReceived(0) {
			if landed[string(frame)] {
				t.Fatalf("round %d: frame %s landed twice", round, frame)
			}
			landed[string(frame)] = true
		}
		for id := 1; id <= x.Sent(); id++ {
			c, ok := x.Outcome(uint64(id))
			if !ok {
				c.Outcome = sdk.Unknown // the end says so
			}
			seen[c.Outcome]++
			switch name := fmt.Sprint(id - 1); {
			case c.Outcome == sdk.Done && !landed[name]:
				t.Errorf("round %d, fault %d: frame %s is done and did not land", round, fault, name)
			case c.Outcome == sdk.NotPosted && landed[name]:
				t.Errorf("round %d, fault %d: frame %s is not posted and landed", round, fault, name)
			}
		}
	}
	if seen[sdk.Done] == 0 || seen[sdk.Unknown] == 0 || seen[sdk.NotPosted] == 0 {
		t.Errorf("not every outcome came about: %v", seen)
	}
	idle(t, a.device("sim0"))
}

// The buffers are all taken: Send says so at once, and takes frames again when
// some are back.
func TestWaitingForASlotIsBackpressure(t *testing.T) {
	f := newFabric(t)
	const s = `{"send_buffer_bytes": 1048576, "endpoint": {"send_timeout": 17}}`
	a, b := f.node(t, s), f.node(t, s)
	x, y := join(t, a, b, 1)
	must(t, f.HoldCompletions(a.host, "sim0", true))
	var err error
	for err == nil {
		err = x.Try(make([]byte, maxFrame))
	}
	if sdk.CodeOf(err) != sdk.Backpressure {
		t.Fatalf("Send: %v", err)
	}
	if n := x.Sent(); n == 0 || n > 16 {
		t.Errorf("%d frames of 64 KiB taken into 1 MiB", n)
	}
	must(t, f.HoldCompletions(a.host, "sim0", false))
	for range 50 {
		must(t, x.Send(make([]byte, maxFrame)))
	}
	x.WaitDone(x.Sent())
	y.WaitReceived(x.Sent())
}

// A peer floods while its reader stands still: it holds no more than its share
// of the buffers, and others go on.
func TestAFloodHoldsNobodyElse(t *testing.T) {
	f := newFabric(t)
	a, b, c := f.node(t, patient), f.node(t, patient), f.node(t, patient)
	gate := make(chan struct{})
	flood, still := joinWith(t, a, c, rigtest.Target(a.Node, c.Node, 1), func([][]byte) { <-gate })
	other, reader := join(t, b, c, 1)
	for i := range maxOpen {
		if err := flood.Try(fmt.Appendf(nil, "flood %d", i)); err != nil {
			break
		}
	}
	until(t, "the flood", func() bool {
		flood.e.mu.Lock()
		defer flood.e.mu.Unlock()
		return flood.e.posted == 0 && flood.e.queue.n > 0 && flood.e.sent == flood.e.edge
	})
	if most := share(256, 1); int(flood.e.sent) > most {
		t.Errorf("the flooding peer may fill %d buffers, its share is %d", flood.e.sent, most)
	}
	talk(t, other, reader, 300)
	close(gate)
	flood.WaitDone(flood.Sent())
	still.WaitReceived(flood.Sent())
}

// A peer that sends more than it was granted is ended.
func TestGrantsAreEnforced(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, patient), f.node(t, patient)
	gate := make(chan struct{})
	x, y := joinWith(t, a, b, rigtest.Target(a.Node, b.Node, 1), func([][]byte) { <-gate })
	x.e.mu.Lock()
	x.e.edge = 1 << 20
	x.e.mu.Unlock()
	for i := range 200 {
		_ = x.Try(fmt.Appendf(nil, "%d", i))
	}
	until(t, "the end", func() bool {
		y.e.mu.Lock()
		defer y.e.mu.Unlock()
		return y.e.cause != nil
	})
	close(gate)
	if err := y.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable {
		t.Errorf("ended with %v", err)
	}
	x.WaitEnded()
}

func TestShares(t *testing.T) {
	for _, c := range []struct{ depth, endpoints, share, opening int }{
		{256, 1, 128, 32}, {256, 3, 64, 16}, {256, 20, 12, minShare}, {256, 1000, minShare, minShare}, {4096, 1, maxShare, maxShare / 4},
	} {
		if s, o := share(c.depth, c.endpoints), opening(c.depth, c.endpoints); s != c.share || o != c.opening {
			t.Errorf("%d buffers for %d: share %d, opening %d", c.depth, c.endpoints, s, o)
		}
	}
}

func TestGrantsWidenWithinBounds(t *testing.T) {
	for _, c := range []struct {
		before uint64
		low    uint32
		want   uint64
		ok     bool
	}{
		{0, 5, 5, true}, {5, 5, 5, true}, {countMask, 3, countMask + 4, true}, {1<<40 + countMask, 0, 1<<40 + countMask + 1, true},
		{10, 9, 0, false}, {0, maxShare + 1, 0, false}, {0, countMask, 0, false},
	} {
		got, ok := widen(c.before, c.low)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("widen(%d, %d): %d, %v", c.before, c.low, got, ok)
		}
	}
}

// Sends that see no completion end the endpoint after the stall timeout.
func TestAStallEndsTheEndpoint(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, `{"stall_timeout_ms": 400, "retire_timeout_ms": 300, "endpoint": {"send_timeout": 17}}`), f.node(t, patient)
	x, y := join(t, a, b, 1)
	talk(t, x, y, 3)
	must(t, f.Starve(b.host, "sim0", true)) // the path is alive, and nothing gets through
	began := time.Now()
	must(t, x.Send([]byte("stuck")))
	if err := x.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable {
		t.Errorf("ended with %v", err)
	}
	if d := time.Since(began); d < 400*time.Millisecond {
		t.Errorf("ended after %s", d)
	}
	must(t, f.Starve(b.host, "sim0", false))
}

// soft is a host whose devices end a queue pair as Soft-RoCE does.
func (f *fabric) soft() simverbs.Options {
	o := f.options()
	for i := range o.Devices {
		d := &o.Devices[i]
		d.KeepsCompletions, d.NoLastWQE, d.NoRetryLimit = true, true, true
	}
	return o
}

// exhaust sends all that the peer, whose completions are held, has granted, and
// left frames more. Nothing is posted then.
func exhaust(t *testing.T, x *side, left int) {
	t.Helper()
	x.e.mu.Lock()
	granted := int(x.e.edge - x.e.sent)
	x.e.mu.Unlock()
	before := x.Sent()
	for range granted + left {
		must(t, x.Send([]byte("frame")))
	}
	x.WaitDone(before + granted)
	until(t, "nothing to be posted", func() bool {
		x.e.mu.Lock()
		defer x.e.mu.Unlock()
		return x.e.posted == 0 && x.e.queue.n == left
	})
}

// The peer's queue pair is gone after it has acknowledged all that it had
// granted: nothing is posted that could fail, and no grant will ever come.
func TestAnEndpointThatWaitsForADeadPeersGrantEnds(t *testing.T) {
	f := newFabric(t)
	const s = `{"stall_timeout_ms": 400, "endpoint": {"send_timeout": 12}}` // without a limit
	a, b := f.nodeOf(t, f.soft(), s), f.nodeOf(t, f.soft(), s)
	x, y := join(t, a, b, 1)
	must(t, f.HoldCompletions(b.host, "sim0", true))
	const left = 5
	exhaust(t, x, left)
	must(t, f.ToReset(f.name(b, y.e)))
	must(t, f.HoldCompletions(b.host, "sim0", false))
	if err := x.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable || !strings.Contains(err.Error(), "no completion") {
		t.Errorf("ended with %v", err)
	}
	for id := x.Sent() - left + 1; id <= x.Sent(); id++ {
		if c, ok := x.Outcome(uint64(id)); !ok || c.Outcome != sdk.NotPosted {
			t.Errorf("frame %d was never posted: %+v", id, c)
		}
	}
	y.Close()
	y.WaitEnded()
	x, y = join(t, a, b, 2)
	talk(t, x, y, 10)
}

// A frame that is sent when nothing is granted, and when everything else has
// long completed, is looked after as well.
func TestAFrameThatFindsNothingGrantedIsWatched(t *testing.T) {
	f := newFabric(t)
	const s = `{"stall_timeout_ms": 400, "endpoint": {"send_timeout": 12}}` // without a limit
	a, b := f.nodeOf(t, f.soft(), s), f.nodeOf(t, f.soft(), s)
	x, y := join(t, a, b, 1)
	must(t, f.HoldCompletions(b.host, "sim0", true))
	exhaust(t, x, 0)
	until(t, "the watch to rest", func() bool { return !a.device("sim0").watch.armed.Load() })
	must(t, f.ToReset(f.name(b, y.e)))
	must(t, f.HoldCompletions(b.host, "sim0", false))
	began := time.Now()
	must(t, x.Send([]byte("nothing granted")))
	if err := x.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable {
		t.Errorf("ended with %v", err)
	}
	if d := time.Since(began); d < 300*time.Millisecond {
		t.Errorf("ended after %s", d)
	}
	y.WaitEnded()
}

// What the accepting end is given before the peer has arrived waits for that:
// nothing is sent to a queue pair that may not be there yet, and it is no stall.
func TestWaitingForThePeersArrivalIsNoStall(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, patient), f.node(t, `{"stall_timeout_ms": 200, "accept_wait_ms": 1000}`)
	r := rigtest.NewRecorder(t)
	var y *side
	_, err := a.Connect(rigtest.Context(t), rigtest.Target(a.Node, b.Node, 1), func(ctx context.Context, offer []byte) ([]byte, error) {
		e, _, err := b.Accept(ctx, rigtest.Target(b.Node, a.Node, 1), offer, r)
		must(t, err)
		y = newSide(e, r)
		return nil, sdk.Errorf(sdk.Unavailable, "the answer is lost")
	}, discard{})
	if err == nil {
		t.Fatal("connected without an answer")
	}
	must(t, y.Send([]byte("early")))
	if err := y.WaitEnded(); err == nil || !strings.Contains(err.Error(), "has not arrived") {
		t.Errorf("ended with %v", err)
	}
	if _, _, never := y.Counts(); never != 1 {
		t.Errorf("%d frames were never posted, not 1", never)
	}
}

// A reader that has stopped is not a dead peer: its device acknowledges, and
// what waits goes on when it reads again.
func TestAStoppedReaderIsNoStall(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, `{"stall_timeout_ms": 1000, "endpoint": {"send_timeout": 17}}`), f.node(t, patient)
	gate := make(chan struct{})
	x, y := joinWith(t, a, b, rigtest.Target(a.Node, b.Node, 1), func([][]byte) { <-gate })
	exhaust(t, x, 5)
	watch := &a.device("sim0").watch
	began := watch.ticks.Load()
	until(t, "two stall timeouts", func() bool { return watch.ticks.Load()-began > 2*stallTicks+2 })
	close(gate)
	x.WaitDone(x.Sent())
	y.WaitReceived(x.Sent())
}

// An idle endpoint costs kilobytes, the reference system's cost 32 MiB, and no
// processor time.
func TestIdleEndpointsAreCheap(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, patient), f.node(t, patient)
	x, y := join(t, a, b, 1)
	talk(t, x, y, 10)
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	const n = 50
	before := heap()
	var ends []*side
	for i := range n {
		x, y := join(t, a, b, uint64(i+2))
		talk(t, x, y, 1)
		ends = append(ends, x, y)
	}
	perEnd := (heap() - before) / (2 * n)
	t.Logf("%d bytes per idle endpoint, the simulated queue pair and the test's handler included", perEnd)
	if perEnd > 64<<10 {
		t.Errorf("%d bytes per idle endpoint", perEnd)
	}
	for _, s := range ends {
		s.e.mu.Lock()
		if s.e.inbox != nil || s.e.queue.n+s.e.flying.n > 0 {
			t.Error("an idle endpoint holds buffers")
		}
		s.e.mu.Unlock()
	}
	d := a.device("sim0")
	until(t, "the poller to rest", func() bool {
		rests := d.polling.TryLock()
		if rests {
			d.polling.Unlock()
		}
		return rests
	})
	runtime.KeepAlive(ends)
}
