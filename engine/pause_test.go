package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/health"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// pauses returns the paused paths of e's only peer, as transport/path.
func pauses(e *Engine) (list []string) {
	synctest.Wait()
	for _, a := range e.directory.all() {
		a.mu.Lock()
		for _, p := range a.paused {
			list = append(list, p.transport+"/"+p.name)
		}
		a.mu.Unlock()
	}
	return list
}

// A path that loses frames one way, while the peer answers and acks what comes
// over another one, is paused after three overdue acks, for 30 s, then 60 s;
// nothing is lost meanwhile, and a success clears it.
func TestALossyPathIsPaused(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		w.fast.Cut("a:1", "b:1", "")
		for i := 0; a.Stats().Pauses == 0; i++ {
			if err := w.wait(w.notify(a, "b:1", "x")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
			if i == 100 {
				t.Fatal("not paused")
			}
		}
		if got := pauses(a); len(got) != 1 || got[0] != "fast/p0" {
			t.Fatalf("paused: %v", got)
		}
		start := time.Now()
		for time.Since(start) < 29*time.Second {
			d := w.notify(a, "b:1", "x")
			w.within(d, 10*time.Millisecond)
			if d.Report().Transport != rpcFallbackName {
				t.Fatalf("went over %s", d.Report().Transport)
			}
			time.Sleep(time.Second)
		}
		time.Sleep(2 * time.Second)
		if got := pauses(a); len(got) != 0 {
			t.Fatalf("still paused after 30 s: %v", got)
		}
		// On probation: the next overdue ack pauses it again.
		for a.Stats().Pauses == 1 {
			_ = w.wait(w.notify(a, "b:1", "x"))
			time.Sleep(100 * time.Millisecond)
		}
		w.fast.Heal("a:1", "b:1", "")
		time.Sleep(59 * time.Second)
		if got := pauses(a); len(got) != 1 {
			t.Fatalf("the second pause is not longer: %v", got)
		}
		time.Sleep(3 * time.Second)
		w.within(w.notify(a, "b:1", "x"), 10*time.Millisecond)
		if a.watch.troubled.Load() {
			t.Error("a success does not clear the path")
		}
		if w.fast.Counters().Held == 0 || a.Stats().Timeouts < 4 {
			t.Error("the cut had no effect")
		}
		drain(b)
	})
}

// Three refusals pause a path; its keys say how many, in what time, how long.
func TestRefusalsPause(t *testing.T) {
	run(t, func(w *world) {
		c := w.configs["a:1"]
		c.RPC.ConnectTimeoutMS = 1000
		c.PathHealth = PathHealthConfig{ErrorThreshold: 2, ErrorWindowSecs: 5, CooldownSecs: 7, MaxCooldownSecs: 7}
		w.configs["a:1"] = c
		w.configs["b:1"] = Config{Transports: []TransportConfig{
			{Name: "fast", InProcess: func() sdk.Transport {
				h := hook(w.fast.New("b:1"))
				h.accept = func(context.Context, sdk.Target, []byte, sdk.Handler) (sdk.Endpoint, []byte, error) {
					return nil, nil, sdk.Errorf(sdk.Refused, "not you")
				}
				return h
			}},
			{Name: rpcFallbackName, InProcess: func() sdk.Transport { return w.slow.New("b:1") }},
		}}
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		start := time.Now()
		for a.Stats().Pauses == 0 && time.Since(start) < time.Minute {
			_ = w.wait(w.notify(a, "b:1", "x"))
			time.Sleep(50 * time.Millisecond)
		}
		if n := a.Stats().ConnectFailures; n != 2 {
			t.Errorf("paused after %d refusals, want 2", n)
		}
		if got := pauses(a); len(got) != 1 || got[0] != "fast/p0" {
			t.Fatalf("paused: %v", got)
		}
		time.Sleep(8 * time.Second)
		if got := pauses(a); len(got) != 0 {
			t.Fatalf("still paused: %v", got)
		}
		drain(b)
	})
}

// What is nobody's or somebody else's fault pauses nothing: a plugin's exit, a
// silent control plane, an endpoint's end counted once, no room.
func TestWhatDoesNotPause(t *testing.T) {
	t.Run("ends count once", func(t *testing.T) {
		run(t, func(w *world) {
			a, b := w.open("a:1"), w.open("b:1")
			defer w.shut(a, b)
			w.connected(a, b)
			w.fast.Cut("a:1", "b:1", "")
			var ds []*Delivery
			for _, n := range names("n", 100) {
				ds = append(ds, w.notify(a, "b:1", n))
			}
			if w.fast.End("a:1", "b:1", "") == 0 {
				t.Fatal("no endpoint ended")
			}
			w.fast.Heal("a:1", "b:1", "")
			for _, d := range ds {
				w.within(d, time.Second)
			}
			if n := a.Stats().Pauses; n != 0 {
				t.Error("an endpoint that took 100 frames with it counts more than once")
			}
			drain(b)
		})
	})
	t.Run("plugin exits", func(t *testing.T) {
		run(t, func(w *world) {
			a, b := w.open("a:1"), w.open("b:1")
			defer w.shut(a, b)
			w.connected(a, b)
			for range 4 {
				if w.fast.Kill("a:1") == 0 {
					t.Fatal("nothing was killed")
				}
				time.Sleep(2 * time.Second)
				w.within(w.notify(a, "b:1", "x"), time.Second)
			}
			if n := a.Stats().Pauses; n != 0 {
				t.Errorf("%d pauses", n)
			}
			drain(b)
		})
	})
	t.Run("silent control plane", func(t *testing.T) {
		run(t, func(w *world) {
			w.short("a:1")
			a, b := w.open("a:1"), w.open("b:1")
			defer w.shut(a, b)
			w.connected(a, b)
			w.network.Freeze("b:1", true)
			for range 4 {
				w.fast.End("a:1", "b:1", "")
				time.Sleep(12 * time.Second) // one end per window
				w.within(w.notify(a, "b:1", "x"), 10*time.Millisecond)
			}
			if s := a.Stats(); s.Pauses != 0 || s.Marks != 1 {
				t.Errorf("%d pauses, %d marks", s.Pauses, s.Marks)
			}
			w.network.Freeze("b:1", false)
			drain(b)
		})
	})
	t.Run("no room", func(t *testing.T) {
		run(t, func(w *world) {
			w.configs["b:1"] = Config{Receive: ReceiveConfig{Frames: 8}}
			a, b := w.open("a:1"), w.open("b:1")
			defer w.shut(a, b)
			for _, n := range names("n", 100) {
				w.notify(a, "b:1", n)
			}
			time.Sleep(30 * time.Second)
			if n := len(drain(b)); n != 100 {
				t.Errorf("%d arrived", n)
			}
			if a.Stats().Pauses != 0 {
				t.Error("a full queue pauses the path to it")
			}
		})
	})
}

