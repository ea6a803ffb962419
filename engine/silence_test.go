package engine

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// short makes a node give up calls after two seconds.
func (w *world) short(nodes ...string) {
	for _, n := range nodes {
		c := w.configs[n]
		c.RPC.RequestTimeoutMS, c.RPC.BootstrapTimeoutMS, c.RPC.ConnectTimeoutMS = 2000, 2000, 2000
		w.configs[n] = c
	}
}

// freezeNode holds, or lets go on, everything of a node that others see.
func (w *world) freezeNode(node string, on bool) {
	w.network.Freeze(node, on)
	for _, f := range []*sdktest.Fabric{w.fast, w.slow} {
		if on {
			f.Cut(node, "", "")
			f.Cut("", node, "")
		} else {
			f.Heal(node, "", "")
			f.Heal("", node, "")
		}
	}
}

// unsent checks that a delivery ended as not sent for want of an answer, and
// how long that took.
func (w *world) unsent(d *Delivery, atLeast, atMost time.Duration) {
	w.t.Helper()
	start := time.Now()
	err := w.wait(d)
	took := time.Since(start)
	if !errors.Is(err, NotSent) || !errors.Is(err, Unavailable) {
		w.t.Errorf("ended with %v, want NotSent and Unavailable", err)
	}
	if took < atLeast || took > atMost {
		w.t.Errorf("took %v, want %v to %v", took, atLeast, atMost)
	}
}

