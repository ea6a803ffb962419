package health

import (
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// hole is an engine's part in a black hole, in steps of 100 ms: a frame each
// step goes over path a unless that is paused, and else over b; an ack that is
// overdue has the frame go over b. Nothing comes out of a.
type hole struct {
	peers *Peers
	paths *Paths

	answers, room, b bool // what works

	waiting   []float64 // when frames over a were sent
	otherAck  float64   // when one over b was acked last
	probe     float64   // when the probe under way ends
	pausedAt  float64
	viaA      int
	timeouts  int
	suspicion int // ack timeouts that counted
}

func (h *hole) run(until float64) {
	a := Key{sdk.Incarnation{1}, "rdma", "a"}
	for i := range int(until * 10) {
		s := float64(i) / 10
		now := at(s)
		for len(h.waiting) > 0 && h.waiting[0]+0.2 <= s {
			sent := h.waiting[0]
			h.waiting = h.waiting[1:]
			h.timeouts++
			h.peers.Ask("peer", now)
			f := Facts{
				PeerAnswers: h.peers.Answers("peer", at(sent)),
				HasRoom:     h.room,
				OtherAcked:  h.otherAck > sent,
			}
			if Blame(AckTimeout, f) {
				h.suspicion++
			}
			for _, e := range h.paths.Failed(a, Failure{Kind: AckTimeout, Facts: f, Began: at(sent)}, now) {
				if e.Kind == PathPaused && h.pausedAt == 0 {
					h.pausedAt = s
				}
			}
			if h.b {
				h.otherAck = s + 0.01
			}
		}
		h.step(s, now)
		if h.paths.PausedUntil(a, now).IsZero() {
			h.waiting = append(h.waiting, s)
			h.viaA++
		} else if h.b {
			h.otherAck = s + 0.01
		}
	}
}

// step is the prober.
func (h *hole) step(s float64, now time.Time) {
	if h.probe > 0 && h.probe <= s {
		o := Silent
		if h.answers {
			o = Answered
		}
		h.peers.Probed("peer", now, o)
		h.probe = 0
	}
	if due, _ := h.peers.Due(now); len(due) > 0 {
		h.probe = s + 0.1
		if !h.answers {
			h.probe = s + 2
		}
	}
}

func TestBlackHole(t *testing.T) {
	for _, c := range []struct {
		name                  string
		peerAnswers, room, b  bool
		wantPause, wantSilent bool
	}{
		{"frames vanish on one path", true, true, true, true, false},
		{"the peer is frozen", false, true, false, false, true},
		{"the control plane is silent, and data goes on", false, true, true, false, true},
		{"the receiver is full", true, false, true, false, false},
		{"frames vanish on every path", true, true, false, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &hole{peers: NewPeers(peerOptions()), paths: NewPaths(pathOptions()), answers: c.peerAnswers, room: c.room, b: c.b}
			h.run(60)
			if h.timeouts == 0 {
				t.Fatal("nothing vanished")
			}
			if got := h.pausedAt > 0; got != c.wantPause {
				t.Fatalf("paused at %v, after %d timeouts of which %d counted", h.pausedAt, h.timeouts, h.suspicion)
			}
			if got := h.peers.Marked("peer", at(60)); got != c.wantSilent {
				t.Fatalf("marked: %v", got)
			}
			if !c.wantPause {
				return
			}
			// A few rounds until the pause; after it one round, not three.
			if h.pausedAt > 10 {
				t.Fatalf("paused at %v", h.pausedAt)
			}
			p := h.paths.paths[Key{sdk.Incarnation{1}, "rdma", "a"}]
			if p.pauses != 2 || h.viaA > 100 {
				t.Fatalf("%d pauses, %d frames into the hole", p.pauses, h.viaA)
			}
		})
	}
}
