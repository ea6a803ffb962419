package rdmatransport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"syscall"
	"testing"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/rail"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/simverbs"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

var _ sdk.Mover = (*Transport)(nil)

// joinMemory makes an endpoint for memory over the best path.
func joinMemory(t testing.TB, a, b *node, lane int, generation uint64) (x, y *side) {
	t.Helper()
	ra, rb := rigtest.NewRecorder(t), rigtest.NewRecorder(t)
	ea, eb := rigtest.ConnectMemory(t, a.Node, b.Node, lane, generation, ra, rb)
	return &side{ra, &rigtest.Sender{Endpoint: ea, Recorder: ra}, ea.(*mover).endpoint},
		&side{rb, &rigtest.Sender{Endpoint: eb, Recorder: rb}, eb.(*passive).endpoint}
}

// moving makes two nodes, a region on either side and an endpoint.
func moving(t testing.TB, f *fabric, size int) (a, b *node, x, y *side, here, there *rigtest.Memory) {
	t.Helper()
	a, b = f.node(t, patient), f.node(t, patient)
	x, y = joinMemory(t, a, b, 0, 1)
	here, there = rigtest.Register(t, a.Node, size, true), rigtest.Register(t, b.Node, size, true)
	there.Announce(t, a.Node)
	return a, b, x, y, here, there
}

// do does an op and waits for its outcome.
func do(t testing.TB, s *side, frame []byte) sdk.Completion {
	t.Helper()
	must(t, s.Send(frame))
	return outcome(t, s, uint64(s.Sent()))
}

func outcome(t testing.TB, s *side, id uint64) (c sdk.Completion) {
	t.Helper()
	until(t, "an outcome", func() (ok bool) {
		c, ok = s.Outcome(id)
		return ok
	})
	return c
}

func wantOutcome(t testing.TB, what string, c sdk.Completion, outcome sdk.Outcome, code sdk.Code) {
	t.Helper()
	if c.Outcome != outcome || c.Code != code {
		t.Errorf("%s is %v (%v), want %v (%v)", what, c.Outcome, c.Code, outcome, code)
	}
}

func fill(t testing.TB, m io.WriterAt, value byte, size int) {
	t.Helper()
	_, err := m.WriteAt(bytes.Repeat([]byte{value}, size), 0)
	must(t, err)
}

// holds says whether memory is full of a value.
func holds(t testing.TB, m io.ReaderAt, value byte, size int) bool {
	t.Helper()
	got := make([]byte, size)
	_, err := m.ReadAt(got, 0)
	must(t, err)
	return bytes.Count(got, []byte{value}) == size
}

// release calls Deregister or Withdraw with a context that has ended.
func release(f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return f(ctx)
}

// The fence: a queue pair that the device neither moves to the error state nor
// destroys goes on writing for the peer, and Ended waits for its end.
func TestEndedWaitsForTheQueuePair(t *testing.T) {
	const size = 64 << 10
	f := newFabric(t)
	_, b, x, y, here, there := moving(t, f, size)
	fill(t, here, 1, size)
	refused := []string{"ibv_modify_qp(ERR)", "ibv_post_send(WR)"}
	for range 6 { // three seconds of tries, for a write to come between them
		refused = append(refused, "ibv_destroy_qp")
	}
	for _, call := range refused {
		b.provider.Inject(simverbs.Injection{Call: call, Errno: syscall.EIO})
	}
	y.Close()
	until(t, "the first try to destroy", func() bool {
		y.e.mu.Lock()
		defer y.e.mu.Unlock()
		return y.e.over
	})
	// It is alive, and the peer's writes go on.
	wantOutcome(t, "a write to an end that is ending", do(t, x, rigtest.Op(sdk.Write, here, 0, there, 0, size)), sdk.Done, 0)
	if !holds(t, there, 1, size) {
		t.Error("what was written is not there")
	}
	y.WaitEnded()
	if q := f.qp(t, b, y.e); q.Num != 0 {
		t.Errorf("after Ended there is queue pair %+v", q)
	}
	fill(t, there, 2, size)
	for range 10 {
		if x.Try(rigtest.Op(sdk.Write, here, 0, there, 0, size)) != nil {
			break
		}
	}
	x.WaitEnded()
	if !holds(t, there, 2, size) {
		t.Error("memory was written to after Ended")
	}
}

