//go:build linux

package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/hawser-transport/hawser/sdk"
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

// The last op of a closed handle may end because no way takes it: that gives up
// what is known of the peer while the mover looks for one.
func TestAnOpWithoutAWayOfAClosedSegment(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		theirs.region.Kind = sdk.DeviceMemory // which no transport here moves
		theirs.m.mu.Lock()
		theirs.m.changedLocked()
		theirs.m.mu.Unlock()
		if err := g.Refresh(context.Background()); err != nil {
			t.Fatal(err)
		}
		x := w.submit(a, SubmitOptions{}, Op{Kind: Read, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
		_ = g.Close()
		if err := w.done(x); !errors.Is(err, Unsupported) {
			t.Error(err)
		}
		s := a.memory.source(b.incarnation)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.opens != 0 {
			t.Errorf("%d handles are open", s.opens)
		}
	})
}
