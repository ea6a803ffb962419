//go:build linux

package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// A peer that goes on living is met again by an engine that has forgotten it. Its
// transports have not, and refuse older generations than any that they have seen.
func TestGenerationsOutliveWhatIsForgotten(t *testing.T) {
	moving(t, func(w *world) {
		w.only("a:1", plain)
		w.only("b:1", plain)
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		seen := func() (frames, memory uint64) {
			_, p := pathOf(t, a, "fast")
			m := &a.memory.source(b.incarnation).mover
			m.mu.Lock()
			defer m.mu.Unlock()
			return p.generation, m.lanes[laneKey{"fast", "p0", 0}].generation
		}
		use := func() {
			t.Helper()
			began := time.Now()
			if err := w.write(a, mine, theirs, g, 100); err != nil {
				t.Fatal(err)
			}
			w.within(w.notify(a, "b:1", "x"), time.Second)
			if took := time.Since(began); took > time.Second {
				t.Errorf("it took %v", took)
			}
		}
		for range 5 {
			use()
			if w.fast.End("a:1", "b:1", "") < 2 {
				t.Fatal("not both endpoints have ended")
			}
			time.Sleep(time.Minute)
		}
		frames, memory := seen()
		x := theOnly(t, a)
		x.die(sdk.Errorf(sdk.Unavailable, "connection refused, for a moment"))
		synctest.Wait()
		if a.memory.source(b.incarnation) != nil {
			t.Fatal("it was not forgotten")
		}
		use()
		if f, m := seen(); f <= frames || m <= memory {
			t.Errorf("generations %d and %d after %d and %d", f, m, frames, memory)
		}
		if theOnly(t, a) == x {
			t.Error("the same association")
		}
	})
}

// Whoever uses a peer's memory now and then, and closes the segment in between,
// has everything forgotten each time.
func TestAPeersMemoryIsUsedNowAndThen(t *testing.T) {
	moving(t, func(w *world) {
		w.only("a:1", plain)
		a, b := w.open("a:1"), w.open("b:1")
		defer w.giveUp()
		defer w.shut(a, b)
		mine, theirs := w.region(a, 100, RegionOptions{}), w.region(b, 100, RegionOptions{})
		for i := range 6 {
			began := time.Now()
			g := w.segment(a, "b:1")
			if err := w.write(a, mine, theirs, g, 100); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > 20*time.Millisecond {
				t.Errorf("transfer %d took %v", i, took)
			}
			if err := g.Close(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			if a.memory.source(b.incarnation) != nil {
				t.Fatal("it was not forgotten")
			}
		}
	})
}

// A peer that makes up a generation moves no other peer's.
func TestGenerationsThatAreMadeUp(t *testing.T) {
	var g generations
	if n := g.next(41); n != 42 {
		t.Errorf("%d after 41", n)
	}
	if n := g.next(madeUp); n != madeUp+1 {
		t.Errorf("%d after %d", n, uint64(madeUp))
	}
	if n := g.next(0); n != 43 {
		t.Errorf("%d after 42", n)
	}
	// One below the bound counts, and the engine's own beyond it do as well.
	own := g.next(g.next(madeUp - 1))
	if n := g.next(0); n <= own {
		t.Errorf("%d after %d: a path that was forgotten goes back", n, own)
	}
}