// Scenario 38: the primary, its other paths, the other transports, the RPC
// fallback; at most three paths of one; paused ones skipped; when all are
// paused, the one whose pause ends first.
func TestOrderOfWays(t *testing.T) {
	run(t, func(w *world) {
		w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast", Paths: []string{"p0", "p1", "p2", "p3"}})
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		if err := w.wait(w.notify(a, "b:1", "x")); err != nil {
			t.Fatal(err)
		}
		x := a.directory.all()[0]
		ranked := func() (s string) {
			synctest.Wait()
			x.mu.Lock()
			defer x.mu.Unlock()
			x.rankLocked(time.Now())
			for _, p := range x.ranked {
				s += p.transport + "/" + p.name + " "
			}
			return s
		}
		pause := func(transport, name string) {
			x.mu.Lock()
			p := x.paths[pathKey{transport, name}]
			for range 3 {
				x.mu.Unlock()
				time.Sleep(time.Millisecond)
				x.mu.Lock()
				x.blameLocked(p, health.Failure{Kind: health.NotPosted})
			}
			x.mu.Unlock()
		}
		want := func(s string) {
			t.Helper()
			if got := ranked(); got != s {
				t.Errorf("tried: %s, want %s", got, s)
			}
		}
		want("fast/p0 fast/p1 fast/p2 rpcfallback/p0 ")
		pause("fast", "p1")
		want("fast/p0 fast/p2 fast/p3 rpcfallback/p0 ")
		pause(rpcFallbackName, "p0")
		pause("fast", "p0")
		pause("fast", "p2")
		pause("fast", "p3")
		want("fast/p1 ")
		w.within(w.notify(a, "b:1", "over the only one"), 10*time.Second)
		drain(b)
	})
}

// Scenario 40: path health is per peer.
func TestPathHealthIsPerPeer(t *testing.T) {
	run(t, func(w *world) {
		a, b, c := w.open("a:1"), w.open("b:1"), w.open("c:1")
		defer w.shut(a, b, c)
		for _, peer := range []string{"b:1", "c:1"} {
			if err := w.wait(w.notify(a, peer, "x")); err != nil {
				t.Fatal(err)
			}
		}
		w.fast.Cut("a:1", "b:1", "")
		for range 50 {
			_ = w.wait(w.notify(a, "b:1", "x"))
			time.Sleep(100 * time.Millisecond)
			d := w.notify(a, "c:1", "y")
			w.within(d, 10*time.Millisecond)
			if d.Report().Transport != "fast" {
				t.Fatal("the other peer's path is not used")
			}
		}
		if a.Stats().Pauses != 1 {
			t.Errorf("%d pauses, want 1", a.Stats().Pauses)
		}
		w.fast.Heal("a:1", "b:1", "")
		drain(b)
		drain(c)
	})
}

// Scenario 39: two endpoints retire at once; each entry is sent again once.
func TestTwoRetirementsResendOnce(t *testing.T) {
	run(t, func(w *world) {
		w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast", Paths: []string{"p0", "p1"}})
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		if err := w.wait(w.notify(a, "b:1", "first")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the fallback is connected, too
		w.fast.Cut("a:1", "b:1", "")
		sent := names("n", 64)
		for _, n := range sent {
			w.notify(a, "b:1", n)
		}
		synctest.Wait()
		before := a.Stats().Resent
		if w.fast.End("a:1", "b:1", "") == 0 || w.slow.End("a:1", "b:1", "") == 0 {
			t.Fatal("nothing ended")
		}
		w.fast.Heal("a:1", "b:1", "")
		w.expect(b, append(sent, "first")...)
		if n := a.Stats().Resent - before; n != 64 {
			t.Errorf("%d copies were sent again, want 64", n)
		}
	})
}

// A path's pause does not survive a new instance at either end.
func TestANewInstanceIsForgiven(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		x := a.directory.all()[0]
		for range 3 {
			time.Sleep(time.Millisecond)
			x.mu.Lock()
			x.blameLocked(x.paths[pathKey{"fast", "p0"}], health.Failure{Kind: health.NotPosted})
			x.mu.Unlock()
		}
		if got := pauses(a); len(got) != 1 {
			t.Fatalf("paused: %v", got)
		}
		if err := b.RestartTransport(context.Background(), "fast"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if got := pauses(a); len(got) != 0 {
			t.Errorf("still paused: %v", got)
		}
	})
}