// Of ops under way those that the device was given are unknown, the others were
// not posted, and memory stays as its owner has it after Ended.
func TestAWriteInFlightWhenThePassiveSideEnds(t *testing.T) {
	const size = 256 << 10
	f := newFabric(t)
	_, _, x, y, here, there := moving(t, f, size)
	fill(t, here, 1, size)
	for range 20 {
		must(t, x.Send(rigtest.Op(sdk.Write, here, 0, there, 0, size)))
	}
	y.Close()
	y.WaitEnded()
	fill(t, there, 2, size)
	x.WaitEnded()
	if !holds(t, there, 2, size) {
		t.Error("memory was written to after Ended at its side")
	}
}

// Ops hold both of their regions until the device is done with them.
func TestRegionsOfOpsUnderWayAreHeld(t *testing.T) {
	const size = 8 << 10
	f := newFabric(t)
	a, b, x, _, here, there := moving(t, f, size)
	must(t, f.HoldCompletions(a.host, "sim0", true))
	must(t, x.Send(rigtest.Op(sdk.Read, here, 0, there, 0, size)))
	must(t, x.Send(rigtest.Op(sdk.Flush, here, 0, there, 0, size)))
	deregister := func(ctx context.Context) error { return a.Deregister(ctx, here.Region.Capability) }
	withdraw := func(ctx context.Context) error { return a.Withdraw(ctx, b.Inc, there.Region.Capability) }
	for _, call := range []func(context.Context) error{deregister, withdraw} {
		if err := release(call); !errors.Is(err, sdk.Busy) {
			t.Errorf("with an op under way: %v", err)
		}
	}
	wantOutcome(t, "an op of a region that leaves", func() sdk.Completion {
		must(t, x.Send(rigtest.Op(sdk.Write, here, 0, there, 0, size)))
		return outcome(t, x, 3)
	}(), sdk.NotPosted, sdk.StaleCapability)
	mrs := a.provider.Accounts().MRs
	must(t, f.HoldCompletions(a.host, "sim0", false))
	wantOutcome(t, "the read", outcome(t, x, 1), sdk.Done, 0)
	wantOutcome(t, "the flush", outcome(t, x, 2), sdk.Done, 0)
	must(t, withdraw(rigtest.Context(t)))
	must(t, deregister(rigtest.Context(t)))
	if now := a.provider.Accounts().MRs; now != mrs-2 {
		t.Errorf("%d registrations with two devices, %d before Deregister", now, mrs)
	}
}

// A region that its device does not give back is still registered, and mapped.
func TestDeregisterIsTriedAgain(t *testing.T) {
	f := newFabric(t)
	a := f.node(t, patient)
	m := rigtest.Register(t, a.Node, 4096, true)
	a.provider.Inject(simverbs.Injection{Call: "ibv_dereg_mr", Device: "sim1", Errno: syscall.EBUSY})
	deregister := func(ctx context.Context) error { return a.Deregister(ctx, m.Region.Capability) }
	if err := release(deregister); !errors.Is(err, sdk.Busy) || !strings.Contains(err.Error(), "sim1") {
		t.Errorf("Deregister: %v", err)
	}
	if n := a.provider.Accounts().MRs; n != 1 {
		t.Errorf("%d registrations are left of two, one of which was refused", n)
	}
	must(t, release(deregister))
}

