//go:build linux

package mnnvltransport

import (
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// TestToldOnTheThread: an outcome is told by the thread that has seen the copy's
// end. Each goroutine in between would cost a wake.
func TestToldOnTheThread(t *testing.T) {
	l := newLab(t)
	a, b := l.start(t, l.transport(t), 1), l.start(t, l.transport(t), 2)
	here, there := a.register(t, l.on(t, 0, 4096), true, 1<<40, 1), b.register(t, l.on(t, len(l.devices)-1, 4096), true, 1<<41, 1)
	a.announce(t, there)
	w := connect(t, a, b)
	var stack string
	w.told = func() { stack = string(debug.Stack()) }
	for range 2 { // the first one imports
		w.must(opOf(sdk.Read, here, there, 4096))
		if !strings.Contains(stack, "(*worker).run(") {
			t.Errorf("Completed was called from\n%s", stack)
		}
	}
}

// TestStaysAwake: the thread does not sleep between ops that follow one another.
// It logs what an op's time goes into.
func TestStaysAwake(t *testing.T) {
	l := newLab(t)
	a, b := l.start(t, l.transport(t), 1), l.start(t, l.transport(t), 2)
	here, there := a.register(t, l.on(t, 0, 4096), true, 1<<40, 1), b.register(t, l.on(t, len(l.devices)-1, 4096), true, 1<<41, 1)
	a.announce(t, there)
	w := connect(t, a, b)
	w.must(opOf(sdk.Read, here, there, 4096))
	worker := a.Transport.(*Transport).devices[0].worker
	const ops = 1000
	before := worker.sleeps.Load()
	var told time.Time
	w.told = func() { told = time.Now() }
	var copied, seen []time.Duration
	for range ops {
		began := time.Now()
		w.must(opOf(sdk.Read, here, there, 4096))
		copied, seen = append(copied, told.Sub(began)), append(seen, time.Since(told))
	}
	n := worker.sleeps.Load() - before
	slices.Sort(copied)
	slices.Sort(seen)
	t.Logf("the thread has slept %d times in %d ops; %v from the call to the outcome, %v more until the caller has it (medians)",
		n, ops, copied[ops/2], seen[ops/2])
	if n > ops/2 {
		t.Error("that is too often")
	}
}
