//go:build linux

package mnnvltransport

import (
	"sync"
	"testing"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/sdk"
)

// Regions that are parts of one allocation have the same IPC handle, which a
// process opens once: the second one is refused until the first has gone.
func TestAnIPCHandleIsOneRegion(t *testing.T) {
	if hardware() != nil {
		t.Skip("SKIPPED, a process cannot open its own IPC handles")
	}
	l := newLab(t)
	l.kinds = []cuda.Kind{cuda.IPC}
	a, b := l.start(t, l.transport(t), 1), l.start(t, l.transport(t), 2)
	here, m := a.register(t, l.on(t, 0, 4096), true, 1<<40, 1), l.on(t, 1, 4096)
	first, second := b.register(t, m, true, 1<<41, 1), b.register(t, m, true, 1<<42, 2)
	w := connect(t, a, b)
	a.announce(t, first)
	a.announce(t, second)
	w.must(opOf(sdk.Read, here, first, 4096))
	if c := w.do(opOf(sdk.Read, here, second, 4096)); c.Outcome != sdk.NotPosted || c.Code != sdk.Busy {
		t.Errorf("the second one: %v (%v)", c.Outcome, c.Code)
	}
	if err := a.mover.Withdraw(rigtest.Context(t), b.Inc, first.Capability); err != nil {
		t.Fatal(err)
	}
	w.must(opOf(sdk.Read, here, second, 4096))
}

// Two devices that want the same IPC handle take turns, however many of their
// ops do.
func TestDevicesTakeTurnsWithAnIPCHandle(t *testing.T) {
	if hardware() != nil {
		t.Skip("SKIPPED, a process cannot open its own IPC handles")
	}
	l := newLab(t)
	l.kinds = []cuda.Kind{cuda.IPC}
	a, b := l.start(t, l.transport(t), 1), l.start(t, l.transport(t), 2)
	there := b.register(t, l.on(t, 0, 4096), true, 1<<42, 1)
	a.announce(t, there)
	w := connect(t, a, b)
	var workers sync.WaitGroup
	for i := range 2 {
		here := a.register(t, l.on(t, i, 4096), true, 1<<40+uint64(i)<<20, 1)
		workers.Go(func() {
			for range 200 {
				w.must(opOf(sdk.Read, here, there, 4096))
				if t.Failed() {
					return
				}
			}
		})
	}
	workers.Wait()
}