// What the peer's device refuses, a region that it knows no more, is stale; what
// is behind it has no outcome that says anything. The next endpoint works.
func TestRemoteAccessErrorsAreStale(t *testing.T) {
	const size = 4096
	f := newFabric(t)
	a, b, x, y, here, there := moving(t, f, size)
	gone := rigtest.Register(t, b.Node, size, true)
	gone.Announce(t, a.Node)
	must(t, b.Deregister(rigtest.Context(t), gone.Region.Capability))
	must(t, f.HoldCompletions(a.host, "sim0", true))
	// At once: once the second one has failed the endpoint takes no more.
	var frames []sdk.Frame
	for i, to := range []*rigtest.Memory{there, gone, there} {
		frames = append(frames, sdk.Frame{ID: uint64(i + 1), Data: rigtest.Op(sdk.Write, here, 0, to, 0, size)})
	}
	if n, err := x.Endpoint.Send(frames, false); n != len(frames) || err != nil {
		t.Fatalf("%d of %d taken: %v", n, len(frames), err)
	}
	must(t, f.HoldCompletions(a.host, "sim0", false))
	wantOutcome(t, "a write before", outcome(t, x, 1), sdk.Done, 0)
	wantOutcome(t, "a write to a region that is gone", outcome(t, x, 2), sdk.Unknown, sdk.StaleCapability)
	wantOutcome(t, "a write behind", outcome(t, x, 3), sdk.Unknown, sdk.Unavailable)
	for _, s := range []*side{x, y} {
		if err := s.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable {
			t.Errorf("ended with %v", err)
		}
	}
	x, _ = joinMemory(t, a, b, 0, 2)
	wantOutcome(t, "a write over the next endpoint", do(t, x, rigtest.Op(sdk.Write, here, 0, there, 0, size)), sdk.Done, 0)
}

// Keys are those of one instance: the next one's first region has the same key,
// and would be written to.
func TestKeysOfAnInstanceThatWasReplaced(t *testing.T) {
	const size = 64 << 10
	f := newFabric(t)
	a := f.node(t, patient)
	o := f.options()
	instance := func(n uint64, inc *sdk.Incarnation) *node {
		s := f.transport(t, o)
		s.settings = patient
		b := &node{rigtest.Start(t, s, sdk.Config{Instance: n}), s}
		if inc != nil {
			b.Inc = *inc // the engine's stays
		}
		return b
	}
	before := instance(1, nil)
	old := rigtest.Register(t, before.Node, size, true)
	old.Announce(t, a.Node)
	here := rigtest.Register(t, a.Node, size, true)
	must(t, before.Close(rigtest.Context(t)))

	b := instance(2, &before.Inc)
	now := rigtest.Register(t, b.Node, size, true)
	if old.Attrs[attrKeys] != now.Attrs[attrKeys] {
		t.Fatalf("the test needs the same key twice: %v, %v", old.Attrs, now.Attrs)
	}
	fill(t, here, 1, size)
	fill(t, now, 2, size)
	x, _ := joinMemory(t, a, b, 0, 1)
	for _, kind := range []sdk.OpKind{sdk.Write, sdk.Read, sdk.Flush} {
		wantOutcome(t, "an op with the old instance's key", do(t, x, rigtest.Op(kind, here, 0, old, 0, size)), sdk.NotPosted, sdk.StaleCapability)
	}
	if !holds(t, now, 2, size) || !holds(t, here, 1, size) {
		t.Error("memory was changed by ops with the old instance's key")
	}
	now.Announce(t, a.Node)
	wantOutcome(t, "an op with the new key", do(t, x, rigtest.Op(sdk.Write, here, 0, now, 0, size)), sdk.Done, 0)
	if !holds(t, now, 1, size) {
		t.Error("what was written is not there")
	}
}

