package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// rails gives the world's preferred transport two paths.
func (w *world) rails() {
	w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast", Paths: []string{"p0", "p1"}})
}

// states are the states of the paths to e's only peer, as transport/path.
func states(e *Engine) map[string]string {
	synctest.Wait()
	m := map[string]string{}
	for _, p := range e.Peers() {
		for _, w := range p.Paths {
			m[w.Transport+"/"+w.Path] = w.State
		}
	}
	return m
}

// via sends a notification, which must be acknowledged soon, and returns the
// path it took.
func (w *world) via(e *Engine, peer string) string {
	w.t.Helper()
	d := w.notify(e, peer, "x")
	w.within(d, 50*time.Millisecond)
	return d.Report().Transport + "/" + d.Report().Path
}

// unblamed checks that no path's error was counted.
func unblamed(t *testing.T, es ...*Engine) {
	t.Helper()
	for _, e := range es {
		if e.Stats().Pauses != 0 || e.watch.troubled.Load() {
			t.Errorf("%s holds something against a path: %+v", e.address, e.Peers())
		}
	}
}

// A rail that is lost, at either side, is down at both at once, and without an
// error; the other carries. Once it is back it carries again.
func TestARailIsLostAndBack(t *testing.T) {
	for _, loser := range []string{"a:1", "b:1"} {
		t.Run(loser, func(t *testing.T) {
			run(t, func(w *world) {
				w.rails()
				a, b := w.open("a:1"), w.open("b:1")
				defer w.shut(a, b)
				w.connected(a, b)
				events := a.Events(context.Background())
				defer events.Close()
				for range 3 {
					if got := w.via(a, "b:1"); got != "fast/p0" {
						t.Fatalf("it went over %s", got)
					}
					w.fast.Lose(loser, "p0")
					time.Sleep(100 * time.Millisecond)
					for range 10 {
						if got := w.via(a, "b:1"); got != "fast/p1" {
							t.Errorf("over %s", got)
						}
						time.Sleep(time.Second)
					}
					for _, e := range []*Engine{a, b} {
						if got := states(e)["fast/p0"]; got != PathDown {
							t.Errorf("at %s it is %s", e.address, got)
						}
					}
					if j := readiness(a, a.Peers()); len(j.Peers) != 1 || !slices.Equal(j.Peers[0].Down, []string{"fast/p0"}) {
						t.Errorf("ready: %+v", j.Peers)
					}
					unblamed(t, a, b)
					w.fast.Regain(loser, "p0")
					time.Sleep(100 * time.Millisecond)
					_ = w.via(a, "b:1") // connects it
					time.Sleep(100 * time.Millisecond)
				}
				want := []EventKind{PathPaused, PathResumed, PathPaused, PathResumed, PathPaused, PathResumed}
				var got []EventKind
				for len(events.C()) > 0 {
					if ev := <-events.C(); ev.Path == "p0" && ev.Transport == "fast" {
						got = append(got, ev.Kind)
						if paused := ev.Kind == PathPaused; paused != errors.Is(ev.Err, sdk.Unavailable) || !ev.Until.IsZero() {
							t.Errorf("event %+v", ev)
						}
					}
				}
				if !slices.Equal(got, want) {
					t.Errorf("events %v", got)
				}
				drain(b)
			})
		})
	}
}

// A rail that was down before the two met is down at both as soon as the side
// that lists it has tried it once, which holds nothing up and is no failure.
// When it comes up it carries.
func TestARailIsLostBeforeTheyMeet(t *testing.T) {
	run(t, func(w *world) {
		w.rails()
		w.fast.Lose("b:1", "p0")
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		if got := w.via(a, "b:1"); got != "fast/p1" {
			t.Fatalf("it went over %s", got)
		}
		time.Sleep(time.Second)
		for _, e := range []*Engine{a, b} {
			if got := states(e)["fast/p0"]; got != PathDown {
				t.Errorf("at %s it is %s", e.address, got)
			}
		}
		unblamed(t, a, b)
		if n := a.Stats().ConnectFailures; n > 1 {
			t.Errorf("it was tried %d times", n)
		}
		w.fast.Regain("b:1", "p0")
		time.Sleep(100 * time.Millisecond)
		_ = w.via(a, "b:1") // connects it
		time.Sleep(100 * time.Millisecond)
		if got := w.via(a, "b:1"); got != "fast/p0" {
			t.Errorf("over %s", got)
		}
		drain(b)
	})
}

// Of paths that a peer makes up only so many are kept.
func TestInventedPathsAreFew(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		req := offerTo(t, a, b)
		for i := range 3 * maxDown {
			req.Path = fmt.Sprintf("invented%d", i)
			if _, err := (&answers{b, closedChan}).Bootstrap(context.Background(), req); !errors.Is(err, sdk.Refused) {
				t.Fatalf("path %d: %v", i, err)
			}
		}
		if n := len(states(b)); n > maxDown+2 {
			t.Errorf("%d paths are known", n)
		}
		drain(b)
	})
}

