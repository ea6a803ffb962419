package outbox

import (
	"math"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/frame"
)

func TestNumbersAreDrawnWhenPosted(t *testing.T) {
	f := newFixture(t)
	es := f.add(3)
	f.Remove(es[0]) // never sent: it must leave no hole
	if es[1].Seq() != 0 || f.Unresolved() != 0 || f.Floor() != 1 {
		t.Errorf("number %d before the first copy", es[1].Seq())
	}
	f.want("sent", f.send(9, 0), "1 2 ")
	if f.Floor() != 1 || f.Unresolved() != 2 {
		t.Errorf("floor %d", f.Floor())
	}
	check(t, f.Box)
}

func TestNothingIsSentWithoutASession(t *testing.T) {
	f := newFixture(t)
	f.add(1)
	f.CloseSession()
	if f.Head() != nil || f.CreditDue(f.now) || f.Session() != 0 {
		t.Error("a box without a session sends")
	}
	f.Open(8, 0, 1)
	if f.Head() != nil {
		t.Error("a session without room sends")
	}
}

func TestSpanBoundsFirstCopies(t *testing.T) {
	f := newFixture(t)
	es := f.add(Span + 2)
	if n := len(f.send(Span+2, 0)); n != Span {
		t.Fatalf("%d first copies, want %d", n, Span)
	}
	var rest []uint64
	for seq := uint64(2); seq <= Span; seq++ {
		rest = append(rest, seq)
	}
	f.ack(0, rest...)
	if f.Unresolved() != 1 || f.Head() != nil && f.Head().Seq() == 0 {
		t.Fatalf("%d unresolved: the bound is on the span, not on the count", f.Unresolved())
	}
	f.Unknown(es[0], 1)
	f.want("a resend is not bound", f.send(9, 1), "1 ")
	f.ack(Span)
	if n := len(f.send(9, 0)); n != 2 || es[Span].Seq() != Span+1 {
		t.Errorf("%d more after the lowest was resolved", n)
	}
	check(t, f.Box)
}

func TestRingGrowsAndKeepsItsEntries(t *testing.T) {
	f := newFixture(t)
	es := f.add(3000)
	f.send(20, 0)
	f.ack(15)
	f.send(3000, 0)
	check(t, f.Box)
	for i, e := range es[15:] {
		if f.at(uint64(i+16)) != e {
			t.Fatalf("number %d is lost", i+16)
		}
	}
	f.ack(3000)
	if f.Len() != 0 || f.Size() != 0 || f.Floor() != 3001 {
		t.Errorf("%d entries left", f.Len())
	}
}

func TestRoomHoldsBackEveryCopy(t *testing.T) {
	f := newFixture(t)
	f.Open(7, 3, math.MaxUint64)
	es := f.add(5)
	f.want("within the limit", f.send(9, 0), "1 2 3 ")
	f.ackRoom(2, math.MaxUint64, 0)
	for _, e := range es[:3] {
		f.Unknown(e, 1)
	}
	f.want("resent within a shrunken limit", f.send(9, 0), "1 2 ")
	f.ackRoom(4, math.MaxUint64, 0)
	f.want("when it grows", f.send(9, 0), "3 4 ")
	check(t, f.Box)
}

func TestBytesHoldBackFirstCopiesOnly(t *testing.T) {
	f := newFixture(t)
	f.Open(7, 100, 150)
	es := f.add(4) // of 100 bytes each
	// A frame may go while the bytes counted are below the bound.
	f.want("first copies", f.send(9, 0), "1 2 ")
	f.ackRoom(100, 0, 0)
	f.Unknown(es[0], 1)
	f.want("resent", f.send(9, 0), "1 ")
	f.ackRoom(100, 1, 2)
	f.want("one frame of any size fits", f.send(9, 0), "3 ")
	check(t, f.Box)
}

