package outbox

import (
	"math"
	"testing"
	"time"
)

func TestAckTimeoutAdapts(t *testing.T) {
	trip := func(f *fixture, d time.Duration) {
		e := f.sent(1)[0]
		f.pass(d)
		f.ack(e.Seq())
	}
	f := newFixture(t)
	if f.AckTimeout() != time.Second {
		t.Errorf("at first %v", f.AckTimeout())
	}
	trip(f, 100*ms)
	if got := f.AckTimeout(); got != 300*ms { // 100 + 4*50
		t.Errorf("after the first sample %v", got)
	}
	for range 100 {
		trip(f, 100*ms)
	}
	if got := f.AckTimeout(); got != minRTO {
		t.Errorf("steady at 100 ms: %v", got)
	}
	for range 100 {
		trip(f, 5*time.Second)
	}
	if got := f.AckTimeout(); got != time.Second {
		t.Errorf("never above the configured value: %v", got)
	}
	g := newFixture(t)
	for range 20 {
		trip(g, 0)
	}
	if got := g.AckTimeout(); got != minRTO {
		t.Errorf("round trips of no time: %v", got)
	}
	if b := New(50 * ms); b.AckTimeout() != 50*ms {
		t.Errorf("configured below the least: %v", b.AckTimeout())
	}
}

// Of an entry that was sent twice nobody knows which copy is acked.
func TestOnlySingleCopiesAreSamples(t *testing.T) {
	f := newFixture(t)
	e := f.sent(1)[0]
	f.pass(900 * ms)
	f.Unknown(e, 1)
	f.send(1, 1)
	f.pass(10 * ms)
	f.ack(1)
	if f.rto.srtt != 0 || !f.lanes[1].AckedAt.IsZero() {
		t.Errorf("a sample of %v", f.rto.srtt)
	}
	f.sent(1)
	f.pass(10 * ms)
	f.ack(2)
	if f.rto.srtt != 10*ms || !f.lanes[0].AckedAt.Equal(f.now) {
		t.Errorf("a sample of %v", f.rto.srtt)
	}
}

func TestTimeouts(t *testing.T) {
	f := newFixture(t)
	es := f.sent(2)
	f.pass(500 * ms)
	f.add(1)
	f.send(1, 1)
	f.pass(500*ms - 1)
	if late := f.Timeouts(f.now); late != nil {
		t.Errorf("early: %v", late)
	}
	f.pass(1)
	if late := f.Timeouts(f.now); len(late) != 1 || late[f.lanes[0]].Entries != 2 {
		t.Errorf("late %v", late)
	}
	if es[0].Avoid != "a" || es[1].Avoid != "a" {
		t.Error("the lane that did not answer is not avoided")
	}
	f.want("resent", f.send(9, 1), "1 2 ")
	f.pass(500 * ms)
	if late := f.Timeouts(f.now); late[f.lanes[1]].Entries != 1 {
		t.Errorf("the other lane's: %v", late)
	}
	check(t, f.Box)
}

func TestAckTimeoutBacksOffWhileNothingIsAcked(t *testing.T) {
	f := newFixture(t)
	f.sent(1)
	f.pass(ms)
	f.ack(1)
	f.sent(2)
	for _, want := range []time.Duration{200, 400, 800, 1000, 1000, 1000, 1000, 1000} {
		if got := f.AckTimeout(); got != want*ms {
			t.Fatalf("timeout %v, want %v", got, want*ms)
		}
		f.pass(want*ms - 1)
		if f.Timeouts(f.now) != nil {
			t.Fatalf("late before %v", want*ms)
		}
		f.pass(1)
		if late := f.Timeouts(f.now); late[f.lanes[0]].Entries != 2 {
			t.Fatalf("late %v after %v", late, want*ms)
		}
		f.send(2, 0)
	}
	f.ack(1) // resolves nothing
	if f.AckTimeout() != time.Second {
		t.Errorf("an ack of nothing new ends the backoff: %v", f.AckTimeout())
	}
	f.ack(2)
	if f.AckTimeout() != 200*ms {
		t.Errorf("after progress %v", f.AckTimeout())
	}
}

