package engine

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/health"
)

// A paused path is not a usable one, connected or not; status, /readyz and the
// page say until when, and which pause in a row it is.
func TestPausedPathsAreShown(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		x := a.directory.all()[0]
		blame := func(n int) {
			for range n {
				time.Sleep(time.Millisecond)
				x.mu.Lock()
				x.blameLocked(x.paths[pathKey{"fast", "p0"}], health.Failure{Kind: health.NotPosted})
				x.mu.Unlock()
			}
			synctest.Wait()
		}
		path := func() PathStatus { return a.Peers()[0].Paths[0] }

		blame(2)
		if p := path(); p.State != PathUp || !p.Usable() || p.Pauses != 0 || !p.PausedUntil.IsZero() {
			t.Errorf("below the threshold: %+v", p)
		}
		for pause, length := range []time.Duration{30 * time.Second, 60 * time.Second} {
			blame(1)
			p := path()
			if p.State != "paused" || p.Usable() || p.Pauses != pause+1 || time.Until(p.PausedUntil) != length || p.Since.IsZero() {
				t.Errorf("pause %d: %+v", pause+1, p)
			}
			r := readiness(a, a.Peers())
			if got := r.Peers[0]; len(got.Usable) != 1 || len(got.Paused) != 1 || got.Paused[0].Pauses != pause+1 ||
				!got.Paused[0].Until.Equal(p.PausedUntil) || !strings.HasPrefix(got.Paused[0].Path, "fast") {
				t.Errorf("ready: %+v", got)
			}
			if j := adminPeer(a.Peers()[0]); j.UsablePaths != 1 || j.Paths[0].Pauses != pause+1 || !j.Paths[0].PausedUntil.Equal(p.PausedUntil) {
				t.Errorf("admin: %+v", j)
			}
			if page := get(t, Handler(a), "/").Body.String(); !strings.Contains(page, "paused <small>pause ") {
				t.Errorf("the page:\n%s", page)
			}
			time.Sleep(length)
			if p := path(); p.State != PathUp || !p.Usable() || p.Pauses != pause+1 || !p.PausedUntil.IsZero() {
				t.Errorf("on probation: %+v", p)
			}
		}
	})
}

// A mark is shown with its peer: which cooldown in a row, and until when.
func TestMarksAreShown(t *testing.T) {
	run(t, func(w *world) {
		w.short("a:1")
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.network.Freeze("b:1", true)
		w.unsent(w.notify(a, "b:1", "x"), 2*time.Second, 2010*time.Millisecond)
		p := a.Peers()[0]
		if p.Cooldowns != 1 || time.Until(p.SilentUntil) < 4*time.Second || a.Stats().Silent != 1 {
			t.Errorf("%+v; %d silent", p, a.Stats().Silent)
		}
		w.notify(a, "b:1", "pending")
		if j := adminPeer(p); j.Cooldowns != 1 || !j.SilentUntil.Equal(p.SilentUntil) {
			t.Errorf("admin: %+v", j)
		}
		if page := get(t, Handler(a), "/").Body.String(); !strings.Contains(page, "cooldown 1, ") {
			t.Errorf("the page:\n%s", page)
		}
		time.Sleep(8 * time.Second)
		if p := a.Peers()[0]; p.Cooldowns < 2 || !p.SilentUntil.After(time.Now()) {
			t.Errorf("renewed by probes: %+v", p)
		}
		w.network.Freeze("b:1", false)
		time.Sleep(3 * time.Second)
		if p := a.Peers()[0]; p.Cooldowns != 0 || !p.SilentUntil.IsZero() || a.Stats().Silent != 0 {
			t.Errorf("after an answer: %+v", p)
		}
	})
}

// At protocols 0 and 1 a receiver's room is the span's.
func TestRoomWithoutAcks(t *testing.T) {
	run(t, func(w *world) {
		w.offer("b:1", 1)
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		if err := w.wait(w.notify(a, "b:1", "x")); err != nil {
			t.Fatal(err)
		}
		if p := a.Peers()[0]; p.Room != 4096 || p.Held {
			t.Errorf("%+v", p)
		}
		if s := a.Stats(); s.Taken != 1 || s.Acked != 0 {
			t.Errorf("%d taken, %d acked", s.Taken, s.Acked)
		}
	})
}