// A device that answers few reads at a time is not asked for more.
func TestReadsAtATime(t *testing.T) {
	const size, ops = 16 << 10, 100
	f := newFabric(t)
	o := f.options()
	o.Devices[0].Limits.RDAtomic = 1
	a, b := f.node(t, patient), f.nodeOf(t, o, patient)
	x, y := joinMemory(t, a, b, 0, 1)
	here, there := rigtest.Register(t, a.Node, size, true), rigtest.Register(t, b.Node, size, true)
	there.Announce(t, a.Node)
	fill(t, there, 7, size)
	for range ops {
		must(t, x.Send(rigtest.Op(sdk.Read, here, 0, there, 0, size)))
	}
	x.WaitDone(ops)
	if !holds(t, here, 7, size) {
		t.Error("what was read is not there")
	}
	y.Close()
}

// A device that has no room for a region leaves it to the other one.
func TestARegionOfOneDevice(t *testing.T) {
	const size = 4096
	f := newFabric(t)
	o := f.options()
	a, b := f.node(t, patient), f.nodeOf(t, o, patient)
	here, all := rigtest.Register(t, a.Node, size, true), rigtest.Register(t, b.Node, size, true)
	all.Announce(t, a.Node)
	b.provider.Inject(simverbs.Injection{Call: "ibv_reg_mr", Device: "sim0", Errno: syscall.ENOMEM})
	some := rigtest.Register(t, b.Node, size, true)
	some.Announce(t, a.Node)
	a.provider.Inject(simverbs.Injection{Call: "ibv_reg_mr", Device: "sim0", Errno: syscall.ENOMEM})
	mine := rigtest.Register(t, a.Node, size, true)
	paths, err := a.Paths(b.Setup.Attributes)
	must(t, err)
	for generation, path := range paths {
		target := rigtest.Target(a.Node, b.Node, uint64(generation+1))
		target.Path, target.Use = path, sdk.UseMemory
		ra := rigtest.NewRecorder(t)
		e, _ := rigtest.ConnectOver(t, a.Node, b.Node, target, ra, rigtest.NewRecorder(t))
		x := &side{ra, &rigtest.Sender{Endpoint: e, Recorder: ra}, e.(*mover).endpoint}
		check := func(what string, from, to *rigtest.Memory, missing bool) {
			outcome, code := sdk.Done, sdk.Code(0)
			if missing {
				outcome, code = sdk.NotPosted, sdk.Unsupported
			}
			wantOutcome(t, path+" "+what, do(t, x, rigtest.Op(sdk.Write, from, 0, to, 0, size)), outcome, code)
		}
		check("to a region of one device", here, some, e.(*mover).device == "sim0")
		check("from a region of one device", mine, all, x.e.d.name == "sim0")
		check("between regions of both devices", here, all, false)
	}
	if len(paths) != 4 {
		t.Errorf("paths are %v", paths)
	}
}

// Without a device that has room there is no region, and what to do is said.
func TestARegionThatNoDeviceTakes(t *testing.T) {
	f := newFabric(t)
	a := f.node(t, patient)
	r, err := sdktest.HostMemory(t, 4096).Export(true)
	must(t, err)
	r.Capability = sdk.Capability{1}
	for _, d := range []string{"sim0", "sim1"} {
		a.provider.Inject(simverbs.Injection{Call: "ibv_reg_mr", Device: d, Errno: syscall.ENOMEM})
	}
	if _, err := a.Register(rigtest.Context(t), r); !errors.Is(err, sdk.Unavailable) || !strings.Contains(err.Error(), "memlock") {
		t.Errorf("Register: %v", err)
	}
	if n := a.provider.Accounts().MRs; n != 0 {
		t.Errorf("%d registrations", n)
	}
	if _, err := r.File.Stat(); err == nil {
		t.Error("the region's file is open")
	}
	rigtest.Register(t, a.Node, 4096, true) // another one works
}

