//go:build linux

package engine

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// losing is a transport that loses one outcome: that of the second op of its
// first endpoint.
type losing struct {
	*undying
	lost atomic.Bool
}

func (l *losing) Connect(ctx context.Context, t sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	return l.undying.Connect(ctx, t, x, withholding{h, l})
}

type withholding struct {
	sdk.Handler
	l *losing
}

func (w withholding) Completed(cs []sdk.Completion) {
	w.Handler.Completed(slices.DeleteFunc(cs, func(c sdk.Completion) bool {
		return c.ID == 2 && w.l.lost.CompareAndSwap(false, true)
	}))
}

// An op without an outcome is noticed although others have theirs, which were
// posted after it.
func TestOneOpIsStuckAmongOthers(t *testing.T) {
	moving(t, func(w *world) {
		l := &losing{}
		w.only("a:1", func(from sdk.Transport) sdk.Transport {
			l.undying = newUndying(from)
			close(l.letGo)
			return l
		})
		a, _, mine, theirs, g, end := w.movers(100)
		defer end()
		if err := w.write(a, mine, theirs, g, 1); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
		for !isClosed(x.Done()) {
			if err := w.write(a, mine, theirs, g, 1); err != nil {
				t.Error(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if err := w.done(x); err != nil || !l.lost.Load() || a.stats.moves[moveStalled].Load() != 1 {
			t.Errorf("%v; an outcome was lost: %v", err, l.lost.Load())
		}
		if took := time.Since(began); took > stalledAfter+time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// A path that moves a large op for longer than others may be silent, and one
// that moves several, one after the other, is not stalled.
func TestSlowOpsAreNotStalled(t *testing.T) {
	for name, tt := range map[string]struct {
		size, ops int
		each      time.Duration
	}{
		"large": {2 * slowest, 1, stalledAfter + time.Second}, "many": {100, 4, stalledAfter - time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			moving(t, func(w *world) {
				w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast", Moves: true, Move: sdk.MoveLimits{
					MaxOp: tt.size, InflightBytes: tt.size * tt.ops,
				}})
				a, _, mine, theirs, g, end := w.movers(tt.size)
				defer end()
				if err := w.write(a, mine, theirs, g, 1); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				var xs []*Transfer
				for i := range tt.ops {
					w.fast.Delay("a:1", "b:1", "", time.Duration(i+1)*tt.each)
					xs = append(xs, w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: uint64(tt.size)}))
					synctest.Wait() // it is posted
				}
				for _, x := range xs {
					if err := w.done(x); err != nil {
						t.Error(err)
					}
				}
				if took := time.Since(began); took < time.Duration(tt.ops)*tt.each || a.stats.moves[moveStalled].Load() != 0 {
					t.Errorf("took %v, stalled %d times", took, a.stats.moves[moveStalled].Load())
				}
			})
		})
	}
}