func TestRoomComesFromTheHighestAckOnly(t *testing.T) {
	f := newFixture(t)
	f.sent(4)
	room := func(number, seq uint64, a frame.Ack) {
		a.RoomSeq, a.RoomBytes = seq, 1<<20
		f.Ack(number, a, f.now, nil)
	}
	room(5, 10, frame.Ack{Cumulative: 1})
	// An older one that comes later: what it acknowledges counts.
	room(4, 99, frame.Ack{Cumulative: 2, Ranges: []frame.Range{{First: 4, Last: 4}}})
	if f.roomSeq != 10 || f.Unresolved() != 1 {
		t.Errorf("room up to %d, %d unresolved", f.roomSeq, f.Unresolved())
	}
	room(5, 99, frame.Ack{})
	if f.roomSeq != 10 {
		t.Errorf("the same number once more changes the room")
	}
	room(6, 7, frame.Ack{})
	if f.roomSeq != 7 {
		t.Errorf("room %d: a limit may shrink", f.roomSeq)
	}
	f.CloseSession()
	f.Open(8, 1, 1)
	f.sent(1)
	room(1, 3, frame.Ack{})
	if f.roomSeq != 3 {
		t.Errorf("room %d: numbers of acks begin anew with the session", f.roomSeq)
	}
}

// A drop for want of room is acked with room 0; what was under way then is
// sent again at once when room returns, over the same lane if it can be.
func TestRoomReturns(t *testing.T) {
	f := newFixture(t)
	es := f.sent(5)
	f.want("acked", f.ackRoom(2, 0, 2), "1 2 ")
	if f.Head() != nil {
		t.Fatal("sent without room")
	}
	f.ackRoom(4, math.MaxUint64, 2)
	f.want("at once, as far as room goes", f.send(9, 0), "3 4 ")
	f.ackRoom(9, math.MaxUint64, 2)
	f.want("and the rest", f.send(9, 0), "5 ")
	for _, e := range es[2:] {
		if e.Avoid != nil {
			t.Errorf("number %d avoids %v: a drop is no reason to change path", e.Seq(), e.Avoid)
		}
	}
	check(t, f.Box)
}

// Not even after a long time.
func TestRoomZeroIsNoLoss(t *testing.T) {
	f := newFixture(t)
	f.sent(5)
	f.ackRoom(2, 0, 2)
	f.pass(59 * time.Second)
	if late := f.Timeouts(f.now); late != nil {
		t.Errorf("%v timed out", late)
	}
	f.ackRoom(5, math.MaxUint64, 2)
	f.want("when room returns", f.send(9, 0), "3 4 5 ")
}

// Shares shrink and grow all the time; that says nothing of what is under way.
func TestASmallerLimitIsNoLoss(t *testing.T) {
	f := newFixture(t)
	f.sent(5)
	f.ackRoom(3, math.MaxUint64, 2)
	f.ackRoom(9, math.MaxUint64, 2)
	if e := f.Head(); e != nil {
		t.Errorf("number %d is sent again", e.Seq())
	}
	// It waits for room once it is overdue, and is sent again when there is.
	f.ackRoom(3, math.MaxUint64, 2)
	f.pass(time.Second)
	if late := f.Timeouts(f.now); late[f.lanes[0]].Entries != 1 {
		t.Errorf("late %v, want the one within room", late)
	}
	f.want("within room", f.send(9, 1), "3 ")
	f.ackRoom(9, math.MaxUint64, 3)
	f.want("when room returns", f.send(9, 0), "4 5 ")
	check(t, f.Box)
}

