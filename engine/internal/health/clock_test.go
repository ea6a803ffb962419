package health

import (
	"testing"
	"time"
)

func TestDoubled(t *testing.T) {
	for _, c := range []struct {
		first, limit time.Duration
		times        int
		want         time.Duration
	}{
		{5, 60, 1, 5},
		{5, 60, 2, 10},
		{5, 60, 4, 40},
		{5, 60, 5, 60},
		{5, 60, 1 << 40, 60},
		{5, 40, 4, 40}, // the limit is a double itself
		{5, 5, 3, 5},
		{7, 5, 1, 5}, // never over the limit, whatever the settings
		{1, 1<<63 - 1, 64, 1<<63 - 1},
	} {
		if got := doubled(c.first, c.limit, c.times); got != c.want {
			t.Errorf("%d doubled %d times, at most %d: %d, want %d", c.first, c.times, c.limit, got, c.want)
		}
	}
}
