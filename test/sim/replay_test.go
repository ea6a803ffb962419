package sim

import (
	"runtime"
	"testing"
	"testing/synctest"
)

// traceOf runs a seed and returns everything that happened, in order.
func traceOf(t *testing.T, seed uint64) (lines []string) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed)
		w.run()
		lines = w.all()
	})
	return lines
}

func TestReplay(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for seed := uint64(1); seed <= number(t, "SIM_SEEDS", 5); seed++ {
		a, b := traceOf(t, seed), traceOf(t, seed)
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				t.Errorf("seed %d: line %d of %d and %d:\n%s\n%s", seed, i, len(a), len(b), a[i], b[i])
				break
			}
		}
	}
}
