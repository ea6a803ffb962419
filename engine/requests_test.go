package engine

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/frame"
	"github.com/hawser-transport/hawser/sdk"
)

// Guards of what is said beside notifications: requests, floors, acks.

// request is a request for room as a's association towards e's peer gets it.
func request(e *Engine, session, floor uint64) frame.Header {
	return frame.Header{Type: frame.CreditRequest, Flags: frame.NeedsAck, Session: session, Epoch: e.incarnation.Epoch(), Ack: floor}
}

func TestARequestIsAnsweredOverEveryPath(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		eps, session := w.connected(a, b)
		before := b.Stats().AcksSent
		eps["fast"].Received([][]byte{request(b, session, 2).Append(nil, nil)})
		synctest.Wait()
		if n := b.Stats().AcksSent - before; n != 2 {
			t.Errorf("%d acks, want one over each of two paths", n)
		}
	})
}

// Below the floor of a request nothing more is delivered.
func TestARequestsFloorCounts(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		eps, session := w.connected(a, b)
		eps["fast"].Received([][]byte{
			request(b, session, 10).Append(nil, nil),
			typed(b, session, 9, 9, Notification{Name: "below", Payload: []byte("payload of below")}),
			typed(b, session, 10, 10, Notification{Name: "at", Payload: []byte("payload of at")}),
		})
		w.expect(b, "at")
		if n := b.Stats().Duplicates; n != 1 {
			t.Errorf("%d duplicates, want 1", n)
		}
	})
}

func TestARequestHasNoBody(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		eps, session := w.connected(a, b)
		numbered := request(b, session, 2)
		numbered.Seq = 1
		before := b.Stats()
		eps["fast"].Received([][]byte{request(b, session, 2).Append(nil, []byte("x")), numbered.Append(nil, nil)})
		synctest.Wait()
		if s := b.Stats(); s.Malformed-before.Malformed != 2 || s.AcksSent != before.AcksSent {
			t.Errorf("%d malformed, %d acks", s.Malformed-before.Malformed, s.AcksSent-before.AcksSent)
		}
	})
}

func TestRequestsTakeAnotherPathEach(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		x := theOnly(t, a)
		x.mu.Lock()
		defer x.mu.Unlock()
		one, two, three := x.creditPathLocked(), x.creditPathLocked(), x.creditPathLocked()
		if one == nil || two == nil || one == two || one != three {
			t.Errorf("%v, %v, %v", one, two, three)
		}
	})
}

func TestAnAckThatWasNotTakenIsOwedAgain(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		eps, _ := w.connected(a, b)
		ep := eps["fast"]
		ep.a.mu.Lock()
		ep.notPosted(ep.postAck(), sdk.Backpressure)
		owed := len(ep.a.owed)
		ep.a.pumpLocked()
		ep.a.mu.Unlock()
		if owed != 1 {
			t.Errorf("%d acks are owed, want 1", owed)
		}
		before := b.Stats().AcksSent
		time.Sleep(10 * time.Millisecond)
		if n := b.Stats().AcksSent - before; n != 1 {
			t.Errorf("%d acks a moment later, want 1", n)
		}
	})
}

// A peer that agreed to a lower protocol and sends frames of a higher one all
// the same is not heard.
func TestStampsOnlyWhereAgreed(t *testing.T) {
	for proto := range 2 {
		t.Run(fmt.Sprint(proto), func(t *testing.T) {
			run(t, func(w *world) {
				w.offer("b:1", proto)
				a, b := w.open("a:1"), w.open("b:1")
				defer w.shut(a, b)
				eps, session := w.connected(a, b)
				frames := [][]byte{frame.Header{Type: frame.CreditRequest, Flags: frame.NeedsAck, Session: session, Ack: 2}.Append(nil, nil)}
				if proto == 0 {
					frames = append(frames, frame.Header{Type: frame.NotifyCompat, Session: session, Seq: 2}.
						Append(nil, frame.AppendRaw(nil, "x", []byte("payload of x"))))
				}
				eps["fast"].Received(frames)
				w.expect(b)
				if s := b.Stats(); s.Malformed != uint64(len(frames)) || s.AcksSent != 0 {
					t.Errorf("%d malformed, want %d, and %d acks", s.Malformed, len(frames), s.AcksSent)
				}
			})
		})
	}
}

// A peer that is back gets again what is pending, unless it could not tell a
// copy.
func TestAtProtocol0AReturnResendsNothing(t *testing.T) {
	for proto := range 2 {
		t.Run(fmt.Sprint(proto), func(t *testing.T) {
			run(t, func(w *world) {
				w.offer("b:1", proto)
				a, b := w.open("a:1"), w.open("b:1")
				defer w.shut(a, b)
				w.connected(a, b)
				w.fast.CutBoth("a:1", "b:1", "")
				w.notify(a, "b:1", "x")
				synctest.Wait()
				theOnly(t, a).cameBack()
				synctest.Wait()
				if n := a.Stats().Resent; n != uint64(proto) {
					t.Errorf("%d copies were sent again, want %d", n, proto)
				}
				w.fast.HealBoth("a:1", "b:1", "")
				w.expect(b, "x")
			})
		})
	}
}

func TestNothingIsOwedBelowProtocol2(t *testing.T) {
	for proto := range 3 {
		run(t, func(w *world) {
			w.offer("b:1", proto)
			a, b := w.open("a:1"), w.open("b:1")
			defer w.shut(a, b)
			eps, _ := w.connected(a, b)
			ep := eps["fast"]
			ep.a.mu.Lock()
			ep.oweLocked()
			owed := len(ep.a.owed) > 0
			ep.a.pumpLocked()
			ep.a.mu.Unlock()
			if owed != (proto == 2) {
				t.Errorf("protocol %d: an ack is owed: %v", proto, owed)
			}
		})
	}
}

// A stamp on rubbish is not taken in: its number is free for what it belongs to.
func TestRubbishWithAStampLeavesNoTrace(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		eps, session := w.connected(a, b)
		rubbish := typed(b, session, 2, 2, Notification{Name: "x"})
		rubbish = rubbish[:len(rubbish)-1]
		h, _, err := frame.Decode(typed(b, session, 2, 2, Notification{Name: "x"}))
		if err != nil {
			t.Fatal(err)
		}
		eps["fast"].Received([][]byte{h.Append(nil, rubbish[frame.HeaderSize:]), h.Append(nil, nil)})
		if n := b.Stats().Malformed; n != 2 {
			t.Errorf("%d malformed, want 2", n)
		}
		eps["fast"].Received([][]byte{typed(b, session, 2, 2, Notification{Name: "good", Payload: []byte("payload of good")})})
		w.expect(b, "good")
	})
}
