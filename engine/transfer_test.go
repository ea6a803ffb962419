//go:build linux

package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// moving runs f in a world whose transports move memory.
func moving(t *testing.T, f func(*world)) {
	t.Helper()
	run(t, func(w *world) {
		w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast", Moves: true})
		w.slow = sdktest.NewFabric(sdktest.FabricOptions{Name: rpcFallbackName, Moves: true})
		f(w)
	})
}

// region allocates host memory that is closed in the end.
func (w *world) region(e *Engine, size int, opts RegionOptions) *Region {
	w.t.Helper()
	r, err := e.AllocateHost(size, opts)
	if err != nil {
		w.t.Fatalf("allocate at %s: %v", e.address, err)
	}
	w.regions = append(w.regions, r)
	return r
}

// giveUp closes what region has made; the engines have been closed.
func (w *world) giveUp() {
	for _, r := range w.regions {
		if err := r.Close(context.Background()); err != nil {
			w.t.Error(err)
		}
	}
}

func (w *world) segment(e *Engine, peer string) *Segment {
	w.t.Helper()
	g, err := e.OpenSegment(context.Background(), peer)
	if err != nil {
		w.t.Fatalf("open segment %s: %v", peer, err)
	}
	return g
}

func (w *world) submit(e *Engine, opts SubmitOptions, ops ...Op) *Transfer {
	w.t.Helper()
	t, err := e.Submit(context.Background(), ops, opts)
	if err != nil {
		w.t.Fatalf("submit: %v", err)
	}
	return t
}

// done waits for a transfer, which must end.
func (w *world) done(t *Transfer) error {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Hour)
	defer cancel()
	err := t.Wait(ctx)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		w.t.Fatalf("the transfer does not end: %+v", t.Progress())
	}
	return err
}

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = seed + byte(i*7)
	}
}

func filled(n int, seed byte) []byte {
	b := make([]byte, n)
	fill(b, seed)
	return b
}

func TestTransfersMoveWhatTheySay(t *testing.T) {
	moving(t, func(w *world) {
		c := w.configs["a:1"]
		c.Transfer.ChunkBytes = 4096
		w.configs["a:1"] = c
		a, b := w.open("a:1"), w.open("b:1")
		defer w.giveUp()
		defer w.shut(a, b)
		const size = 10*4096 + 5
		theirs, mine := w.region(b, size+100, RegionOptions{}), w.region(a, 2*size, RegionOptions{})
		g := w.segment(a, "b:1")
		defer g.Close()
		fill(mine.Bytes()[:size], 1)
		note := &Notification{Name: "written", Payload: []byte("payload of written")}
		x := w.submit(a, SubmitOptions{Notification: note}, Op{
			Kind: Write, Local: mine, Segment: g, Address: theirs.Address() + 100, Length: size,
		})
		r, err := w.receive(b, time.Minute)
		if err != nil || r.Name != "written" {
			t.Fatalf("%v, %v", r, err)
		}
		if !bytes.Equal(theirs.Bytes()[100:], filled(size, 1)) {
			t.Error("the notification came before the data")
		}
		if err := w.done(x); err != nil {
			t.Fatal(err)
		}
		if p := x.Progress(); p.Bytes != size || p.Total != size || p.Done != 1 || p.Failed != 0 {
			t.Errorf("%+v", p)
		}
		x = w.submit(a, SubmitOptions{}, Op{
			Kind: Read, Local: mine, LocalOffset: size, Segment: g, Address: theirs.Address() + 100,
			Capability: theirs.Capability(), Length: size,
		})
		if err := w.done(x); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(mine.Bytes()[size:], filled(size, 1)) {
			t.Error("other bytes were read")
		}
		s := a.Stats()
		if s.OpsDone != 2 || s.BytesMoved != 2*size || s.Transfers != 2 || s.PendingTransfers != 0 || s.Mappings == 0 {
			t.Errorf("%+v", s)
		}
		checkSize(t, b)
		if n := a.stats.chunks[chunkPosted].Load(); n != 22 {
			t.Errorf("%d chunks, want 22", n)
		}
	})
}

// keepMoving is for tests that only want some traffic.
func (w *world) write(a *Engine, mine, theirs *Region, g *Segment, n int) error {
	return w.done(w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: uint64(n)}))
}

// pair opens two engines, with a region of size bytes each, and a's segment of
// b. What it returns is to be called in the end.
func (w *world) movers(size int) (a, b *Engine, mine, theirs *Region, g *Segment, end func()) {
	a, b = w.open("a:1"), w.open("b:1")
	mine, theirs = w.region(a, size, RegionOptions{}), w.region(b, size, RegionOptions{})
	g = w.segment(a, "b:1")
	return a, b, mine, theirs, g, func() {
		_ = g.Close()
		w.shut(a, b)
		w.giveUp()
	}
}

