//go:build linux

package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// Two handles of one peer are one peer: it is told once, after all of the data.
func TestAPeerWithTwoHandlesIsToldOnce(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		second := w.segment(a, "b:1")
		defer second.Close()
		x := w.submit(a, SubmitOptions{Notification: &Notification{Name: "n", Payload: []byte("payload of n")}},
			Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 50},
			Op{Kind: Write, Local: mine, LocalOffset: 50, Segment: second, Address: theirs.Address() + 50, Length: 50})
		if err := w.done(x); err != nil {
			t.Error(err)
		}
		w.expect(b, "n")
	})
}

// A handle that is closed takes no transfer with it, however far that is.
func TestClosingASegmentLeavesTransfers(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		w.network.Silence("a:1", "b:1", true)
		s := a.memory.source(b.incarnation)
		s.mu.Lock()
		s.newest++ // something has changed there: the descriptor has to be asked for
		s.mu.Unlock()
		x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
		_ = g.Close()
		synctest.Wait()
		op := Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 1}
		if _, err := a.Submit(context.Background(), []Op{op}, SubmitOptions{}); !errors.Is(err, Closed) {
			t.Errorf("submit to a closed handle: %v", err)
		}
		if _, _, err := g.Buffers(context.Background()); !errors.Is(err, Closed) {
			t.Errorf("what a closed handle has: %v", err)
		}
		w.network.Silence("a:1", "b:1", false)
		if err := w.done(x); err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.opens != 0 {
			t.Errorf("%d handles are open", s.opens)
		}
	})
}
