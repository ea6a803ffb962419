package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/frame"
	"github.com/hawser-transport/hawser/sdk"
)

// Guards that no other test misses; see test/mutants.

// theOnly returns an engine's one association.
func theOnly(t *testing.T, e *Engine) *association {
	t.Helper()
	all := e.directory.all()
	if len(all) != 1 {
		t.Fatalf("%d associations", len(all))
	}
	return all[0]
}

// An ack or a close of another session, or of another life, ends nothing.
func TestForeignAnswersCountForNothing(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		x := theOnly(t, a)
		w.fast.CutBoth("a:1", "b:1", "")
		w.slow.CutBoth("a:1", "b:1", "")
		d := w.notify(a, "b:1", "x")
		synctest.Wait()
		session, epoch := x.box.Session(), b.incarnation.Epoch()
		answer := func(h frame.Header) {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.answeredLocked(inAck{h, frame.Ack{Cumulative: h.Ack, RoomSeq: 9, RoomBytes: 9}.AppendPayload(nil)}, time.Now())
		}
		answer(frame.Header{Type: frame.CtrlAck, Session: session + 1, Epoch: epoch, Seq: 99, Ack: d.entry.Seq()})
		answer(frame.Header{Type: frame.CtrlAck, Session: session, Epoch: epoch + 1, Seq: 99, Ack: d.entry.Seq()})
		answer(frame.Header{Type: frame.SessionClose, Session: session + 1, Epoch: epoch})
		answer(frame.Header{Type: frame.SessionClose, Session: session, Epoch: epoch + 1})
		if d.Ended() != Pending || a.Stats().ForeignAcks != 4 {
			t.Errorf("%v: %v, %d foreign", d.Ended(), d.Err(), a.Stats().ForeignAcks)
		}
		w.fast.HealBoth("a:1", "b:1", "")
		w.slow.HealBoth("a:1", "b:1", "")
		w.within(d, 5*time.Second)
		w.expect(b, "x")
	})
}

func TestADuplicateIsAckedOverEveryPath(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		eps, session := w.connected(a, b)
		before := b.Stats().AcksSent
		eps["fast"].Received([][]byte{typed(b, session, 1, 1, Notification{Name: "hello"})})
		synctest.Wait()
		if n := b.Stats().AcksSent - before; n != 2 {
			t.Errorf("%d acks, want one over each of two paths", n)
		}
	})
}

func greeting(n byte, session, replaces uint64) control.HelloRequest {
	return control.HelloRequest{
		From:  control.Node{Name: "peer", Address: "peer:" + string('0'+rune(n)), Incarnation: Incarnation{n, 15: 1}, Started: time.Now()},
		Proto: 2, Session: session, Replaces: replaces,
	}
}

func TestAHelloReplacesOnlyWhatItNames(t *testing.T) {
	run(t, func(w *world) {
		a := w.open("a:1")
		defer w.shut(a)
		h := &answers{a, closedChan}
		for _, c := range []struct{ session, replaces, held uint64 }{
			{7, 0, 7}, {8, 0, 7}, {8, 9, 7}, {8, 7, 8}, {9, 7, 8},
		} {
			if r, err := h.Hello(context.Background(), greeting(1, c.session, c.replaces)); err != nil || r.Session != c.held {
				t.Errorf("session %d for %d: %d is held, want %d: %v", c.session, c.replaces, r.Session, c.held, err)
			}
		}
	})
}

// At the limit a newcomer is refused, and whoever is there stays.
func TestSessionsAreBounded(t *testing.T) {
	run(t, func(w *world) {
		w.configs["a:1"] = Config{Sessions: SessionsConfig{Max: 2}}
		a := w.open("a:1")
		defer w.shut(a)
		h := &answers{a, closedChan}
		for n := byte(1); n <= 3; n++ {
			if _, err := h.Hello(context.Background(), greeting(n, 7, 0)); errors.Is(err, Busy) != (n == 3) {
				t.Errorf("hello %d: %v", n, err)
			}
		}
		if r, err := h.Hello(context.Background(), greeting(1, 8, 7)); err != nil || r.Session != 8 || a.Stats().Sessions != 2 {
			t.Errorf("a replacement at the limit: %v, %d sessions", err, a.Stats().Sessions)
		}
	})
}

