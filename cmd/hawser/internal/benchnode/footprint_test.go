package benchnode

import (
	"os"
	"runtime"
	"testing"
)

func TestFootprint(t *testing.T) {
	for _, c := range []struct {
		samples []int64
		want    Footprint
	}{
		{nil, Footprint{}},
		{[]int64{5}, Footprint{5, 0}},
		{[]int64{5, 9, 9, 9}, Footprint{9, 0}},
		{[]int64{5, 9, 9, 7}, Footprint{9, 0}},
		{[]int64{5, 9, 6, 7}, Footprint{9, -2}},
		{[]int64{1, 2, 3, 4, 5}, Footprint{5, 2}},
	} {
		if got := footprint(c.samples); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.samples, got, c.want)
		}
	}
	if runtime.GOOS != "linux" {
		return
	}
	// It looks at once, and sums up what it looks at.
	if f := watch([]int{os.Getpid()})(); f.Highest < 1<<20 {
		t.Errorf("this process has %+v", f)
	}
	if f := watch([]int{os.Getpid(), -1})(); f != (Footprint{}) {
		t.Errorf("a process that is not there: %+v", f)
	}
}
