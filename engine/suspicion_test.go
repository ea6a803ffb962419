package engine

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/health"
	"github.com/hawser-transport/hawser/engine/internal/outbox"
)

// Guards of who is suspected and blamed, and of what a freeze of this process
// makes void.

// pausedFast pauses the fast path to e's only peer.
func pausedFast(t *testing.T, e *Engine) *association {
	t.Helper()
	x, p := pathOf(t, e, "fast")
	for range 3 {
		time.Sleep(time.Millisecond)
		x.mu.Lock()
		x.blameLocked(p, health.Failure{Kind: health.NotPosted})
		x.mu.Unlock()
	}
	if got := pauses(e); len(got) != 1 || got[0] != "fast/p0" {
		t.Fatalf("paused: %v", got)
	}
	return x
}

// A pause counts from the failure that made it, not from when it is told.
func TestAPauseIsHeededAtOnce(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		x, p := pathOf(t, a, "fast")
		for i := range 3 {
			time.Sleep(time.Millisecond)
			x.mu.Lock()
			x.blameLocked(p, health.Failure{Kind: health.NotPosted})
			if tried := slices.Contains(x.ranked, p); tried != (i < 2) {
				t.Errorf("after %d failures it is tried: %v", i+1, tried)
			}
			x.mu.Unlock()
		}
	})
}

// froze makes the engine believe that it does not run from now on for so long.
func froze(e *Engine, d time.Duration) { e.freeze.Tick(time.Now().Add(d)) }

// An overdue ack says nothing of its path while the control plane is silent: the
// peer may be frozen.
func TestASilentPeersPathIsNotBlamed(t *testing.T) {
	run(t, func(w *world) {
		w.short("a:1")
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		w.network.Freeze("b:1", true)
		w.fast.Cut("a:1", "b:1", "")
		for range 100 {
			_ = w.wait(w.notify(a, "b:1", "x"))
			time.Sleep(100 * time.Millisecond)
		}
		if s := a.Stats(); s.Pauses != 0 || s.Timeouts < 3 {
			t.Errorf("%d pauses after %d timeouts", s.Pauses, s.Timeouts)
		}
		w.network.Freeze("b:1", false)
		w.fast.Heal("a:1", "b:1", "")
		drain(b)
	})
}

// Nor does it if nothing is acked over any other path.
func TestAPeerThatAcksNothingIsNotBlamed(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		w.fast.CutBoth("a:1", "b:1", "")
		w.slow.CutBoth("a:1", "b:1", "")
		for range 100 {
			w.notify(a, "b:1", "x")
			time.Sleep(100 * time.Millisecond)
		}
		if s := a.Stats(); s.Pauses != 0 || s.Timeouts < 3 || s.Probes == 0 {
			t.Errorf("%d pauses after %d timeouts and %d probes", s.Pauses, s.Timeouts, s.Probes)
		}
		w.fast.HealBoth("a:1", "b:1", "")
		w.slow.HealBoth("a:1", "b:1", "")
		drain(b)
	})
}

// suspected suspects the fast path of a frame sent just now, while all else works.
func suspected(t *testing.T, a *Engine) (x *association, fast *path) {
	t.Helper()
	x, fast = pathOf(t, a, "fast")
	_, slow := pathOf(t, a, rpcFallbackName)
	now := time.Now()
	x.mu.Lock()
	x.suspectLocked(fast, outbox.Late{Entries: 1, Since: now.Add(-time.Millisecond)}, now)
	x.mu.Unlock()
	time.Sleep(10 * time.Millisecond)
	x.mu.Lock()
	slow.ackedAt = time.Now()
	x.armLocked(time.Now())
	x.mu.Unlock()
	return x, fast
}

func suspicious(p *path, x *association) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !p.suspicion.sent.IsZero()
}

// A suspicion is an error of its path once all else is known to work, unless
// something sent over the path since has arrived.
func TestWhatArrivedSinceClearsASuspicion(t *testing.T) {
	for _, arrives := range []bool{false, true} {
		run(t, func(w *world) {
			a, b := w.open("a:1"), w.open("b:1")
			defer w.shut(a, b)
			w.connected(a, b)
			x, fast := suspected(t, a)
			if arrives {
				// The error would not outlive a success; what is looked at is
				// the time that the success is known to be of.
				x.mu.Lock()
				fast.provedAt = time.Now()
				x.mu.Unlock()
			}
			time.Sleep(2 * time.Second)
			if a.watch.troubled.Load() == arrives {
				t.Errorf("something arrived: %v, and an error was counted: %v", arrives, !arrives)
			}
		})
	}
}