func TestAnOldGenerationIsRefused(t *testing.T) {
	for _, c := range []struct {
		p     path
		gen   uint64
		lower bool
		want  bool
	}{
		{path{generation: 5}, 6, false, true},
		{path{generation: 5}, 5, false, false},
		{path{generation: 5}, 5, true, false},
		{path{generation: 5}, 4, true, false},
		{path{generation: 5, own: 5}, 5, true, true},
		{path{generation: 5, own: 5}, 5, false, false},
		{path{generation: 5, own: 5, ep: &endpoint{generation: 5}}, 5, true, false},
	} {
		if got := c.p.supersededBy(c.gen, c.lower); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestRefusalsAreRare(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		eps, session := w.connected(a, b)
		before := a.Stats().ForeignAcks
		for range 50 {
			eps["fast"].Received([][]byte{typed(b, session+1, 2, 1, Notification{Name: "forged"})})
			time.Sleep(5 * time.Millisecond)
		}
		if n := a.Stats().ForeignAcks - before; n < 2 || n > 4 {
			t.Errorf("%d refusals in 250 ms", n)
		}
	})
}

func TestTheBudgetOfAllOutboxesHolds(t *testing.T) {
	b := newBudget(100)
	if !b.reserve(1000) {
		t.Error("something always fits an empty one")
	}
	if b.reserve(1) {
		t.Error("over the limit")
	}
	b.release(1000)
	if !b.reserve(60) || b.reserve(60) || !b.reserve(40) || b.used.Load() != 100 {
		t.Errorf("%d are used", b.used.Load())
	}
}

// A peer that is another life than the one that a bootstrap is for says so, and
// what was posted to the old one ends.
func TestAPeerThatRestartedAnswersTheBootstrap(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		x := theOnly(t, a)
		x.notConnected(x.order[0], &endpoint{a: x}, sdk.Errorf(sdk.PeerRestarted, "another incarnation is here"))
		x.mu.Lock()
		dead := x.dead
		x.mu.Unlock()
		if !errors.Is(dead, PeerRestarted) {
			t.Errorf("the association goes on: %v", dead)
		}
		w.within(w.notify(a, "b:1", "after"), time.Minute)
		w.expect(b, "after")
	})
}

func TestOneHelloServesAllCallers(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.network.Delay("a:1", "b:1", 50*time.Millisecond)
		for i := range 16 {
			w.notify(a, "b:1", fmt.Sprint(i))
		}
		time.Sleep(time.Millisecond)
		if n := w.network.Faults().Delayed; n != 1 {
			t.Errorf("%d calls are under way, want one hello", n)
		}
		time.Sleep(time.Second)
	})
}

// A transport without room is asked again in a moment, not at once.
func TestAFullTransportIsNotAskedAllTheTime(t *testing.T) {
	run(t, func(w *world) {
		var full atomic.Bool
		var asked atomic.Int64
		w.only("a:1", func(t sdk.Transport) sdk.Transport {
			h := hook(t)
			h.send = func(ep sdk.Endpoint, frames []sdk.Frame) (int, error) {
				if full.Load() {
					if asked.Add(1) > 1000 {
						full.Store(false) // a storm: fake time would stand still
					}
					return 0, sdk.Backpressure
				}
				return ep.Send(frames, false)
			}
			return h
		})
		w.only("b:1", plain)
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.within(w.notify(a, "b:1", "x"), time.Second)
		full.Store(true)
		d := w.notify(a, "b:1", "y")
		time.Sleep(100 * time.Millisecond)
		full.Store(false)
		w.within(d, time.Second)
		if n := asked.Load(); n < 2 || n > 60 {
			t.Errorf("asked %d times in 100 ms", n)
		}
	})
}

// A request for room that was due when its session ended is not sent.
func TestNoRequestForAnEndedSession(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		x := theOnly(t, a)
		x.mu.Lock()
		x.credit = true
		x.reopenLocked()
		x.pumpLocked()
		x.mu.Unlock()
		if n := a.stats.CreditRequests.Load(); n != 0 {
			t.Errorf("%d requests", n)
		}
		synctest.Wait()
		if n := b.Stats().UnknownSession; n != 0 {
			t.Errorf("%d frames of no session", n)
		}
	})
}