func TestFastResend(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(f *fixture)
		want string
	}{
		{"two later ones are not enough", func(f *fixture) { f.sent(5); f.ack(0, 2, 3) }, ""},
		{"three are", func(f *fixture) { f.sent(5); f.ack(0, 2, 3, 4) }, "1 "},
		{"in several acks", func(f *fixture) { f.sent(5); f.ack(0, 4); f.ack(0, 3); f.ack(0, 2) }, "1 "},
		{"only what was sent before all three", func(f *fixture) { f.sent(6); f.ack(0, 2, 5, 6) }, "1 "},
		{"several lost ones", func(f *fixture) { f.sent(6); f.ack(0, 4, 5, 6) }, "1 2 3 "},
		{"earlier ones do not count", func(f *fixture) { f.sent(5); f.ack(3) }, ""},
		{"an ack that comes twice counts once", func(f *fixture) { f.sent(5); f.ack(0, 4); f.ack(0, 4); f.ack(0, 4) }, ""},
		{"other lanes do not count", func(f *fixture) {
			f.sent(1)
			f.add(3)
			f.send(3, 1)
			f.ack(0, 2, 3, 4)
		}, ""},
		{"order of sending counts, not of number", func(f *fixture) {
			es := f.sent(4)
			f.Unknown(es[0], 1)
			f.send(1, 0) // 1 again, now after 2, 3 and 4
			f.ack(0, 2, 3, 4)
		}, ""},
		{"a new copy starts anew", func(f *fixture) {
			f.sent(4)
			f.ack(0, 2, 3, 4)
			f.send(1, 0) // 1 again
			f.sent(3)    // 5, 6, 7
			f.ack(0, 5, 6)
		}, ""},
		{"and is counted", func(f *fixture) {
			f.sent(4)
			f.ack(0, 2, 3, 4)
			f.send(1, 0)
			f.sent(3)
			f.ack(0, 5, 6, 7)
		}, "1 "},
		{"copies of more than one say nothing", func(f *fixture) {
			es := f.sent(4)
			for _, e := range es[1:] {
				f.Unknown(e, 1)
			}
			f.send(3, 0) // 2, 3 and 4 again: which copy will be acked?
			f.ack(0, 2, 3, 4)
		}, ""},
		{"a new session's are later than all acked before", func(f *fixture) {
			f.sent(3)
			f.ack(3)
			f.CloseSession()
			f.Open(8, math.MaxUint64, math.MaxUint64)
			f.sent(2)
			f.ack(0)
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			c.do(f)
			f.want("resent", f.send(99, 1), c.want)
			check(t, f.Box)
		})
	}
}

// Entries lost beyond the limit neither go out nor hide those behind them.
func TestFastResendBeyondRoom(t *testing.T) {
	f := newFixture(t)
	es := f.sent(1)
	f.Unknown(es[0], 1)
	f.sent(0)
	f.add(5)
	f.want("sent", f.send(1, 1), "1 ")         // over lane b
	f.want("sent", f.send(9, 0), "2 3 4 5 6 ") // over lane a
	f.Unknown(es[0], 2)
	f.send(1, 0) // 1 again, over lane a, after 2..6
	f.add(4)
	f.want("sent", f.send(9, 0), "7 8 9 10 ")
	f.ackRoom(1, math.MaxUint64, 0, 8, 9, 10)
	f.want("resent within room", f.send(9, 1), "1 ")
	f.ackRoom(20, math.MaxUint64, 1)
	f.want("resent when room returns", f.send(9, 1), "2 3 4 5 6 7 ")
	check(t, f.Box)
}

// Waiting for room must not make an entry look as if it had been sent later.
func TestTimeoutBeyondRoomKeepsTheOrderOfSending(t *testing.T) {
	f := newFixture(t)
	f.sent(4)
	f.pass(500 * ms)
	f.add(1)
	f.send(1, 0) // 5, after all of them
	f.ackRoom(1, math.MaxUint64, 0)
	f.pass(500 * ms)
	f.Timeouts(f.now) // 1 is late; 2, 3 and 4 wait for room
	f.send(1, 1)
	f.ack(0, 2, 3, 4) // the first copies had arrived
	if e := f.Head(); e != nil {
		t.Errorf("number %d counts as lost", e.Seq())
	}
}

func TestHandover(t *testing.T) {
	f := newFixture(t)
	es := f.sent(4)
	f.add(2)
	f.send(2, 1)
	f.ack(0, 2)
	f.Unknown(es[2], 1) // waits to be resent already
	if n := f.Handover(f.lanes[0]); n != 2 {
		t.Errorf("%d handed over, want 2", n)
	}
	if n := f.Handover(f.lanes[0]); n != 0 {
		t.Errorf("%d handed over twice", n)
	}
	for _, e := range []*Entry{es[0], es[2], es[3]} {
		if e.Avoid != "a" {
			t.Errorf("number %d avoids %v", e.Seq(), e.Avoid)
		}
	}
	f.want("resent in order", f.send(9, 1), "1 3 4 ")
	if len(f.Box.lanes) != 1 || f.lanes[1].Len() != 5 {
		t.Errorf("%d lanes, %d on the other one", len(f.Box.lanes), f.lanes[1].Len())
	}
	check(t, f.Box)
}