func TestRearm(t *testing.T) {
	f := newFixture(t)
	f.sent(2)
	f.pass(time.Hour) // this process did not run
	f.Rearm(f.now)
	if f.Timeouts(f.now.Add(time.Second-1)) != nil {
		t.Error("late although it was rearmed")
	}
	if late := f.Timeouts(f.now.Add(time.Second)); late[f.lanes[0]].Entries != 2 {
		t.Errorf("late %v", late)
	}
	check(t, f.Box)
}

// credits returns when requests for room go out within a time, in ms from now.
func (f *fixture) credits(within time.Duration) (at []int) {
	start := f.now
	f.CreditDue(f.now)
	for f.pass(ms); f.now.Sub(start) <= within; f.pass(ms) {
		if f.CreditDue(f.now) {
			at = append(at, int(f.now.Sub(start)/ms))
		}
	}
	return at
}

func TestCreditIsNeeded(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(f *fixture)
		want bool
	}{
		{"nothing to do", func(*fixture) {}, false},
		{"something waits and may go", func(f *fixture) { f.add(1) }, false},
		{"everything is under way", func(f *fixture) { f.sent(3) }, false},
		{"everything is acked", func(f *fixture) { f.sent(3); f.ackRoom(3, 0, 3) }, false},
		{"the next number is beyond the limit", func(f *fixture) { f.sent(3); f.ackRoom(3, 9, 3); f.add(1) }, true},
		{"no bytes at all", func(f *fixture) { f.sent(3); f.ackRoom(9, 0, 3); f.add(1) }, true},
		{"the lowest unresolved number is beyond the limit", func(f *fixture) { f.sent(3); f.ackRoom(1, 9, 1) }, true},
		{"the same after a deadline", func(f *fixture) {
			f.sent(1)
			f.pass(time.Second)
			f.sent(2)
			f.ackRoom(1, 9, 0)
			f.Expire(f.now.Add(59 * time.Second))
		}, true},
		{"first copies are held back by the limit", func(f *fixture) { f.sent(3); f.ackRoom(3, 999, 1); f.add(1) }, true},
		{"first copies are held back by bytes", func(f *fixture) { f.sent(3); f.ackRoom(9, 200, 1); f.add(1) }, true},
		{"first copies are held back by the span", func(f *fixture) { f.sent(Span); f.add(1) }, false},
		{"a resend is held back", func(f *fixture) {
			es := f.sent(3)
			f.ackRoom(2, 999, 1)
			f.Unknown(es[2], 1)
		}, true},
		{"a resend may go", func(f *fixture) { es := f.sent(3); f.Unknown(es[2], 1) }, false},
		{"the receiver does not know the floor", func(f *fixture) { f.sent(3); f.ack(1); f.Expire(f.now.Add(time.Hour)) }, true},
		{"it travels with what waits", func(f *fixture) {
			f.sent(3)
			f.Expire(f.now.Add(time.Hour))
			f.add(1)
		}, false},
		{"the receiver knows the floor", func(f *fixture) { f.sent(3); f.Expire(f.now.Add(time.Hour)); f.ack(3) }, false},
		{"no session", func(f *fixture) { f.sent(3); f.Expire(f.now.Add(time.Hour)); f.CloseSession() }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			c.do(f)
			if got := len(f.credits(3*time.Second)) > 0; got != c.want {
				t.Errorf("asks for room: %v", got)
			}
		})
	}
}

