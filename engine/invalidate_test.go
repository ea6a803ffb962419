//go:build linux

package engine

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/health"
	"github.com/hawser-transport/hawser/sdk"
)

// An invalidation is for one life of a consumer: a successor at its address does
// not answer for it, and the provider learns that it is gone, with or without an
// association. Older providers do not say whom they mean.
func TestAnInvalidationIsForOneLife(t *testing.T) {
	moving(t, func(w *world) {
		a, b, _, _, _, end := w.movers(100)
		defer end()
		before := Incarnation{5, 8: 5} // who was at a's address
		read := func(i Incarnation) bool {
			b.memory.mu.Lock()
			defer b.memory.mu.Unlock()
			return b.memory.readers[i] != nil
		}
		h := &answers{a, nil}
		for to, want := range map[Incarnation]error{before: PeerRestarted, a.incarnation: nil, {}: nil} {
			req := control.InvalidateRequest{From: b.incarnation, To: to, Version: 1}
			if _, err := h.Invalidate(context.Background(), req); !errors.Is(err, want) {
				t.Errorf("to %v: %v, want %v", to, err, want)
			}
		}
		// The reader that nothing else is known of is told by its own name.
		b.memory.mu.Lock()
		b.memory.readers[before] = &reader{incarnation: before, name: "a:1", heard: time.Now()}
		b.memory.pushLocked(b.memory.readers[before])
		b.memory.mu.Unlock()
		time.Sleep(time.Second)
		if read(before) || !read(a.incarnation) {
			t.Errorf("of the earlier life %v, of this one %v", read(before), read(a.incarnation))
		}
		// An association as if a were the successor of its peer.
		s := b.Events(context.Background())
		req := control.InvalidateRequest{From: b.incarnation, To: before, Version: 1}
		if _, err := b.invalidate(a.incarnation, "a:1", "", req); !errors.Is(err, PeerRestarted) {
			t.Errorf("%v", err)
		}
		if got := told(s); !slices.Contains(got, "peer restarted a:1") || read(a.incarnation) {
			t.Errorf("%q", got)
		}
	})
}

// What an endpoint for memory does while its peer's life ends leaves nothing in
// the health of paths.
func TestNoHealthOfADeadPeersMemory(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		if err := w.write(a, mine, theirs, g, 1); err != nil {
			t.Fatal(err)
		}
		as := a.at("b:1")[0]
		m := &a.memory.source(b.incarnation).mover
		m.mu.Lock()
		over := make(chan struct{})
		go func() { defer close(over); as.die(sdk.Errorf(Unavailable, "gone")) }()
		for dead := false; !dead; runtime.Gosched() { // it waits for the mover, then
			as.mu.Lock()
			dead = as.dead != nil
			as.mu.Unlock()
		}
		m.blameLocked(m.order[0], health.Failure{Kind: health.EndpointEnded})
		a.watch.mu.Lock()
		known := !a.watch.mu.paths.Idle()
		a.watch.mu.Unlock()
		m.mu.Unlock()
		<-over
		a.watch.mu.Lock()
		defer a.watch.mu.Unlock()
		if !known || !a.watch.mu.paths.Idle() {
			t.Errorf("known %v, left %v", known, !a.watch.mu.paths.Idle())
		}
	})
}