func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		name     string
		do       func(f *fixture, e *Entry)
		resend   bool
		may      bool // have left
		afterAll bool // is still held
	}{
		{"never sent", func(*fixture, *Entry) {}, false, false, true},
		{"sent", func(f *fixture, _ *Entry) { f.send(1, 0) }, false, true, true},
		{"not posted", func(f *fixture, e *Entry) { f.send(1, 0); f.NotPosted(e, 1) }, true, false, true},
		{"unknown", func(f *fixture, e *Entry) { f.send(1, 0); f.Unknown(e, 1) }, true, true, true},
		{"not posted, then sent", func(f *fixture, e *Entry) { f.send(1, 0); f.NotPosted(e, 1); f.send(1, 1) }, false, true, true},
		{"not posted twice", func(f *fixture, e *Entry) {
			f.send(1, 0)
			f.NotPosted(e, 1)
			f.send(1, 1)
			f.NotPosted(e, 2)
		}, true, false, true},
		{"the first copy unknown, the second not posted", func(f *fixture, e *Entry) {
			f.send(1, 0)
			f.Unknown(e, 1)
			f.send(1, 1)
			f.NotPosted(e, 2)
		}, true, true, true},
		{"an old copy not posted, the last one under way", func(f *fixture, e *Entry) {
			f.send(1, 0)
			f.Timeouts(f.now.Add(time.Hour))
			f.send(1, 1)
			f.NotPosted(e, 1)
		}, false, true, true},
		{"both not posted, the old one last", func(f *fixture, e *Entry) {
			f.send(1, 0)
			f.Timeouts(f.now.Add(time.Hour))
			f.send(1, 1)
			f.NotPosted(e, 2)
			f.NotPosted(e, 1)
		}, true, false, true},
		{"an old copy unknown, the last one under way", func(f *fixture, e *Entry) {
			f.send(1, 0)
			f.Timeouts(f.now.Add(time.Hour))
			f.send(1, 1)
			f.Unknown(e, 1)
		}, false, true, true},
		{"not posted after a handover", func(f *fixture, e *Entry) {
			f.send(1, 0)
			f.Handover(f.lanes[0])
			f.NotPosted(e, 1)
		}, true, false, true},
		{"outcomes after the end", func(f *fixture, e *Entry) {
			f.send(1, 0)
			f.ack(1)
			f.NotPosted(e, 1)
			f.Unknown(e, 1)
			f.Remove(e)
		}, false, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			e := f.add(1)[0]
			c.do(f, e)
			if e.MayHaveLeft() != c.may {
				t.Errorf("may have left: %v", e.MayHaveLeft())
			}
			if again := e.where == resend; again != c.resend || (f.Len() == 1) != c.afterAll {
				t.Errorf("wants another copy: %v; %d held", again, f.Len())
			}
			check(t, f.Box)
		})
	}
}

func TestDeadlines(t *testing.T) {
	f := newFixture(t)
	var es []*Entry
	for i, d := range []time.Duration{3, 1, 2, 2, 5} {
		e := &Entry{Frame: make([]byte, i), Deadline: f.now.Add(d * time.Second)}
		f.Add(e)
		es = append(es, e)
	}
	f.send(3, 0)
	f.NotPosted(es[0], 1)
	if ended := f.Expire(f.now.Add(time.Second - 1)); ended != nil {
		t.Errorf("%d ended early", len(ended))
	}
	f.want("at its deadline", f.Expire(f.now.Add(time.Second)), "2 ")
	if ended := f.Expire(f.now.Add(2 * time.Second)); len(ended) != 2 || ended[0].Seq()+ended[1].Seq() != 3 {
		t.Errorf("two at once: numbers %s", seqs(ended))
	}
	if !es[1].MayHaveLeft() || es[3].MayHaveLeft() || es[0].MayHaveLeft() {
		t.Error("it is not told whether a copy may have left")
	}
	f.want("one that never left", f.Expire(f.now.Add(4*time.Second)), "1 ")
	if f.Floor() != 4 {
		t.Errorf("floor %d: what failed must leave no hole", f.Floor())
	}
	f.want("the next number", f.send(1, 0), "4 ")
	check(t, f.Box)
}