// Every ack timeout, backed off to a second, and anew once it was in order.
func TestCreditIsPaced(t *testing.T) {
	f := newFixture(t)
	f.sent(1)
	f.pass(ms)
	f.ackRoom(1, math.MaxUint64, 1) // the ack timeout is 200 ms now
	f.add(1)
	want := []int{200, 600, 1400, 2400, 3400}
	equal := func(got []int) bool {
		for i := range got {
			if got[i] != want[i] {
				return false
			}
		}
		return len(got) == len(want)
	}
	if got := f.credits(4 * time.Second); !equal(got) {
		t.Errorf("asks after %v, want %v", got, want)
	}
	f.ackRoom(2, math.MaxUint64, 1)
	if f.CreditDue(f.now) {
		t.Error("asks although there is room")
	}
	f.ackRoom(1, math.MaxUint64, 1)
	if got := f.credits(4 * time.Second); !equal(got) {
		t.Errorf("later: asks after %v, want %v", got, want)
	}
	g := New(3 * time.Second)
	g.Open(1, 0, 0)
	g.Add(&Entry{Deadline: f.now.Add(time.Hour)})
	g.CreditDue(f.now)
	if g.CreditDue(f.now.Add(time.Second-1)) || !g.CreditDue(f.now.Add(time.Second)) {
		t.Error("an ack timeout of 3 s: not asked after a second")
	}
}

// The floor travels until the receiver's cumulative ack has reached it.
func TestFloorIsRepeatedUntilItArrived(t *testing.T) {
	f := newFixture(t)
	f.sent(5)
	f.Expire(f.now.Add(time.Hour))
	if n := len(f.credits(10 * time.Second)); n != 10 {
		t.Errorf("%d requests in 10 s", n)
	}
	f.ack(4)
	if n := len(f.credits(10 * time.Second)); n != 10 {
		t.Errorf("%d requests while the ack is below the floor", n)
	}
	f.ack(5)
	if n := len(f.credits(10 * time.Second)); n != 0 || !f.Due().IsZero() {
		t.Errorf("%d requests after it arrived; due %v", n, f.Due())
	}
	f.CloseSession()
	f.Open(8, math.MaxUint64, math.MaxUint64)
	f.sent(2)
	f.Expire(f.now.Add(time.Hour))
	if n := len(f.credits(10 * time.Second)); n != 10 {
		t.Errorf("%d requests in the next session", n)
	}
}

func TestDue(t *testing.T) {
	f := newFixture(t)
	start := f.now
	due := func(what string, want time.Duration) {
		t.Helper()
		f.CreditDue(f.now)
		if got := f.Due(); want == 0 && !got.IsZero() || want != 0 && !got.Equal(start.Add(want)) {
			t.Errorf("%s: due at %v, want %v", what, got.Sub(start), want)
		}
	}
	due("empty", 0)
	f.add(2) // with a minute each
	due("waiting", time.Minute)
	f.send(1, 0)
	due("sent", time.Second)
	f.pass(100 * ms)
	f.send(1, 1)
	due("sent on both lanes", time.Second)
	f.ack(1) // the timeout is 300 ms now, from 100 ms on
	due("the second lane's", 400*ms)
	f.ackRoom(1, 0, 1)
	due("room 0", 400*ms)
	f.ack(2)
	due("all acked", 0)
}

// What was acked of the same lane later shows that the way works: the overdue
// one goes there again, as after a drop in a queue that is full, and is nobody's
// fault.
func TestALateEntryOfAWorkingLaneStays(t *testing.T) {
	f := newFixture(t)
	f.sent(3)
	f.ack(0, 3)
	f.pass(time.Second)
	late := f.Timeouts(f.now)[f.lanes[0]]
	if late.Entries != 2 || !late.Since.IsZero() {
		t.Errorf("%+v, want two entries and no suspicion", late)
	}
	for e := f.resend.head; e != nil; e = e.next {
		if e.Avoid != nil {
			t.Errorf("number %d avoids a lane that works", e.Seq())
		}
	}
}

func TestTakeUnsentAndResendAll(t *testing.T) {
	f := newFixture(t)
	f.sent(3)
	e := f.lanes[0].list.head
	f.Box.NotPosted(e, e.Copies())
	if got := f.TakeUnsent(); len(got) != 1 || got[0] != e {
		t.Errorf("took %d, want the one that never left", len(got))
	}
	f.ResendAll()
	if f.lanes[0].Len() != 0 || f.resend.n != 2 {
		t.Errorf("%d are left as sent, %d go again", f.lanes[0].Len(), f.resend.n)
	}
	check(t, f.Box)
}
