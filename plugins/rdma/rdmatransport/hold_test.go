package rdmatransport

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/sdk"
)

// holder is a handler that has no room until it is released. It keeps what
// [sdk.Offerer] promises, and no more.
type holder struct {
	*rigtest.Recorder

	mu      sync.Mutex
	full    bool
	offers  int // while it was full
	kept    [][]byte
	bytes   int
	dropped int
	resume  func()
}

func newHolder(t testing.TB) *holder { return &holder{Recorder: rigtest.NewRecorder(t), full: true} }

func (h *holder) MayHold() bool { return true }

func (h *holder) Offer(frames [][]byte, resume func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.full {
		h.Received(frames)
		return false
	}
	h.offers++
	for _, f := range frames {
		if h.bytes >= sdk.HoldBytes {
			h.dropped++
			continue
		}
		h.kept = append(h.kept, bytes.Clone(f))
		h.bytes += len(f) + sdk.HoldOverhead
	}
	h.resume = resume
	return true
}

func (h *holder) Dropped(frames int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropped += frames
}

// release makes room.
func (h *holder) release() {
	h.mu.Lock()
	h.full = false
	h.Take(h.kept)
	h.kept, h.bytes = nil, 0
	resume := h.resume
	h.mu.Unlock()
	if resume != nil {
		resume()
	}
}

func (h *holder) counts() (offers, dropped int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.offers, h.dropped
}

// held is one end whose peer's handler is full.
type held struct {
	*side         // the sending end
	at    *holder // the full one
	peer  *side   // its endpoint
}

// hold connects two nodes, and fills the one that b's handler has no room for,
// until its peer may send no more.
func hold(t *testing.T, a, b *node, generation uint64, frames int) *held {
	t.Helper()
	ra, hb := rigtest.NewRecorder(t), newHolder(t)
	ea, eb := rigtest.ConnectOver(t, a.Node, b.Node, rigtest.Target(a.Node, b.Node, generation), ra, hb)
	h := &held{newSide(ea, ra), hb, newSide(eb, hb.Recorder)}
	for i := range frames {
		must(t, h.Try(fmt.Appendf(nil, "%06d", i)))
	}
	return h
}

// stopped waits until the peer may send no more and has no word of what it
// sent outstanding.
func (h *held) stopped(t *testing.T) {
	t.Helper()
	until(t, "the grants to run out", func() bool {
		h.e.mu.Lock()
		defer h.e.mu.Unlock()
		return h.e.posted == 0 && (h.e.queue.n == 0 || h.e.sent == h.e.edge)
	})
}

// inOrder wants what came in order.
func inOrder(t *testing.T, frames [][]byte) {
	t.Helper()
	for i := 1; i < len(frames); i++ {
		if bytes.Compare(frames[i-1], frames[i]) >= 0 {
			t.Fatalf("%s came before %s", frames[i-1], frames[i])
		}
	}
}

// A handler has no room: its endpoint is held and keeps the buffers that its
// peer has filled, while its own outcomes and other endpoints go on.
func TestAHeldEndpointHoldsNothingElse(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, patient), f.node(t, patient)
	h := hold(t, a, b, 1, maxOpen)
	h.stopped(t)
	h.e.mu.Lock()
	left := h.e.queue.n
	h.e.mu.Unlock()
	if left == 0 {
		t.Fatal("the peer was never stopped")
	}
	x, y := join(t, a, b, 2)
	talk(t, x, y, 300)
	for range 20 {
		must(t, h.peer.Send([]byte("from the held end")))
	}
	h.peer.WaitDone(20)
	if offers, dropped := h.at.counts(); offers != 1 || dropped != 0 {
		t.Errorf("%d offers while it is held, %d frames dropped", offers, dropped)
	}
	h.at.release()
	h.WaitDone(h.Sent())
	inOrder(t, h.at.WaitReceived(h.Sent()))
	x.Close()
	h.Close()
	y.WaitEnded()
	h.at.WaitEnded()
	idle(t, b.device("sim0"))
}