// Of two copies it is not known which one was acked.
func TestOnlyASingleCopyProvesAPath(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		x, slow := pathOf(t, a, rpcFallbackName)
		w.fast.Cut("a:1", "b:1", "")
		d := w.notify(a, "b:1", "x")
		if err := w.wait(d); err != nil || d.Report().Copies != 2 || d.Report().Transport != rpcFallbackName {
			t.Fatalf("%v, %+v", err, d.Report())
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		if slow.ackedAt.IsZero() || !slow.provedAt.IsZero() {
			t.Errorf("acked at %v, proved at %v", slow.ackedAt, slow.provedAt)
		}
	})
}

func TestSilenceExplainsASuspicion(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		x, fast := suspected(t, a)
		x.fellSilent()
		if suspicious(fast, x) {
			t.Error("the path of a silent peer is suspected")
		}
	})
}

// When a pause ends, what is pending goes out at once, also over that path.
func TestAPausesEndSendsAgain(t *testing.T) {
	run(t, func(w *world) {
		w.configs["a:1"] = Config{Notification: NotificationConfig{AckTimeoutMS: 60000, DeadlineMS: 600000}}
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		pausedFast(t, a)
		start := time.Now()
		w.slow.CutBoth("a:1", "b:1", "")
		if err := w.wait(w.notify(a, "b:1", "x")); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 29*time.Second || took > 30*time.Second+100*time.Millisecond {
			t.Errorf("took %v, want the 30 s of the pause", took)
		}
		w.slow.HealBoth("a:1", "b:1", "")
		w.expect(b, "x")
	})
}

// Ack timeouts that fall due while this process does not run begin anew, and
// whom they would have made suspect is not.
func TestAFreezeVoidsAckTimeouts(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		w.fast.Cut("a:1", "b:1", "")
		x, fast := suspected(t, a)
		w.notify(a, "b:1", "x")
		froze(a, 5*time.Second)
		x.mu.Lock()
		fast.suspicion.judge = time.Now().Add(time.Hour)
		x.mu.Unlock()
		time.Sleep(4900 * time.Millisecond)
		if n := a.Stats().Timeouts; n != 0 {
			t.Errorf("%d timeouts while frozen", n)
		}
		if suspicious(fast, x) {
			t.Error("a suspicion outlived the freeze")
		}
		time.Sleep(2 * time.Second)
		if a.Stats().Timeouts == 0 {
			t.Error("no timeout after it: the fault did not fire")
		}
		w.fast.Heal("a:1", "b:1", "")
		w.expect(b, "x")
	})
}

// What fails after a freeze and began before it is nobody's fault.
func TestAFreezeVoidsPathErrors(t *testing.T) {
	for _, frozen := range []bool{true, false} {
		run(t, func(w *world) {
			a, b := w.open("a:1"), w.open("b:1")
			defer w.shut(a, b)
			w.connected(a, b)
			x, p := pathOf(t, a, "fast")
			if frozen {
				froze(a, 5*time.Second)
			}
			time.Sleep(time.Second)
			x.mu.Lock()
			x.blameLocked(p, health.Failure{Kind: health.EndpointEnded, Began: time.Now().Add(-time.Millisecond), Endpoint: 99})
			x.mu.Unlock()
			if a.watch.troubled.Load() == frozen {
				t.Errorf("frozen %v, and the error counts %v", frozen, !frozen)
			}
		})
	}
}

// A call that gets no answer while this process does not run marks nobody.
func TestAFreezeVoidsSilence(t *testing.T) {
	for _, frozen := range []bool{true, false} {
		run(t, func(w *world) {
			w.short("a:1")
			a, b := w.open("a:1"), w.open("b:1")
			defer w.shut(a, b)
			w.connected(a, b)
			w.network.Freeze("b:1", true)
			if frozen {
				froze(a, 5*time.Second)
			}
			if _, err := theOnly(t, a).client.Hello(context.Background(), a.helloFor()); !silent(err) {
				t.Fatalf("hello: %v", err)
			}
			if marked := a.watch.marked.Load(); marked == frozen {
				t.Errorf("frozen %v, and marked %v", frozen, marked)
			}
			w.network.Freeze("b:1", false)
		})
	}
}

