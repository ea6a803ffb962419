package sim

import (
	"hash/fnv"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
)

// runOf runs a seed and returns what was drawn and what happened, in order.
func runOf(t *testing.T, seed uint64) (drawn, happened []string) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed)
		w.run()
		drawn, happened = w.drawn, w.all()
	})
	return drawn, happened
}

// A seed draws the same faults at the same times, whatever the engines do. What
// they do is the same most of the time, with one processor and without the race
// detector, which deals out turns by chance; that is told, not asserted.
func TestReplay(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const seeds = 8
	same := 0
	for seed := uint64(1); seed <= seeds; seed++ {
		drawn, happened := runOf(t, seed)
		again, anew := runOf(t, seed)
		if len(drawn) == 0 || !slices.Equal(drawn, again) {
			t.Errorf("seed %d draws %q and %q", seed, drawn, again)
		}
		if sum(happened) == sum(anew) {
			same++
			continue
		}
		i := 0
		for i < min(len(happened), len(anew)) && happened[i] == anew[i] {
			i++
		}
		t.Logf("seed %d: lines %d of %d and %d differ", seed, i, len(happened), len(anew))
		for _, h := range [][]string{happened, anew} {
			if i < len(h) {
				t.Logf("%.300s", h[i])
			}
		}
	}
	t.Logf("%d of %d seeds gave the same trace twice", same, seeds)
}

func sum(lines []string) uint64 {
	h := fnv.New64a()
	for _, l := range lines {
		_, _ = h.Write([]byte(l + "\n"))
	}
	return h.Sum64()
}