// However many endpoints are held, others find buffers: of a few nothing is
// lost, of many what finds the reserve being used.
func TestManyHeldEndpointsLeaveBuffers(t *testing.T) {
	for _, c := range []struct {
		held, frames int
		drops        bool
	}{{20, 40, false}, {100, 4, true}} {
		f := newFabric(t)
		a, b := f.node(t, patient), f.node(t, patient)
		var hs []*held
		for i := range c.held {
			hs = append(hs, hold(t, a, b, uint64(i+1), c.frames))
			hs[i].stopped(t)
			until(t, "the hold", func() bool { offers, _ := hs[i].at.counts(); return offers == 1 })
		}
		// A second helping: what was taken with the first offer is granted anew.
		for _, h := range hs {
			for i := range 4 {
				must(t, h.Try(fmt.Appendf(nil, "%06d", c.frames+i)))
			}
			h.stopped(t)
		}
		d := b.device("sim0")
		until(t, "the reserve", func() bool { return d.receives.left.Load() >= int64(d.receives.n/reserve) })
		x, y := join(t, a, b, uint64(c.held+1))
		talk(t, x, y, 300)
		dropped := 0
		for _, h := range hs {
			h.at.release()
		}
		for _, h := range hs {
			h.WaitDone(h.Sent())
			var received, lost int
			until(t, "everything", func() bool {
				received, _, _ = h.at.Counts()
				_, lost = h.at.counts()
				return received+lost == h.Sent()
			})
			dropped += lost
			inOrder(t, h.at.WaitReceived(received))
			// Its peer is granted as much as before.
			talk(t, h.side, h.peer, 20)
		}
		t.Logf("%d endpoints were held, %d frames dropped", c.held, dropped)
		if (dropped > 0) != c.drops {
			t.Errorf("%d endpoints were held and %d frames dropped", c.held, dropped)
		}
	}
}

// What landed before the peer ended reaches a handler that had no room, before
// the end.
func TestAHeldEndpointsPeerEnds(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, patient), f.node(t, patient)
	h := hold(t, a, b, 1, 40)
	h.stopped(t)
	h.Close()
	h.WaitEnded()
	_, done, _ := h.Counts()
	until(t, "the end here", func() bool {
		h.peer.e.mu.Lock()
		defer h.peer.e.mu.Unlock()
		return h.peer.e.broken && h.peer.e.posted == 0
	})
	h.at.release()
	if err := h.at.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable {
		t.Errorf("ended with %v", err)
	}
	if received, _, _ := h.at.Counts(); received < done || done == 0 {
		t.Errorf("%d frames came of %d that are done", received, done)
	}
	if offers, _ := h.at.counts(); offers != 1 {
		t.Errorf("%d offers while it was held", offers)
	}
	idle(t, b.device("sim0"))
}

// A hold delays neither this side's own end nor the transport's, also not if
// the peer has ended before.
func TestEndsDuringAHold(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, patient), f.node(t, patient)
	own, peers := hold(t, a, b, 1, 40), hold(t, a, b, 2, 40)
	own.stopped(t)
	peers.stopped(t)
	own.peer.Close()
	if err := own.at.WaitEnded(); sdk.CodeOf(err) != sdk.Closed {
		t.Errorf("ended with %v", err)
	}
	peers.Close()
	peers.WaitEnded()
	until(t, "its peer to know", func() bool {
		peers.peer.e.mu.Lock()
		defer peers.peer.e.mu.Unlock()
		return peers.peer.e.cause != nil
	})
	ctx, cancel := context.WithTimeout(rigtest.Context(t), rigtest.Patience/2)
	defer cancel()
	must(t, b.Close(ctx))
	if err := peers.at.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable {
		t.Errorf("ended with %v", err)
	}
}

func TestResumeWakesAnEndpoint(t *testing.T) {
	e := &endpoint{wake: make(chan struct{}, 1)}
	e.held.Store(true)
	e.resume()
	if len(e.wake) != 1 || !e.mayHandOver() {
		t.Errorf("%d wakes, may hand over: %v", len(e.wake), e.mayHandOver())
	}
}

// As much is offered at a time as the handler keeps whole.
func TestOffersAreBounded(t *testing.T) {
	small, large := make([]byte, 1000), make([]byte, maxFrame)
	for _, c := range []struct {
		frames [][]byte
		want   int
	}{
		{[][]byte{large}, 1}, {[][]byte{large, large, large}, 1}, {[][]byte{large, small, large}, 2},
		{slices.Repeat([][]byte{small}, 200), 128}, {slices.Repeat([][]byte{small}, 100), 100},
		{[][]byte{make([]byte, sdk.OfferBytes), small}, 1},
	} {
		if got := offerable(c.frames); got != c.want {
			t.Errorf("%d frames of %d bytes and more: %d are offered, want %d", len(c.frames), len(c.frames[0]), got, c.want)
		}
	}
}