// The detector's word reaches what is known of peers: a mark made in a freeze
// is taken back when it has ended.
func TestAFreezeReachesTheMarks(t *testing.T) {
	run(t, func(w *world) {
		w.short("a:1")
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		w.network.Freeze("b:1", true)
		_, _ = theOnly(t, a).client.Hello(context.Background(), a.helloFor())
		synctest.Wait()
		if a.watch.allow("b:1", time.Now()) == nil {
			t.Fatal("not marked")
		}
		froze(a, -3*time.Second) // the next tick comes late
		time.Sleep(150 * time.Millisecond)
		if err := a.watch.allow("b:1", time.Now()); err != nil {
			t.Errorf("a mark of the freeze stays: %v", err)
		}
		w.network.Freeze("b:1", false)
	})
}

// marked marks e's only peer, which is frozen, by a call that gets no answer.
func marked(t *testing.T, w *world, e *Engine) *association {
	t.Helper()
	x := theOnly(t, e)
	w.network.Freeze(x.address, true)
	if _, err := x.client.Hello(context.Background(), e.helloFor()); !silent(err) {
		t.Fatalf("hello: %v", err)
	}
	synctest.Wait()
	if e.Stats().Marks != 1 {
		t.Fatal("the peer is not marked")
	}
	return x
}

func TestAMarkedPeerIsNotCalled(t *testing.T) {
	run(t, func(w *world) {
		w.short("a:1")
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		x := marked(t, w, a)
		held, start := w.network.Faults().Held, time.Now()
		if _, err := x.client.Hello(context.Background(), a.helloFor()); !errors.Is(err, errMarked) || time.Since(start) != 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if n := w.network.Faults().Held - held; n != 0 {
			t.Errorf("%d calls were made", n)
		}
		w.network.Freeze("b:1", false)
	})
}

// Nor is a path to it connected: that would only fail, and be blamed.
func TestAMarkedPeersPathsAreNotConnected(t *testing.T) {
	run(t, func(w *world) {
		w.short("a:1")
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		marked(t, w, a)
		if w.fast.End("a:1", "b:1", "") == 0 {
			t.Fatal("nothing ended")
		}
		w.within(w.notify(a, "b:1", "x"), 10*time.Millisecond)
		time.Sleep(3 * time.Second)
		if n := a.Stats().ConnectFailures; n != 0 {
			t.Errorf("%d attempts failed", n)
		}
		w.network.Freeze("b:1", false)
		w.expect(b, "x")
	})
}

// A peer that says no is there.
func TestARefusalIsAnAnswer(t *testing.T) {
	run(t, func(w *world) {
		w.short("a:1")
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		x := marked(t, w, a)
		w.network.Freeze("b:1", false)
		req := a.helloFor()
		req.Proto = 0 // it is settled otherwise
		began := time.Now()
		_, err := x.client.Client.Hello(context.Background(), req)
		if !errors.Is(err, InvalidArgument) {
			t.Fatalf("hello: %v", err)
		}
		x.client.w.called(x.address, began, x.client.w.outcome(began, time.Second, false, err))
		if err := a.watch.allow("b:1", time.Now()); err != nil {
			t.Errorf("still marked: %v", err)
		}
	})
}

// A call whose caller gives it no time says nothing of the peer.
func TestACallWithoutTimeMarksNobody(t *testing.T) {
	run(t, func(w *world) {
		w.short("a:1")
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		w.network.Freeze("b:1", true)
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if _, err := theOnly(t, a).client.Hello(ctx, a.helloFor()); !silent(err) {
			t.Fatalf("hello: %v", err)
		}
		if a.watch.marked.Load() {
			t.Error("the peer is marked")
		}
		w.network.Freeze("b:1", false)
	})
}

// Of a peer that is back every path may be tried at once.
func TestAReturnEndsEveryWait(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		x, p := pathOf(t, a, "fast")
		x.mu.Lock()
		p.failures, p.retryAt = 9, time.Now().Add(time.Hour)
		x.mu.Unlock()
		x.cameBack()
		x.mu.Lock()
		defer x.mu.Unlock()
		if p.failures != 0 || p.retryAt.After(time.Now()) {
			t.Errorf("%d failures, to be tried at %v", p.failures, p.retryAt)
		}
	})
}