// With all rails lost the next transport carries what is pending, at every
// protocol; a rail that is back takes over again.
func TestAllRailsAreLost(t *testing.T) {
	run(t, func(w *world) {
		w.rails()
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		w.fast.Delay("", "", "", 10*time.Millisecond)
		sent := names("n", 200)
		for i, n := range sent {
			switch i {
			case 50:
				w.fast.Lose("a:1", "p0")
				w.fast.Lose("a:1", "p1")
			case 150:
				w.fast.Regain("a:1", "p1")
			}
			w.notify(a, "b:1", n)
			time.Sleep(5 * time.Millisecond)
			if i == 120 {
				if got := w.via(a, "b:1"); got != rpcFallbackName+"/p0" {
					t.Errorf("it goes over %s", got)
				}
			}
		}
		if got := w.via(a, "b:1"); got != "fast/p1" {
			t.Errorf("it goes over %s", got)
		}
		unblamed(t, a, b)
		w.expect2(b, append(sent, "x", "x"))
	})
}

// expect2 receives exactly these names, which may repeat.
func (w *world) expect2(e *Engine, want []string) {
	w.t.Helper()
	got := drain(e)
	slices.Sort(got)
	want = slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		w.t.Errorf("%d arrived, want %d", len(got), len(want))
	}
}

// With nothing left a delivery says what became of each path.
func TestEverythingIsLost(t *testing.T) {
	run(t, func(w *world) {
		w.rails()
		w.only("a:1", plain)
		w.only("b:1", plain)
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connectedAt(a, "b:1")
		w.fast.Lose("a:1", "p0")
		w.fast.Lose("a:1", "p1")
		synctest.Wait()
		d := w.notify(a, "b:1", "late")
		time.Sleep(5 * time.Second)
		if d.Report().Copies != 0 {
			t.Errorf("it was sent: %+v", d.Report())
		}
		w.fast.Regain("a:1", "p1")
		w.within(d, 100*time.Millisecond)
		w.fast.Lose("a:1", "p1")
		synctest.Wait()
		err := w.wait(w.notify(a, "b:1", "never"))
		var failure *DeliveryError
		if !errors.As(err, &failure) || len(failure.Attempts) < 2 {
			t.Fatalf("%v", err)
		}
		for _, x := range failure.Attempts {
			if x.Transport == "fast" && x.Reason != "down: its transport does not list it now" {
				t.Errorf("attempt %v", x)
			}
		}
		w.expect(b, "hello", "late")
	})
}

// A path that is lost while it is being connected is no failure either, and is
// connected when it is back, whatever becomes of the first attempt.
func TestAPathIsLostWhileConnecting(t *testing.T) {
	run(t, func(w *world) {
		w.rails()
		w.fast.Cut("", "", "p0")
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connectedAt(a, "b:1")
		if got := states(a)["fast/p0"]; got != PathConnecting {
			t.Fatalf("it is %s", got)
		}
		w.fast.Lose("a:1", "p0")
		w.fast.Heal("", "", "p0")
		time.Sleep(time.Minute) // the attempt has ended by now
		unblamed(t, a, b)
		if got := states(a)["fast/p0"]; got != PathDown {
			t.Errorf("it is %s", got)
		}
		w.fast.Regain("a:1", "p0")
		time.Sleep(100 * time.Millisecond)
		_ = w.via(a, "b:1")
		time.Sleep(100 * time.Millisecond)
		if got := w.via(a, "b:1"); got != "fast/p0" {
			t.Errorf("over %s", got)
		}
		drain(b)
	})
}

// counting counts how often the transport is asked for its paths.
type counting struct {
	*hooked
	asked *atomic.Int32
}

func (c counting) Paths(remote sdk.Attributes) ([]string, error) {
	c.asked.Add(1)
	time.Sleep(5 * time.Millisecond)
	return c.hooked.Paths(remote)
}

// A storm of changes is asked about now and then, and its end always.
func TestAStormOfChanges(t *testing.T) {
	run(t, func(w *world) {
		w.rails()
		var asked atomic.Int32
		w.only("a:1", func(t sdk.Transport) sdk.Transport { return counting{hook(t), &asked} })
		w.only("b:1", plain)
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connectedAt(a, "b:1")
		asked.Store(0)
		start := time.Now()
		for i := range 10000 {
			w.fast.Lose("a:1", "p0")
			if i%100 == 0 {
				time.Sleep(10 * time.Millisecond)
			}
			w.fast.Regain("a:1", "p0")
		}
		// b's news of the endpoint that ended is one more round.
		most := int32(time.Since(start)/relistEvery) + 3
		w.fast.Lose("a:1", "p0")
		time.Sleep(time.Second)
		if n := asked.Load(); n < 10 || n > most {
			t.Errorf("asked %d times, want at most %d", n, most)
		}
		if got := states(a)["fast/p0"]; got != PathDown {
			t.Errorf("it is %s", got)
		}
		if got := w.via(a, "b:1"); got != "fast/p1" {
			t.Errorf("over %s", got)
		}
		drain(b)
	})
}

// A new instance starts with what it lists: nothing is down of what the old one
// did not list.
func TestANewInstanceHasNothingDown(t *testing.T) {
	run(t, func(w *world) {
		w.rails()
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		w.fast.Lose("a:1", "p0")
		time.Sleep(time.Second)
		if got := states(b)["fast/p0"]; got != PathDown {
			t.Fatalf("it is %s", got)
		}
		w.fast.Kill("a:1")
		time.Sleep(10 * time.Second)
		_ = w.via(a, "b:1")
		if got, is := states(a)["fast/p0"]; is {
			t.Errorf("it is %s", got)
		}
		drain(b)
	})
}
