package benchnode

import (
	"context"
	"time"
)

// Footprint is the memory of their own that the two nodes and their plugins had
// together while something was measured, in bytes; regions do not count. Both
// are 0 where it cannot be told.
type Footprint struct {
	Highest int64 `json:"highest"`
	// Growth is the highest of the second half of the time less that of the
	// first: of a program whose memory is flat it is about nothing.
	Growth int64 `json:"growth"`
}

// watchEvery is how often the memory is looked at.
const watchEvery = 20 * time.Millisecond

// watch looks at the processes' memory until the returned function is called.
func watch(pids []int) (stop func() Footprint) {
	ctx, cancel := context.WithCancel(context.Background())
	var samples []int64
	over := make(chan struct{})
	go func() {
		defer close(over)
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			if sum, ok := together(pids); ok {
				samples = append(samples, sum)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() Footprint {
		cancel()
		<-over
		return footprint(samples)
	}
}

func together(pids []int) (sum int64, ok bool) {
	for _, pid := range pids {
		n, err := anonymous(pid)
		if err != nil {
			return 0, false
		}
		sum += n
	}
	return sum, true
}

func footprint(samples []int64) (f Footprint) {
	half := (len(samples) + 1) / 2
	var first, second int64
	for i, s := range samples {
		if i < half {
			first = max(first, s)
		} else {
			second = max(second, s)
		}
	}
	f.Highest = max(first, second)
	if len(samples) > 1 {
		f.Growth = second - first
	}
	return f
}
