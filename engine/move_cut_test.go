//go:build linux

package engine

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// dying is an endpoint as a plugin that has died leaves it, until the engine is
// told of its end.
type dying struct {
	sdk.Endpoint
	asked *atomic.Int64
}

func (d dying) Send([]sdk.Frame, bool) (int, error) {
	d.asked.Add(1)
	return 0, sdk.Errorf(sdk.Closed, "the endpoint has ended")
}

// A plugin's death ends more endpoints at once than an op has in its budget: the
// op goes another way all the same.
func TestADeadPluginsEndpointsAreNoBudget(t *testing.T) {
	moving(t, func(w *world) {
		w.fast = sdktest.NewFabric(sdktest.FabricOptions{
			Name: "fast", Moves: true, Paths: []string{"p0", "p1"}, Move: sdk.MoveLimits{Parallel: 3, Inflight: 2},
		})
		c := w.configs["a:1"]
		c.Transfer.OpBudget, c.Transfer.ChunkBytes = 1, 4096
		w.configs["a:1"] = c
		const size = 64 * 4096
		a, b, mine, theirs, g, end := w.movers(size)
		defer end()
		w.fast.Delay("a:1", "b:1", "", time.Millisecond)
		if err := w.write(a, mine, theirs, g, size); err != nil { // over several lanes
			t.Fatal(err)
		}
		time.Sleep(time.Second) // all that were begun are connected
		m := &a.memory.source(b.incarnation).mover
		var died int
		var asked atomic.Int64
		m.mu.Lock()
		for ch := range m.channelsLocked() {
			if ch.l.transport == "fast" {
				died++
				ch.se = dying{ch.se, &asked}
			}
		}
		m.mu.Unlock()
		fill(mine.Bytes(), 7)
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Error(err)
		}
		if !bytes.Equal(mine.Bytes()[:100], theirs.Bytes()[:100]) {
			t.Error("other bytes arrived")
		}
		if n := int(asked.Load()); n != died || n <= c.Transfer.OpBudget {
			t.Errorf("%d of %d endpoints took nothing", n, died)
		}
	})
}

// The one transport that moves memory has no path for a while: an op waits for
// one until its time is over, and then names what it waited for.
func TestAnOpWaitsForAPath(t *testing.T) {
	for _, lost := range []string{"a:1", "b:1"} {
		moving(t, func(w *world) {
			w.slow = sdktest.NewFabric(sdktest.FabricOptions{Name: rpcFallbackName})
			a, b, mine, theirs, g, end := w.movers(100)
			defer end()
			w.connected(a, b)
			fill(mine.Bytes(), 7)
			w.fast.Lose(lost, "p0")
			time.Sleep(time.Second) // both know
			op := Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100}
			ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
			defer cancel()
			x, err := a.Submit(ctx, []Op{op}, SubmitOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var oe *OpError
			if err := w.done(x); !errors.As(err, &oe) || oe.Code != NotSent || !errors.Is(oe.Cause, DeadlineExceeded) ||
				len(oe.Attempts) != 1 || oe.Attempts[0].Transport != "fast" {
				t.Errorf("%s: %v", lost, err)
			}
			x = w.submit(a, SubmitOptions{}, op)
			time.Sleep(2 * registeringFor)
			if isClosed(x.Done()) {
				t.Fatalf("%s: ended without a path: %v", lost, x.Wait(t.Context()))
			}
			w.fast.Regain(lost, "p0")
			if err := w.done(x); err != nil || !bytes.Equal(mine.Bytes(), theirs.Bytes()) {
				t.Errorf("%s: %v", lost, err)
			}
		})
	}
}

// An op whose time is over tells what was wrong with the ways that it has waited
// for.
func TestAnOpTellsWhatItWaitedFor(t *testing.T) {
	moving(t, func(w *world) {
		w.slow = sdktest.NewFabric(sdktest.FabricOptions{Name: rpcFallbackName})
		a, _, mine, theirs, g, end := w.movers(100)
		defer end()
		w.fast.CutBoth("a:1", "b:1", "p0")
		err := w.write(a, mine, theirs, g, 100)
		var oe *OpError
		if !errors.As(err, &oe) || !errors.Is(oe.Cause, DeadlineExceeded) || len(oe.Attempts) != 1 || !strings.Contains(oe.Attempts[0].Reason, "connect") {
			t.Errorf("%v", err)
		}
	})
}
