//go:build linux

package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// Scenario 42.
func TestOneOfTwoTargetsIsGone(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		c := w.open("c:1")
		dead := w.segment(a, "c:1")
		defer dead.Close()
		w.shut(c)
		time.Sleep(time.Second)
		x := w.submit(a, SubmitOptions{Notification: &Notification{Name: "n", Payload: []byte("payload of n")}, FailureNotification: &Notification{Name: "failed"}},
			Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100},
			Op{Kind: Write, Local: mine, Segment: dead, Address: theirs.Address(), Length: 100})
		err := w.done(x)
		var oe *OpError
		if !errors.As(err, &oe) || oe.Index != 1 || oe.Peer != "c:1" || oe.Code != NotSent {
			t.Errorf("%v", err)
		}
		if x.Results()[0] != nil {
			t.Errorf("%v", x.Results()[0])
		}
		w.expect(b, "n")
	})
}

// A notification of a failure goes to the peer whose op failed.
func TestAFailureIsTold(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		x := w.submit(a, SubmitOptions{Notification: &Notification{Name: "n"}, FailureNotification: &Notification{Name: "failed", Payload: []byte("payload of failed")}},
			Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100},
			Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address() + 1, Length: 100})
		if err := w.done(x); !errors.Is(err, StaleCapability) {
			t.Errorf("%v", err)
		}
		w.expect(b, "failed")
	})
}

func TestNoTransportMovesSuchMemory(t *testing.T) {
	run(t, func(w *world) {
		w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast", Moves: true})
		a, b := w.open("a:1"), w.open("b:1") // the other one does not move
		defer w.giveUp()
		defer w.shut(a, b)
		mine, theirs := w.region(a, 100, RegionOptions{}), w.region(b, 100, RegionOptions{})
		g := w.segment(a, "b:1")
		defer g.Close()
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Fatal(err)
		}
		mine.region.Kind = sdk.DeviceMemory
		if err := w.write(a, mine, theirs, g, 100); !errors.Is(err, Unsupported) {
			t.Errorf("%v", err)
		}
		if _, err := a.RegisterHandle(ExportedMemory{HandleKind: sdk.IPCHandle, Handle: make([]byte, 64), Address: 1 << 30, Length: 1, Allocation: 1}, RegionOptions{}); !errors.Is(err, Unsupported) {
			t.Errorf("%v", err)
		}
		if n := a.Stats().Regions; n != 1 {
			t.Errorf("%d regions", n)
		}
	})
}

func TestCancelAndProgress(t *testing.T) {
	moving(t, func(w *world) {
		c := w.configs["a:1"]
		c.Transfer.ChunkBytes = 4096
		w.configs["a:1"] = c
		w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast", Moves: true, Move: sdk.MoveLimits{Inflight: 4}})
		const size = 400 * 4096
		a, _, mine, theirs, g, end := w.movers(size)
		defer end()
		w.fast.Delay("a:1", "b:1", "", 10*time.Millisecond)
		x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: size})
		var last uint64
		for range 20 {
			time.Sleep(15 * time.Millisecond)
			p := x.Progress()
			if p.Bytes < last || p.Bytes >= size || p.Done != 0 {
				t.Fatalf("%+v after %d", p, last)
			}
			last = p.Bytes
		}
		if last == 0 {
			t.Error("no progress")
		}
		x.Cancel()
		began := time.Now()
		if err := w.done(x); !errors.Is(err, context.Canceled) || !errors.Is(err, Closed) {
			t.Errorf("%v", err)
		}
		if took := time.Since(began); took > settleOps {
			t.Errorf("it took %v", took)
		}
		moved := w.fast.Counters().Moved
		time.Sleep(time.Minute)
		if n := w.fast.Counters().Moved - moved; n != 0 {
			t.Errorf("%d ops after the end", n)
		}
		if n := a.memory.leases.Held(mine); n != 0 {
			t.Errorf("%d leases are held", n)
		}
	})
}
