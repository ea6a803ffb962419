package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
)

// take receives what is in a queue now.
func (q *Queue) take() (names []string) {
	for q.Len() > 0 {
		r, err := q.Receive(context.Background())
		if err != nil {
			return names
		}
		names = append(names, r.Name)
	}
	return names
}

func TestQueuesByPrefix(t *testing.T) {
	run(t, func(w *world) {
		kv, kvHot := NewQueue("kv/", QueueBounds{}), NewQueue("kv/hot/", QueueBounds{})
		w.queues = map[string][]*Queue{"b:1": {kv, kvHot}}
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		for _, name := range []string{"kv/1", "other", "kv/hot/1", "", "kv"} {
			if err := w.wait(w.notify(a, "b:1", name)); err != nil {
				t.Fatal(err)
			}
		}
		if got := kv.take(); !slices.Equal(got, []string{"kv/1"}) {
			t.Errorf("kv/: %q", got)
		}
		if got := kvHot.take(); !slices.Equal(got, []string{"kv/hot/1"}) {
			t.Errorf("kv/hot/: %q", got)
		}
		w.expect(b, "other", "", "kv")
	})
}

// A full queue leaves no trace of what does not fit, is acked with the room as
// it is, and holds back nobody else; what did not fit arrives once there is
// room.
func TestAFullPartHoldsBackNobodyElse(t *testing.T) {
	for _, to := range []string{"b:1", "a:1"} {
		t.Run("to "+to, func(t *testing.T) {
			run(t, func(w *world) {
				slow := NewQueue("slow/", QueueBounds{Frames: 4})
				w.queues = map[string][]*Queue{to: {slow}}
				w.configs["a:1"] = Config{Notification: NotificationConfig{DeadlineMS: 600000}}
				a, b := w.open("a:1"), w.open("b:1")
				defer w.shut(a, b)
				e := b
				if to == "a:1" {
					e = a
				}
				all := names("slow/n", 20)
				for _, n := range all {
					w.notify(a, to, n)
				}
				for range 50 {
					w.within(w.notify(a, to, "fast"), 10*time.Millisecond)
					time.Sleep(100 * time.Millisecond)
				}
				if s := a.Stats(); slow.Len() != 4 || s.Pauses != 0 || to == "b:1" && s.Timeouts == 0 {
					t.Errorf("%d wait, %+v", slow.Len(), s)
				}
				if got := len(drain(e)); got != 50 {
					t.Errorf("%d arrived beside the full queue, want 50", got)
				}
				var got []string
				for range 120 {
					got = append(got, slow.take()...)
					time.Sleep(time.Second)
				}
				slices.Sort(got)
				slices.Sort(all)
				if !slices.Equal(got, all) {
					t.Errorf("%d arrived once there was room: %q", len(got), got)
				}
			})
		})
	}
}

// The bound of all queues together holds.
func TestPartsShareTheRoom(t *testing.T) {
	run(t, func(w *world) {
		one, two := NewQueue("1/", QueueBounds{}), NewQueue("2/", QueueBounds{})
		w.queues = map[string][]*Queue{"b:1": {one, two}}
		w.configs["b:1"] = Config{Receive: ReceiveConfig{Frames: 16}}
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		for i := range 60 {
			w.notify(a, "b:1", fmt.Sprintf("%d/%d", i%2+1, i))
		}
		time.Sleep(5 * time.Second)
		if n := one.Len() + two.Len(); n != 16 {
			t.Errorf("%d are queued, want 16", n)
		}
		n := 0
		for range 30 {
			n += len(one.take()) + len(two.take())
			time.Sleep(time.Second)
		}
		if n != 60 {
			t.Errorf("%d arrived", n)
		}
	})
}

func TestQueuesAreChecked(t *testing.T) {
	q := NewQueue("x", QueueBounds{})
	if _, err := q.Receive(context.Background()); !errors.Is(err, InvalidArgument) {
		t.Errorf("a queue without an engine: %v", err)
	}
	for name, qs := range map[string][]*Queue{
		"twice":    {q, q},
		"equal":    {NewQueue("y", QueueBounds{}), NewQueue("y", QueueBounds{})},
		"negative": {NewQueue("z", QueueBounds{Frames: -1})},
		"too many": slices.Repeat([]*Queue{q}, maxQueues+1),
	} {
		opts := []Option{withCarrier(control.NewNetwork().Carrier("a:1"))}
		for _, q := range qs {
			opts = append(opts, WithQueue(q))
		}
		if _, err := Open(context.Background(), Config{}, opts...); !errors.Is(err, InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