func TestArgumentsOfSubmit(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		closed := w.segment(a, "b:1")
		_ = closed.Close()
		readOnly := w.region(a, 100, RegionOptions{ReadOnly: true})
		gone := w.region(a, 100, RegionOptions{})
		if err := gone.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		good := Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100}
		with := func(f func(*Op)) Op { o := good; f(&o); return o }
		for _, tt := range []struct {
			op   Op
			code Code
		}{
			{with(func(o *Op) { o.Kind = sdk.Flush }), InvalidArgument},
			{with(func(o *Op) { o.Local = nil }), InvalidArgument},
			{with(func(o *Op) { o.Local = theirs }), InvalidArgument},
			{with(func(o *Op) { o.Segment = nil }), InvalidArgument},
			{with(func(o *Op) { o.Length = 0 }), InvalidArgument},
			{with(func(o *Op) { o.LocalOffset = 1 }), InvalidArgument},
			{with(func(o *Op) { o.LocalOffset = ^uint64(0) }), InvalidArgument},
			{with(func(o *Op) { o.Address, o.Length = ^uint64(0), 2 }), InvalidArgument},
			{with(func(o *Op) { o.Kind, o.Local = Read, readOnly }), Refused},
			{with(func(o *Op) { o.Local = gone }), Closed},
			{with(func(o *Op) { o.Segment = closed }), Closed},
		} {
			if _, err := a.Submit(context.Background(), []Op{good, tt.op}, SubmitOptions{}); !errors.Is(err, tt.code) {
				t.Errorf("%+v: %v, want %v", tt.op, err, tt.code)
			}
		}
		if _, err := a.Submit(context.Background(), nil, SubmitOptions{}); !errors.Is(err, InvalidArgument) {
			t.Errorf("no ops: %v", err)
		}
		large := &Notification{Name: "n", Payload: make([]byte, a.cfg.Notification.MaxPayloadBytes)}
		for _, opts := range []SubmitOptions{{Notification: large}, {FailureNotification: large}} {
			if _, err := a.Submit(context.Background(), []Op{good}, opts); !errors.Is(err, TooLarge) {
				t.Errorf("a notification that is too large: %v", err)
			}
		}
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := a.Submit(ended, []Op{good}, SubmitOptions{}); !errors.Is(err, NotSent) || !errors.Is(err, context.Canceled) {
			t.Errorf("a context that has ended: %v", err)
		}
		if n := a.memory.leases.Held(mine); n != 0 {
			t.Errorf("%d leases are held", n)
		}
		if s := b.Stats(); s.BytesMoved != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// Scenario 45, and 44: what does not fit is refused after one look at the peer,
// per op, and the others go on.
func TestRangesAndPermissions(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		fixed := w.region(b, 100, RegionOptions{ReadOnly: true})
		hidden := w.region(b, 100, RegionOptions{Private: true})
		fill(fixed.Bytes(), 9)
		synctest.Wait() // a is told of the new regions
		fetched := a.stats.descriptors[descFetched].Load()
		x := w.submit(a, SubmitOptions{},
			Op{Kind: Write, Local: mine, Segment: g, Address: fixed.Address(), Length: 100},
			Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address() + 1, Length: 100},
			Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address() - 1, Length: 2},
			Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Capability: fixed.Capability(), Length: 1},
			Op{Kind: Read, Local: mine, Segment: g, Address: fixed.Address(), Length: 100},
			Op{Kind: Read, Local: mine, Segment: g, Address: hidden.Address(), Length: 100},
		)
		err := w.done(x)
		var te *TransferError
		if !errors.As(err, &te) || te.Failed != 5 || te.Ops != 6 {
			t.Fatalf("%v", err)
		}
		for i, want := range []Code{Refused, StaleCapability, StaleCapability, StaleCapability, 0, StaleCapability} {
			got := x.Results()[i]
			if want == 0 && got != nil || want != 0 && (!errors.Is(got, want) || !errors.Is(got, NotSent)) {
				t.Errorf("op %d: %v, want %v", i, got, want)
			}
		}
		if !bytes.Equal(mine.Bytes(), filled(100, 9)) {
			t.Error("the good read did not read")
		}
		if n := a.stats.descriptors[descFetched].Load() + a.stats.descriptors[descUnchanged].Load() - fetched; n > 1 {
			t.Errorf("%d questions for one transfer", n)
		}
		_ = b
	})
}

