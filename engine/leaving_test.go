package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/health"
	"github.com/hawser-transport/hawser/sdk"
)

// Guards of how things end: sessions of the silent, and Close.

// A sender's session ends after twice the longest deadline of silence, and not
// before.
func TestASilentSendersSessionEnds(t *testing.T) {
	run(t, func(w *world) {
		a := w.open("a:1")
		defer w.shut(a)
		if _, err := (&answers{a, closedChan}).Hello(context.Background(), greeting(1, 7, 0)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(silence - time.Minute)
		if n := a.Stats().Sessions; n != 1 {
			t.Fatalf("%d sessions before the time is over", n)
		}
		time.Sleep(2 * time.Minute)
		if n := a.Stats().Sessions; n != 0 {
			t.Errorf("%d sessions after it", n)
		}
	})
}

func TestCloseDrains(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(b)
		w.network.Delay("a:1", "b:1", 500*time.Millisecond)
		d := w.notify(a, "b:1", "x")
		w.shut(a)
		if d.Ended() != Acknowledged {
			t.Errorf("ended as %v: %v", d.Ended(), d.Err())
		}
		w.expect(b, "x")
	})
}

func TestAGoodbyeHasADeadline(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		w.connected(a, b)
		w.network.Freeze("b:1", true)
		start := time.Now()
		w.shut(a)
		if took := time.Since(start); took < goodbyeTimeout || took > goodbyeTimeout+100*time.Millisecond {
			t.Errorf("Close took %v", took)
		}
		w.network.Freeze("b:1", false)
		w.shut(b)
	})
}

// A host that refuses connections is no silent one: the peer's process is gone,
// whoever finds out.
func TestARefusingHostsPeerIsDead(t *testing.T) {
	for name, find := range map[string]func(w *world, a *Engine, x *association){
		"hello": func(w *world, a *Engine, x *association) {
			w.network.Refuse("b:1", true)
			x.mu.Lock()
			x.reopenLocked()
			x.mu.Unlock()
			w.notify(a, "b:1", "x")
			time.Sleep(time.Second)
		},
		"bootstrap": func(w *world, a *Engine, x *association) {
			w.network.Refuse("b:1", true)
			w.slow.End("a:1", "b:1", "") // it is kept connected
			time.Sleep(10 * time.Second)
		},
		"probe": func(w *world, a *Engine, x *association) {
			w.network.Freeze("b:1", true)
			_, _ = x.client.Hello(context.Background(), a.helloFor())
			w.network.Freeze("b:1", false)
			w.network.Refuse("b:1", true)
			time.Sleep(3 * time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *world) {
				w.short("a:1")
				a, b := w.open("a:1"), w.open("b:1")
				defer w.shut(a, b)
				w.connected(a, b)
				x := theOnly(t, a)
				find(w, a, x)
				x.mu.Lock()
				dead := x.dead
				x.mu.Unlock()
				if !errors.Is(dead, Unavailable) {
					t.Errorf("the association goes on: %v", dead)
				}
				w.network.Refuse("b:1", false)
				w.within(w.notify(a, "b:1", "after"), 10*time.Second)
				drain(b)
			})
		})
	}
}

// What is known of a dead peer's paths is of no use.
func TestADeadPeersPathsAreForgotten(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		x := pausedFast(t, a)
		x.die(sdk.Errorf(sdk.Unavailable, "a test's wish"))
		if a.watch.troubled.Load() {
			t.Error("its paths are remembered")
		}
	})
}

func TestNothingNewWhileClosing(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(b)
		w.connected(a, b)
		w.fast.CutBoth("a:1", "b:1", "")
		w.slow.CutBoth("a:1", "b:1", "")
		d := w.notify(a, "b:1", "x")
		closed := make(chan struct{})
		go func() {
			w.shut(a)
			close(closed)
		}()
		time.Sleep(time.Second)
		if _, err := a.Notify(context.Background(), "b:1", Notification{Name: "y"}); !errors.Is(err, Closed) {
			t.Errorf("a new one: %v", err)
		}
		w.fast.HealBoth("a:1", "b:1", "")
		w.slow.HealBoth("a:1", "b:1", "")
		<-closed
		if d.Ended() != Acknowledged {
			t.Errorf("the old one: %v", d.Err())
		}
		w.expect(b, "x")
	})
}

// Whatever is still under way when an engine is closed marks nobody.
func TestNothingIsKnownAfterClose(t *testing.T) {
	run(t, func(w *world) {
		a := w.open("a:1")
		w.shut(a)
		a.watch.ask("b:1")
		a.watch.called("b:1", time.Now().Add(-time.Second), health.Silent)
		if a.watch.marked.Load() {
			t.Error("an address is known")
		}
	})
}
