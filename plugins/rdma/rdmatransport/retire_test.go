package rdmatransport

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/simverbs"
	"github.com/hawser-transport/hawser/sdk"
)

// until waits for a condition that nothing announces.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(rigtest.Patience); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func (f *fabric) qp(t testing.TB, n *node, e *endpoint) simverbs.QPInfo {
	t.Helper()
	qps, err := f.QPs(n.host)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range qps {
		if q.Device == e.d.name && q.Num == e.num {
			return q
		}
	}
	return simverbs.QPInfo{}
}

func (f *fabric) name(n *node, e *endpoint) simverbs.QPName {
	return simverbs.QPName{Host: n.host, Device: e.d.name, Num: e.num}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wide lets a peer fill 256 buffers.
const wide = `{"receive_depth": 1024, "endpoint": {"send_timeout": 17}}`

// widened connects two nodes and talks until x may send 256 frames at once.
func widened(t *testing.T, a, b *node, generation uint64) (x, y *side) {
	t.Helper()
	x, y = join(t, a, b, generation)
	for room := uint64(0); room < maxFlying; {
		must(t, x.Send([]byte("widen")))
		until(t, "the grant", func() bool {
			y.e.mu.Lock()
			consumed, granted, told := y.e.consumed, y.e.granted, y.e.posted == 0
			y.e.mu.Unlock()
			x.e.mu.Lock()
			defer x.e.mu.Unlock()
			room = x.e.edge - x.e.sent
			return told && int(consumed) == x.Sent() && granted == x.e.edge
		})
	}
	x.WaitDone(x.Sent())
	return x, y
}

// The reference system took the queue pair off its table before what had
// landed was polled: up to 256 notifications were lost that the sender saw
// delivered.
func TestRetiringLosesNothingThatLanded(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, wide), f.node(t, wide)
	x, y := widened(t, a, b, 1)
	before := x.Sent()
	must(t, f.HoldCompletions(b.host, "sim0", true))
	for i := range maxFlying {
		must(t, x.Send(fmt.Appendf(nil, "frame %d", i)))
	}
	x.WaitDone(before + maxFlying)
	if q := f.qp(t, b, y.e); q.Waiting != maxFlying {
		t.Fatalf("%d completions wait at the receiver, not %d", q.Waiting, maxFlying)
	}
	retired := make(chan struct{})
	go func() {
		defer close(retired)
		y.Close()
	}()
	<-retired
	// The queue pair is in the error state, and its completions still wait.
	until(t, "the error state", func() bool { return f.qp(t, b, y.e).State.String() == "ERR" })
	must(t, f.HoldCompletions(b.host, "sim0", false))
	if err := y.WaitEnded(); sdk.CodeOf(err) != sdk.Closed {
		t.Errorf("ended with %v", err)
	}
	if received, _, _ := y.Counts(); received != before+maxFlying {
		t.Errorf("%d frames were dropped", before+maxFlying-received)
	}
}

// An end that only receives has nothing that fails with its queue pair. The
// device's word that it takes no more receives ends it, long before the peer's
// sends run out of retries.
func TestAReceiverLearnsThatItsQueuePairFailed(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, patient), f.node(t, patient)
	x, y := join(t, a, b, 1)
	must(t, f.ToError(f.name(b, y.e)))
	if err := y.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable {
		t.Errorf("ended with %v", err)
	}
	x.Close()
	x.WaitEnded()
}

// A queue pair that is moved to RESET drops its completions: the sender has
// seen success. Only acknowledgements end to end cover that; the transport
// survives it, and its successor works.
func TestResetAtTheReceiverDropsWhatLanded(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, wide), f.node(t, wide)
	x, y := widened(t, a, b, 1)
	before := x.Sent()
	must(t, f.HoldCompletions(b.host, "sim0", true))
	const lost = 100
	for range lost {
		must(t, x.Send([]byte("lost")))
	}
	x.WaitDone(before + lost)
	must(t, f.ToReset(f.name(b, y.e)))
	must(t, f.HoldCompletions(b.host, "sim0", false))
	// The next send finds nobody.
	must(t, x.Send([]byte("never acknowledged")))
	if err := x.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable {
		t.Errorf("the sender ended with %v", err)
	}
	y.Close()
	y.WaitEnded()
	if received, _, _ := y.Counts(); received != before {
		t.Errorf("%d frames came, %d before the reset", received, before)
	}
	// The buffers that the dropped completions named come back.
	until(t, "the buffers", func() bool { return b.provider.Accounts().Receives == b.device("sim0").receives.n })
	x, y = join(t, a, b, 2)
	talk(t, x, y, 10)
}

