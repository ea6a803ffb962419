// Package proc holds on to a process that somebody else started, so that a
// signal reaches that one and no other that was given its number since, and
// tells what has become of it.
package proc

import (
	"context"
	"time"
)

// pollEvery is how often a state is looked at again.
const pollEvery = 2 * time.Millisecond

// until asks again and again until f holds or ctx ends.
func until(ctx context.Context, f func() bool) bool {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return f()
		}
	}
	return true
}
