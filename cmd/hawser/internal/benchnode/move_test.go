package benchnode

import (
	"context"
	"errors"
	"testing"
)

// Never more than the window is under way, a slot has one op at a time, and an
// op that fails ends it.
func TestMoveKeepsTheWindow(t *testing.T) {
	const window = 4
	busy, most := map[int]bool{}, 0
	begin := func(slot int) (Waiter, error) {
		if busy[slot] || slot < 0 || slot >= window {
			t.Errorf("slot %d is not free", slot)
		}
		busy[slot] = true
		most = max(most, len(busy))
		return waiter(func() error { delete(busy, slot); return nil }), nil
	}
	if _, err := Move(t.Context(), 1, 10, window, 7, begin); err != nil || most != window || len(busy) != 0 {
		t.Errorf("%v: %d under way at most, %d left", err, most, len(busy))
	}
	failure := errors.New("no")
	if _, err := Move(t.Context(), 1, 10, window, 0, func(int) (Waiter, error) { return waiter(func() error { return failure }), nil }); !errors.Is(err, failure) {
		t.Errorf("got %v", err)
	}
}

type waiter func() error

func (w waiter) Wait(context.Context) error { return w() }