// Kernels before 6.2 register no read-only memory.
func TestReadOnlyMemoryThatNoDeviceTakes(t *testing.T) {
	f := newFabric(t)
	a := f.node(t, patient)
	r, err := sdktest.HostMemory(t, 4096).Export(false)
	must(t, err)
	r.Capability = sdk.Capability{1}
	for _, d := range []string{"sim0", "sim1"} {
		a.provider.Inject(simverbs.Injection{Call: "ibv_reg_mr", Device: d, Errno: syscall.EFAULT})
	}
	if _, err := a.Register(rigtest.Context(t), r); !errors.Is(err, sdk.Unsupported) || !strings.Contains(err.Error(), "Linux 6.2") {
		t.Errorf("Register: %v", err)
	}
}

// A passive end has no ops that would fail, and no word comes over a path that
// is cut: it asks.
func TestAPassiveEndLearnsThatItsPeerIsGone(t *testing.T) {
	f := newFabric(t)
	settings := `{"stall_timeout_ms": 400, "endpoint": {"send_timeout": 10, "send_retry_count": 2}}`
	a, b := f.node(t, settings), f.node(t, settings)
	x, y := joinMemory(t, a, b, 0, 1)
	must(t, f.CutBoth(simverbs.PortName{Host: a.host, Device: "sim0", Port: 1}, simverbs.PortName{Host: b.host, Device: "sim0", Port: 1}))
	x.Close()
	x.WaitEnded()
	if err := y.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable {
		t.Errorf("ended with %v", err)
	}
}

// A queue pair that has lost its peer sends to a number that is another one's by
// now. That one must not take what comes for its own peer's: its peer's write
// would be taken for a repetition, and be done without being there.
func TestAStraySenderIsNotThePeer(t *testing.T) {
	const size = 4096
	f := newFabric(t)
	settings := `{"endpoint": {"send_timeout": 14}}`
	a, b := f.node(t, settings), f.node(t, settings)
	stray, y := joinMemory(t, a, b, 0, 1)
	here, there, other := rigtest.Register(t, a.Node, size, true), rigtest.Register(t, b.Node, size, true), rigtest.Register(t, b.Node, size, true)
	there.Announce(t, a.Node)
	other.Announce(t, a.Node)
	at := simverbs.PortName{Host: a.host, Device: "sim0", Port: 1}
	to := simverbs.PortName{Host: b.host, Device: "sim0", Port: 1}
	must(t, f.CutBoth(at, to))
	y.Close() // its bye is lost
	y.WaitEnded()
	must(t, f.HealBoth(at, to))
	x, z := joinMemory(t, a, b, 1, 2)
	if z.e.num != y.e.num {
		t.Fatalf("the test needs the same number twice: %d, %d", y.e.num, z.e.num)
	}
	fill(t, here, 1, size)
	must(t, stray.Send(rigtest.Op(sdk.Write, here, 0, other, 0, size)))
	if err := stray.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable {
		t.Errorf("ended with %v", err)
	}
	wantOutcome(t, "a write", do(t, x, rigtest.Op(sdk.Write, here, 0, there, 0, size)), sdk.Done, 0)
	if !holds(t, there, 1, size) {
		t.Error("what was written is not there")
	}
	if holds(t, other, 1, size) {
		t.Error("the stray write was taken")
	}
}

// Nothing but control messages may come over an endpoint for memory.
func TestAFrameOnAnEndpointForMemory(t *testing.T) {
	f := newFabric(t)
	_, _, x, y, _, _ := moving(t, f, 4096)
	s := x.e.d.slots.get(8)
	defer x.e.d.slots.put(s)
	if n, err := x.e.qp.Post([]verbs.SendWR{{ID: 1, Addr: s.addr, LKey: s.lkey, Length: 8, Op: verbs.Send}}); n != 1 {
		t.Fatal(err)
	}
	if err := y.WaitEnded(); err == nil || !strings.Contains(err.Error(), "broke the protocol") {
		t.Errorf("ended with %v", err)
	}
	if received, _, _ := y.Counts(); received != 0 {
		t.Errorf("%d frames were handed over", received)
	}
	x.WaitEnded()
}