func TestCloseSessionKeepsWhatNeverLeft(t *testing.T) {
	f := newFixture(t)
	es := f.add(6)
	f.send(4, 0)
	f.NotPosted(es[0], 1)
	f.NotPosted(es[2], 1)
	f.send(1, 1) // es[0] again
	f.NotPosted(es[0], 2)
	ended := f.CloseSession()
	f.want("may have left", ended, "2 4 ")
	if f.Len() != 4 || f.Unresolved() != 0 || f.Session() != 0 {
		t.Errorf("%d kept, %d of them with a number", f.Len(), f.Unresolved())
	}
	check(t, f.Box)
	f.Open(8, 100, 1<<20)
	sent := f.send(9, 1)
	f.want("under the next session", sent, "1 2 3 4 ")
	for i, at := range []int{0, 2, 4, 5} {
		if sent[i] != es[at] {
			t.Errorf("place %d of the order is lost", i)
		}
		if !sent[i].MayHaveLeft() || sent[i].Copies() != 1 {
			t.Errorf("number %d begins with %d copies", sent[i].Seq(), sent[i].Copies())
		}
	}
	check(t, f.Box)
}

func TestTakeWaiting(t *testing.T) {
	f := newFixture(t)
	es := f.add(3)
	f.send(1, 0)
	if taken := f.TakeWaiting(); len(taken) != 2 || taken[0] != es[1] || taken[1] != es[2] || f.Len() != 1 {
		t.Errorf("took %d, %d left", len(taken), f.Len())
	}
	check(t, f.Box)
}

// What names a number that was never drawn is not about this box.
func TestNonsenseAcks(t *testing.T) {
	for _, c := range []struct {
		name string
		a    frame.Ack
	}{
		{"cumulative at the next number", frame.Ack{Cumulative: 4}},
		{"cumulative far beyond", frame.Ack{Cumulative: 1 << 20}},
		{"a range at the next number", frame.Ack{Ranges: []frame.Range{{First: 2, Last: 2}, {First: 4, Last: 4}}}},
		{"a range that reaches beyond", frame.Ack{Ranges: []frame.Range{{First: 2, Last: 1 << 20}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			f.Open(7, 50, 1<<20)
			f.sent(3)
			c.a.RoomSeq = 99
			if got := f.Ack(math.MaxUint64, c.a, f.now, nil); len(got) != 0 || f.roomSeq != 50 || f.ackSeq != 0 || f.acked != 0 {
				t.Errorf("resolves %s; room %d", seqs(got), f.roomSeq)
			}
			f.want("an ack that makes sense", f.ack(3), "1 2 3 ")
			check(t, f.Box)
		})
	}
}

func TestAckReusesItsBuffer(t *testing.T) {
	f := newFixture(t)
	f.sent(8)
	buf := make([]*Entry, 3, 16)
	got := f.Ack(1, frame.Ack{Cumulative: 8, RoomSeq: 100, RoomBytes: 100}, f.now, buf)
	if len(got) != 8 || &got[0] != &buf[0] {
		t.Errorf("%d resolved", len(got))
	}
}

func BenchmarkPostedAndAcked(b *testing.B) {
	f := newFixture(b)
	const batch = 64
	es := make([]Entry, batch)
	payload := make([]byte, 128)
	buf := make([]*Entry, 0, batch)
	seq := uint64(0)
	b.ReportAllocs()
	for b.Loop() { // one iteration is a batch
		for i := range es {
			es[i] = Entry{Frame: payload, Deadline: f.now.Add(time.Minute)}
			f.Add(&es[i])
		}
		for e := f.Head(); e != nil; e = f.Head() {
			f.Posted(e, f.lanes[0], f.now)
			seq++
		}
		f.acks++
		if got := f.Ack(f.acks, frame.Ack{Cumulative: seq, RoomSeq: seq + 1000, RoomBytes: 1 << 20}, f.now, buf); len(got) != batch {
			b.Fatal(len(got))
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batch, "ns/notification")
}