// Scenario 26: a frozen peer costs one timeout, once, however many wait for it;
// it is usable a second after it is back.
func TestAFrozenPeerCostsOneTimeout(t *testing.T) {
	run(t, func(w *world) {
		w.short("a:1")
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.freezeNode("b:1", true)
		var callers sync.WaitGroup
		for range 16 {
			callers.Go(func() { w.unsent(w.notify(a, "b:1", "x"), 2*time.Second, 2010*time.Millisecond) })
		}
		callers.Wait()
		if n := w.network.Faults().Held; n != 1 {
			t.Errorf("%d calls were made, want 1", n)
		}
		for range 120 {
			w.unsent(w.notify(a, "b:1", "x"), 0, 10*time.Millisecond)
			time.Sleep(time.Second)
		}
		if s := a.Stats(); s.Marks != 1 || s.Probes < 30 {
			t.Errorf("%d marks and %d probes", s.Marks, s.Probes)
		}
		w.freezeNode("b:1", false)
		back := time.Now()
		for {
			if err := w.wait(w.notify(a, "b:1", "back")); err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(back); took > 1500*time.Millisecond {
			t.Errorf("usable %v after it was back", took)
		}
		w.expect(b, "back")
	})
}

// Scenario 26, of a peer that is known: everything that needs the control plane
// fails at once, and the peer is called again by the prober only.
func TestAKnownPeerThatFreezes(t *testing.T) {
	run(t, func(w *world) {
		w.short("a:1")
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		w.network.Freeze("b:1", true)
		w.fast.CutBoth("a:1", "b:1", "")
		w.slow.CutBoth("a:1", "b:1", "")
		if n := w.fast.End("", "", "") + w.slow.End("", "", ""); n == 0 {
			t.Fatal("no endpoint ended")
		}
		synctest.Wait()
		w.unsent(w.notify(a, "b:1", "x"), time.Second, 2010*time.Millisecond)
		held := w.network.Faults().Held
		w.unsent(w.notify(a, "b:1", "x"), 0, 10*time.Millisecond)
		w.unsent(w.notify(a, "b:1", "x"), 0, 10*time.Millisecond)
		if n := w.network.Faults().Held; n != held {
			t.Errorf("%d calls were made of a marked peer", n-held)
		}
		w.network.Freeze("b:1", false)
		w.fast.HealBoth("a:1", "b:1", "")
		w.slow.HealBoth("a:1", "b:1", "")
		time.Sleep(1100 * time.Millisecond)
		w.within(w.notify(a, "b:1", "back"), 100*time.Millisecond)
		w.expect(b, "back")
	})
}

// Scenarios 27 and 31: frozen mid-stream, and a control plane that is silent
// while the data path works.
func TestDataGoesOnWhileTheControlPlaneIsSilent(t *testing.T) {
	run(t, func(w *world) {
		w.short("a:1")
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		w.network.Freeze("b:1", true)
		a.watch.ask("b:1") // whoever calls finds out
		_, err := a.at("b:1")[0].client.Hello(context.Background(), a.helloFor())
		if !silent(err) {
			t.Fatalf("hello: %v", err)
		}
		synctest.Wait()
		if a.Stats().Marks != 1 {
			t.Fatal("the peer is not marked")
		}
		for range 20 {
			w.within(w.notify(a, "b:1", "x"), 10*time.Millisecond)
			time.Sleep(time.Second)
		}
		w.network.Freeze("b:1", false)
		if n := len(drain(b)); n != 20 {
			t.Errorf("%d arrived, want 20", n)
		}
	})
}

// Scenario 27.
func TestFrozenMidStream(t *testing.T) {
	run(t, func(w *world) {
		w.short("a:1")
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		var sent []string
		send := func(prefix string, n int) {
			for _, name := range names(prefix, n) {
				start := time.Now()
				w.notify(a, "b:1", name)
				if took := time.Since(start); took > time.Millisecond {
					t.Errorf("Notify took %v", took)
				}
				sent = append(sent, name)
				time.Sleep(time.Millisecond)
			}
		}
		send("before", 50)
		w.freezeNode("b:1", true)
		send("frozen", 50)
		time.Sleep(5 * time.Second)
		if w.fast.Counters().Held == 0 {
			t.Fatal("nothing was held")
		}
		w.freezeNode("b:1", false)
		last := w.notify(a, "b:1", "resumed")
		w.within(last, 1500*time.Millisecond)
		w.expect(b, append(sent, "resumed")...)
		if n := a.Stats().Pauses; n != 0 {
			t.Errorf("%d paths were paused", n)
		}
	})
}

// Scenario 28, with the keys of peer_health: an answer of any kind clears a
// mark.
func TestARefusalClearsAMark(t *testing.T) {
	run(t, func(w *world) {
		w.short("a:1")
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.network.Freeze("b:1", true)
		w.unsent(w.notify(a, "b:1", "x"), 2*time.Second, 2010*time.Millisecond)
		began := time.Now()
		a.watch.called("b:1", began, a.watch.outcome(began, time.Second, false, nil))
		synctest.Wait()
		if err := a.watch.allow("b:1", time.Now()); err != nil {
			t.Errorf("still marked: %v", err)
		}
		w.network.Freeze("b:1", false)
	})
}

// Without marks each call waits for itself.
func TestMarksCanBeTurnedOff(t *testing.T) {
	run(t, func(w *world) {
		w.short("a:1")
		c := w.configs["a:1"]
		c.PeerHealth.Enable = new(false)
		c.Notification.DeadlineMS = 10000
		w.configs["a:1"] = c
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.network.Freeze("b:1", true)
		for range 2 {
			start := time.Now()
			if err := w.wait(w.notify(a, "b:1", "x")); !errors.Is(err, DeadlineExceeded) || time.Since(start) < 10*time.Second {
				t.Errorf("%v after %v", err, time.Since(start))
			}
		}
		if a.Stats().Marks+a.Stats().Probes != 0 {
			t.Error("the peer was marked or probed")
		}
		w.network.Freeze("b:1", false)
	})
}

// peer_health.cooldown_ms and probe_interval_ms, rpc.probe_timeout_ms.
func TestPeerHealthKeys(t *testing.T) {
	run(t, func(w *world) {
		w.short("a:1")
		c := w.configs["a:1"]
		c.PeerHealth = PeerHealthConfig{CooldownMS: 3000, MaxCooldownMS: 7000, ProbeIntervalMS: 60000, MaxAgeMS: 30000}
		c.RPC.ProbeTimeoutMS = 1000
		w.configs["a:1"] = c
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.network.Freeze("b:1", true)
		// Nobody probes so soon: after the cooldown a caller finds out, and the
		// next one is longer.
		for _, cooldown := range []time.Duration{3 * time.Second, 6 * time.Second, 7 * time.Second, 7 * time.Second} {
			w.unsent(w.notify(a, "b:1", "x"), 2*time.Second, 2010*time.Millisecond)
			time.Sleep(cooldown - 50*time.Millisecond)
			w.unsent(w.notify(a, "b:1", "x"), 0, 10*time.Millisecond)
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(31 * time.Second)
		if a.watch.marked.Load() {
			t.Error("a mark that nobody touched is older than max_age_ms")
		}
		w.network.Freeze("b:1", false)
	})
}

// Scenario 30: traffic to others keeps its latency.
func TestMarksArePerPeer(t *testing.T) {
	run(t, func(w *world) {
		w.short("a:1")
		a, b, c := w.open("a:1"), w.open("b:1"), w.open("c:1")
		defer w.shut(a, b, c)
		if err := w.wait(w.notify(a, "c:1", "first")); err != nil {
			t.Fatal(err)
		}
		w.freezeNode("b:1", true)
		for range 50 {
			w.notify(a, "b:1", "x")
			w.within(w.notify(a, "c:1", "y"), time.Millisecond)
			time.Sleep(100 * time.Millisecond)
		}
		if a.Stats().Marks != 1 {
			t.Error("the frozen peer was not marked")
		}
		w.freezeNode("b:1", false)
	})
}

// Scenario 32: prober and marks are gone after Close.
func TestNoMarkOutlivesClose(t *testing.T) {
	run(t, func(w *world) {
		w.short("a:1")
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(b)
		w.network.Freeze("b:1", true)
		w.unsent(w.notify(a, "b:1", "x"), 2*time.Second, 2010*time.Millisecond)
		time.Sleep(1500 * time.Millisecond)
		probes := a.Stats().Probes
		if probes == 0 {
			t.Fatal("the prober did not run")
		}
		w.shut(a)
		if a.watch.marked.Load() || a.watch.allow("b:1", time.Now()) != nil {
			t.Error("a mark is left")
		}
		time.Sleep(time.Minute)
		if n := a.Stats().Probes; n != probes {
			t.Errorf("%d probes after Close", n-probes)
		}
		w.network.Freeze("b:1", false)
	})
}

// A silence that fell into a freeze of this process is no silence.
func TestOwnFreezeMarksNobody(t *testing.T) {
	run(t, func(w *world) {
		w.short("a:1")
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.network.Freeze("b:1", true)
		w.unsent(w.notify(a, "b:1", "x"), 2*time.Second, 2010*time.Millisecond)
		a.watch.thawed(time.Now().Add(-time.Second), time.Now())
		synctest.Wait()
		if err := a.watch.allow("b:1", time.Now()); err != nil {
			t.Errorf("a silence that was noticed in a freeze counts: %v", err)
		}
		w.network.Freeze("b:1", false)
	})
}