// A device is never without endpoints, and queue pairs are reset on it: buffers
// are missing, of which nobody can say which. Before they are too many the
// endpoints end, and all buffers are back.
func TestBuffersAreMissedOfADeviceInUse(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, patient), f.node(t, patient)
	keeper, kept := join(t, a, b, 1)
	d := b.device("sim0")
	over := func() bool {
		kept.e.mu.Lock()
		defer kept.e.mu.Unlock()
		return kept.e.cause != nil
	}
	lost, rounds := 0, 0
	for ; !over(); rounds++ {
		if most := d.receives.n / missable; lost > most {
			t.Fatalf("%d buffers are missing, more than %d", lost, most)
		}
		talk(t, keeper, kept, 5)
		x, y := join(t, a, b, uint64(rounds+2))
		must(t, f.HoldCompletions(b.host, "sim0", true))
		exhaust(t, x, 0)
		lost += x.Sent()
		must(t, f.ToReset(f.name(b, y.e)))
		must(t, f.HoldCompletions(b.host, "sim0", false))
		y.WaitEnded()
		x.Close()
		x.WaitEnded()
		until(t, "the retiring", func() bool { return d.table.n.Load() < 2 })
	}
	if rounds < 2 || lost == 0 {
		t.Errorf("ended after %d rounds in which %d buffers were lost", rounds, lost)
	}
	if err := kept.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable || !strings.Contains(err.Error(), "anew") {
		t.Errorf("ended with %v", err)
	}
	keeper.WaitEnded()
	until(t, "the buffers", func() bool { return b.provider.Accounts().Receives == d.receives.n && d.missed.Load() == 0 })
	x, y := join(t, a, b, 1000)
	talk(t, x, y, 10)

	// While they are made anew nobody gets an endpoint: the last would never go.
	set := func(renewing bool) {
		d.starting.Lock()
		defer d.starting.Unlock()
		d.renewing = renewing
	}
	set(true)
	_, err := b.Connect(rigtest.Context(t), rigtest.Target(b.Node, a.Node, 1001), nil, discard{})
	set(false)
	if sdk.CodeOf(err) != sdk.Unavailable || !strings.Contains(err.Error(), "anew") {
		t.Errorf("Connect: %v", err)
	}
}

// Queue pair numbers are used again at once: what is late of the earlier one
// must not reach the endpoint that has its number now.
func TestNumberReuse(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, patient), f.node(t, patient)
	var number uint32
	for i := range 30 {
		x, y := join(t, a, b, uint64(i+1))
		if i == 0 {
			number = y.e.num
		} else if y.e.num != number {
			t.Fatalf("the queue pair has number %d, not %d again", y.e.num, number)
		}
		n := 1 + i%7
		for range n {
			must(t, x.Send(fmt.Appendf(nil, "life %d", i)))
		}
		x.WaitDone(n)
		for _, frame := range y.WaitReceived(n) {
			if string(frame) != fmt.Sprintf("life %d", i) {
				t.Fatalf("life %d received %q", i, frame)
			}
		}
		if i%2 == 0 {
			x.Close()
		} else {
			y.Close()
		}
		x.WaitEnded()
		y.WaitEnded()
		until(t, "the numbers", func() bool { return a.device("sim0").table.n.Load()+b.device("sim0").table.n.Load() == 0 })
	}
}

// A number whose earlier queue pair still has completions is not published
// again before these are gone.
func TestPublishWaitsForTheNumber(t *testing.T) {
	var tab table
	tab.init()
	old, next := &endpoint{num: 17}, &endpoint{num: 17}
	tab.publish(old)
	published := make(chan struct{})
	go func() {
		tab.publish(next)
		close(published)
	}()
	select {
	case <-published:
		t.Fatal("two endpoints have one number")
	case <-time.After(20 * time.Millisecond):
	}
	tab.withdraw(old)
	<-published
	if tab.m[17] != next {
		t.Error("the successor is not in the table")
	}
}

