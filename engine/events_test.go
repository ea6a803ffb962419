package engine

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// told returns the events so far, as "kind whom".
func told(s *Subscription) (list []string) {
	synctest.Wait()
	for {
		select {
		case ev, ok := <-s.C():
			if !ok {
				return append(list, "closed")
			}
			whom := ev.Address
			if ev.Transport != "" {
				whom += ev.Transport
			}
			list = append(list, fmt.Sprintf("%v %s", ev.Kind, whom))
		default:
			return list
		}
	}
}

func TestEvents(t *testing.T) {
	run(t, func(w *world) {
		w.short("a:1")
		a, b := w.open("a:1"), w.open("b:1")
		s := a.Events(context.Background())
		want := func(when string, events ...string) {
			t.Helper()
			if got := told(s); !slices.Equal(got, events) {
				t.Errorf("%s: %q, want %q", when, got, events)
			}
		}
		w.connected(a, b)
		want("met", "peer up b:1")
		w.network.Freeze("b:1", true)
		_, _ = a.at("b:1")[0].client.Hello(context.Background(), a.helloFor())
		want("silent", "peer silent b:1")
		w.network.Freeze("b:1", false)
		time.Sleep(3 * time.Second)
		want("back", "peer resumed b:1")
		w.fast.Kill("a:1")
		time.Sleep(time.Second)
		want("plugin killed", "transport down fast", "transport up fast")
		w.fast.Cut("a:1", "b:1", "")
		for a.Stats().Pauses == 0 {
			_ = w.wait(w.notify(a, "b:1", "x"))
			time.Sleep(100 * time.Millisecond)
		}
		want("lossy", "path paused b:1fast")
		w.fast.Heal("a:1", "b:1", "")
		time.Sleep(31 * time.Second)
		want("after the pause", "path resumed b:1fast")
		w.network.Refuse("b:1", true)
		a.gone("b:1", Unavailable)
		want("gone", "peer gone b:1")
		w.network.Refuse("b:1", false)
		w.shut(a, b)
		if got := told(s); got[len(got)-1] != "closed" {
			t.Errorf("after Close: %q", got)
		}
		if got := told(a.Events(context.Background())); len(got) != 1 {
			t.Errorf("of a closed engine: %q", got)
		}
	})
}

func TestARestartIsTold(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a)
		w.connected(a, b)
		s := a.Events(context.Background())
		w.network.Silence("b:1", "a:1", true) // its goodbye is lost
		w.shut(b)
		w.network.Silence("b:1", "a:1", false)
		b = w.open("b:1")
		defer w.shut(b)
		if err := w.wait(w.notify(b, "a:1", "x")); err != nil {
			t.Fatal(err)
		}
		got := told(s)
		if !slices.Contains(got, "peer restarted b:1") && !slices.Contains(got, "peer gone b:1") || got[len(got)-1] != "peer up b:1" {
			t.Errorf("%q", got)
		}
	})
}

// A slow reader loses the oldest, and is told how many.
func TestSlowReadersLoseTheOldest(t *testing.T) {
	run(t, func(w *world) {
		a := w.open("a:1")
		defer w.shut(a)
		ctx, cancel := context.WithCancel(context.Background())
		s := a.Events(ctx)
		for i := range eventBuffer + 10 {
			a.hub.tell(Event{Kind: TransportUp, Transport: fmt.Sprint(i)})
		}
		if got := told(s); s.Lost() != 10 || len(got) != eventBuffer || got[0] != "transport up 10" {
			t.Errorf("%d lost, %d left, the first is %q", s.Lost(), len(got), got[0])
		}
		cancel()
		if got := told(s); len(got) != 1 || got[0] != "closed" {
			t.Errorf("after its context: %q", got)
		}
		s.Close()
	})
}