// Ten thousand rounds are in the scenarios; these are the same in fake time.
func TestNotificationComesAfterTheData(t *testing.T) {
	for _, flush := range []bool{false, true} {
		t.Run(fmt.Sprint("flush=", flush), func(t *testing.T) {
			run(t, func(w *world) {
				w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast", Moves: true, Move: sdk.MoveLimits{NeedsFlush: flush}})
				c := w.configs["a:1"]
				c.Transfer.ChunkBytes = 4096
				w.configs["a:1"] = c
				a, b, mine, theirs, g, end := w.movers(3 * 4096)
				defer end()
				w.fast.Delay("a:1", "b:1", "", time.Millisecond)
				for i := range 100 {
					fill(mine.Bytes(), byte(i))
					x := w.submit(a, SubmitOptions{Notification: &Notification{Name: "n"}},
						Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 4096 + 1},
						Op{Kind: Write, Local: mine, LocalOffset: 4097, Segment: g, Address: theirs.Address() + 4097, Length: 2*4096 - 1})
					if _, err := w.receive(b, time.Minute); err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(theirs.Bytes(), filled(3*4096, byte(i))) {
						t.Fatalf("round %d: the notification came before the data", i)
					}
					if err := w.done(x); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
			})
		})
	}
}

// A region that another one takes the place of in the middle of an op: the op
// fails, and none of its bytes are in the other one.
func TestAnOpIsOfOneRegion(t *testing.T) {
	moving(t, func(w *world) {
		c := w.configs["a:1"]
		c.Transfer.ChunkBytes = 4096
		w.configs["a:1"] = c
		w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast", Moves: true, Move: sdk.MoveLimits{Inflight: 1}})
		const size = 16 * 4096
		a, b, mine, _, g, end := w.movers(size)
		defer end()
		old := w.regionAt(b, size, 1<<40)
		if err := g.Refresh(context.Background()); err != nil {
			t.Fatal(err)
		}
		w.fast.Delay("a:1", "b:1", "", time.Millisecond)
		fill(mine.Bytes(), 1)
		x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: 1 << 40, Length: size})
		time.Sleep(5 * time.Millisecond)
		if p := x.Progress(); p.Bytes == 0 || p.Bytes == size {
			t.Fatalf("%+v", p)
		}
		b.memory.forget(a.incarnation)
		if err := old.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		fresh := w.regionAt(b, size, 1<<40)
		if err := w.done(x); !errors.Is(err, StaleCapability) {
			t.Errorf("%v", err)
		}
		if !bytes.Equal(fresh.Bytes(), make([]byte, size)) {
			t.Error("the rest went to another region")
		}
	})
}

// What fails everywhere fails in the end, with every way that was tried.
func TestAnOpHasABudget(t *testing.T) {
	moving(t, func(w *world) {
		c := w.configs["a:1"]
		c.Transfer.OpBudget = 3
		w.configs["a:1"] = c
		a, _, mine, theirs, g, end := w.movers(100)
		defer end()
		w.fast.HoldWrites("b:1", true)
		w.slow.HoldWrites("b:1", true)
		began := time.Now()
		err := w.write(a, mine, theirs, g, 100)
		var oe *OpError
		if !errors.As(err, &oe) || oe.Code != Unavailable || oe.Tried != 3 || len(oe.Attempts) < 2 {
			t.Fatalf("%v", err)
		}
		if took := time.Since(began); took < 3*stalledAfter || took > 4*stalledAfter {
			t.Errorf("it took %v", took)
		}
		w.fast.HoldWrites("b:1", false)
		w.slow.HoldWrites("b:1", false)
		time.Sleep(time.Minute)
		if !bytes.Equal(theirs.Bytes(), make([]byte, 100)) {
			t.Error("written after the end")
		}
	})
}

// The notification of a transfer is for the life that has the data.
func TestATransfersNotificationGoesToOneLife(t *testing.T) {
	moving(t, func(w *world) {
		w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast", Moves: true, NoFrames: true})
		a, b := w.open("a:1"), w.open("b:1")
		mine, theirs := w.region(a, 100, RegionOptions{}), w.region(b, 100, RegionOptions{})
		g := w.segment(a, "b:1")
		if err := w.write(a, mine, theirs, g, 1); err != nil {
			t.Fatal(err)
		}
		w.slow.End("a:1", "b:1", "")
		w.slow.CutBoth("a:1", "b:1", "")
		x := w.submit(a, SubmitOptions{Notification: &Notification{Name: "n"}}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
		time.Sleep(time.Second)
		if p := x.Progress(); p.Done != 1 || isClosed(x.Done()) {
			t.Fatalf("%+v", p)
		}
		w.vanish(b)
		next := w.open("b:1")
		w.slow.HealBoth("a:1", "b:1", "")
		if err := w.write(a, mine, w.region(next, 100, RegionOptions{}), g, 1); err != nil {
			t.Error(err)
		}
		if err := w.done(x); err == nil || x.Results()[0] != nil {
			t.Errorf("%v, %v", err, x.Results())
		}
		if r, err := w.receive(next, time.Minute); err == nil {
			t.Errorf("another life got %q", r.Name)
		}
		_ = g.Close()
		w.shut(a, next)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = b.Close(ctx)
		w.giveUp()
	})
}
