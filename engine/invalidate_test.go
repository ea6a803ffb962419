//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/hawser-transport/hawser/engine/internal/control"
)

// An invalidation is for one life of a consumer: a successor at its address does
// not answer for it, and the provider learns that it is gone, with or without an
// association. Older providers do not say whom they mean.
func TestAnInvalidationIsForOneLife(t *testing.T) {
	for _, known := range []bool{true, false} {
		moving(t, func(w *world) {
			a, b, mine, theirs, g, _ := w.movers(100)
			if err := w.write(a, mine, theirs, g, 1); err != nil {
				t.Fatal(err)
			}
			w.vanish(a)
			next := w.open("a:1")
			s := b.Events(context.Background())
			if !known {
				b.at("a:1")[0].die(fmt.Errorf("%w", errForgotten))
				told(s)
			}
			if err := theirs.Close(context.Background()); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			b.memory.mu.Lock()
			if len(b.memory.readers) != 0 {
				t.Errorf("known %v: still a reader", known)
			}
			b.memory.mu.Unlock()
			if got := told(s); slices.Contains(got, "peer restarted a:1") != known {
				t.Errorf("known %v: %q", known, got)
			}
			h := &answers{next, nil}
			for to, want := range map[Incarnation]error{a.incarnation: PeerRestarted, next.incarnation: nil, {}: nil} {
				req := control.InvalidateRequest{From: b.incarnation, To: to, Version: 1}
				if _, err := h.Invalidate(context.Background(), req); !errors.Is(err, want) {
					t.Errorf("to %v: %v, want %v", to, err, want)
				}
			}
			_ = g.Close()
			w.shut(b, next)
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_ = a.Close(ctx)
			w.giveUp()
		})
	}
}