// The device lets nobody write to what is registered as read-only, whatever was
// announced of it.
func TestReadOnlyRegionsAreSoForDevices(t *testing.T) {
	const size = 4096
	f := newFabric(t)
	a, b, x, y, here, _ := moving(t, f, size)
	constant := rigtest.Register(t, b.Node, size, false)
	constant.Region.Writable = true // a lie
	constant.Announce(t, a.Node)
	wantOutcome(t, "a write", do(t, x, rigtest.Op(sdk.Write, here, 0, constant, 0, size)), sdk.Unknown, sdk.StaleCapability)
	x.WaitEnded()
	y.WaitEnded()
}

// As many ops are taken as the limits say, and so many bytes.
func TestOpsWithoutAnOutcomeAreBounded(t *testing.T) {
	const size = 1 << 20
	f := newFabric(t)
	a, _, x, _, here, there := moving(t, f, size)
	for _, c := range []struct{ length, ops int }{{size, maxMoveBytes / size}, {1, maxMoves}} {
		must(t, f.HoldCompletions(a.host, "sim0", true))
		before, err := x.Sent(), error(nil)
		for err == nil {
			err = x.Try(rigtest.Op(sdk.Write, here, 0, there, 0, c.length))
		}
		if n := x.Sent() - before; n != c.ops || !errors.Is(err, sdk.Backpressure) {
			t.Errorf("%d ops of %d bytes were taken, want %d: %v", n, c.length, c.ops, err)
		}
		must(t, f.HoldCompletions(a.host, "sim0", false))
		x.WaitDone(x.Sent())
	}
}

// Endpoints for memory have no share of the receive buffers.
func TestSharesAreThoseOfFrames(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, patient), f.node(t, patient)
	for lane := range 8 {
		joinMemory(t, a, b, lane, uint64(lane+1))
	}
	x, y := join(t, a, b, 9)
	if want := opening(256, 1); int(x.e.granted) != want {
		t.Errorf("%d frames are granted, want %d", x.e.granted, want)
	}
	talk(t, x, y, 20)
}

func TestSendsOfAPassiveEnd(t *testing.T) {
	f := newFabric(t)
	_, _, _, y, _, _ := moving(t, f, 4096)
	if err := y.Try([]byte("op")); !errors.Is(err, sdk.InvalidArgument) {
		t.Errorf("Send: %v", err)
	}
}

// What a peer says of its regions is checked.
func TestHostileAttributes(t *testing.T) {
	good := sdk.Attributes{attrAddress: "7f0000001000", attrKeys: "mlx5_0=1a2b mlx5_1=ffffffff"}
	said := func(a sdk.Attributes) *sdk.RemoteRegion { return &sdk.RemoteRegion{Length: 1 << 20, Attributes: a} }
	got, err := read(said(good))
	must(t, err)
	if r := got.(*reached); r.address != 0x7f0000001000 || len(r.keys) != 2 || r.keys["mlx5_0"] != 0x1a2b || r.keys["mlx5_1"] != 1<<32-1 {
		t.Errorf("read %+v", r)
	}
	for what, change := range map[string][2]string{
		"no address":            {attrAddress, ""},
		"address 0":             {attrAddress, "0"},
		"an address that wraps": {attrAddress, "fffffffffff00001"},
		"no number":             {attrAddress, "0x10"},
		"no keys":               {attrKeys, ""},
		"a key of 33 bits":      {attrKeys, "mlx5_0=100000000"},
		"a key of no device":    {attrKeys, "=1"},
		"no key":                {attrKeys, "mlx5_0"},
		"too many keys":         {attrKeys, manyKeys(rail.MaxPorts + 1)},
	} {
		bad := maps.Clone(good)
		bad[change[0]] = change[1]
		if r, err := read(said(bad)); !errors.Is(err, sdk.InvalidArgument) {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
	}
}

func manyKeys(n int) string {
	var keys []string
	for i := range n {
		keys = append(keys, fmt.Sprintf("mlx5_%d=1", i))
	}
	return strings.Join(keys, " ")
}