// Two devices have queue pairs of the same number: a table by number alone
// would mix them up.
func TestTwoDevicesWithTheSameNumbers(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, patient), f.node(t, patient)
	paths, err := a.Paths(b.Setup.Attributes)
	must(t, err)
	var xs, ys []*side
	for i, path := range paths[:2] {
		target := rigtest.Target(a.Node, b.Node, uint64(i+1))
		target.Path = path
		x, y := joinOver(t, a, b, target)
		xs, ys = append(xs, x), append(ys, y)
	}
	if xs[0].e.d == xs[1].e.d || xs[0].e.num != xs[1].e.num || ys[0].e.num != ys[1].e.num {
		t.Fatalf("numbers %s/%d and %s/%d do not collide", xs[0].e.d.name, xs[0].e.num, xs[1].e.d.name, xs[1].e.num)
	}
	for i := range xs {
		for range 20 {
			must(t, xs[i].Send(fmt.Appendf(nil, "rail %d", i)))
		}
	}
	for i := range ys {
		for _, frame := range ys[i].WaitReceived(20) {
			if string(frame) != fmt.Sprintf("rail %d", i) {
				t.Errorf("rail %d received %q", i, frame)
			}
		}
	}
	xs[0].Close()
	xs[0].WaitEnded()
	ys[0].WaitEnded()
	talk(t, xs[1], ys[1], 10)
}

// idle fails unless everything that endpoints had is back.
func idle(t *testing.T, d *device) {
	t.Helper()
	until(t, "the endpoints' end", func() bool { return d.table.n.Load() == 0 })
	d.slots.mu.Lock()
	defer d.slots.mu.Unlock()
	if d.slots.out != 0 || d.granted.Load() != 0 || d.room.Load() != int64(d.entries-d.receives.n) {
		t.Errorf("%d send buffers are out, %d frames granted, room is %d of %d", d.slots.out, d.granted.Load(), d.room.Load(), d.entries-d.receives.n)
	}
	d.receives.mu.Lock()
	defer d.receives.mu.Unlock()
	for i, posted := range d.receives.posted {
		if !posted {
			t.Errorf("receive buffer %d is not posted", i)
		}
	}
}

// A queue pair whose work never completes is destroyed all the same, after the
// documented time, and everything that it held comes back.
func TestRetirementIsForced(t *testing.T) {
	f := newFabric(t)
	const s = `{"retire_timeout_ms": 300, "endpoint": {"send_timeout": 17}}`
	a, b := f.node(t, s), f.node(t, s)
	x, y := join(t, a, b, 1)
	talk(t, x, y, 3)
	must(t, f.Mute(f.name(a, x.e), true))
	for range 5 {
		must(t, x.Send([]byte("no completion")))
	}
	y.WaitReceived(8)
	x.Close()
	if err := x.WaitEnded(); !errors.Is(err, sdk.Closed) {
		t.Errorf("ended with %v", err)
	}
	y.WaitEnded()
	d := a.device("sim0")
	until(t, "the queue pair's end", func() bool { return d.table.n.Load() == 0 })
	idle(t, d)
	x, y = join(t, a, b, 2)
	talk(t, x, y, 3)
}

// 200 lives of endpoints leave nothing behind.
func TestCycles(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, patient), f.node(t, patient)
	start := func(n *node) (acc simverbs.Accounts) {
		until(t, "the end of the last one", func() bool { return n.device("sim0").table.n.Load() == 0 })
		acc = n.provider.Accounts()
		acc.Completions = 0
		return acc
	}
	var first [2]simverbs.Accounts
	var files int
	for i := range 200 {
		x, y := join(t, a, b, uint64(i+1))
		must(t, x.Send([]byte("x")))
		x.WaitDone(1)
		if i%2 == 0 {
			x, y = y, x
		}
		x.Close()
		x.WaitEnded()
		y.WaitEnded()
		if i == 0 {
			first, files = [2]simverbs.Accounts{start(a), start(b)}, rigtest.Descriptors()
		}
	}
	for i, n := range []*node{a, b} {
		if last := start(n); fmt.Sprint(last) != fmt.Sprint(first[i]) {
			t.Errorf("%s had %+v, and has %+v", n.host, first[i], last)
		}
		idle(t, n.device("sim0"))
	}
	rigtest.WaitDescriptors(t, files+2)
}
