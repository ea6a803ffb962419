package demo

import (
	"testing"
	"time"
)

// However long a fault takes, and whichever that is, the stream is not over
// before the last one: it slows down while they last.
func TestTheStreamOutlivesItsFaults(t *testing.T) {
	const count, faults, full = 4000, turnKills, 1000
	for slow := range faults {
		rest, cycle := float64(count)*0.85, firstCycle // the first fault's part is sent
		for i := range faults {
			takes := firstCycle
			if i >= slow {
				takes = 5 * time.Second
			}
			pace := full
			for at := time.Duration(0); at < takes; at += slowdownEvery {
				pace = min(pace, fitting(int(rest), faults-i-1, max(cycle, at), full))
				rest -= float64(pace) * slowdownEvery.Seconds()
			}
			cycle = max(cycle, takes)
			if rest < count/80 {
				t.Fatalf("slow from fault %d on: %.0f are left after fault %d", slow, rest, i)
			}
		}
	}
}
