package outbox

import (
	"math"
	"testing"
	"time"
)

// Guards that no other test misses; see test/mutants.

// What is passed over for an entry that has to wait is within the room, too.
func TestAfterStaysWithinTheRoom(t *testing.T) {
	f := newFixture(t)
	es := f.sent(4)
	for _, e := range es {
		f.Unknown(e, 1)
	}
	f.roomSeq = 2
	if e := f.After(f.Head()); e != es[1] {
		t.Errorf("after 1 comes %v", e)
	}
	if e := f.After(es[1]); e != nil {
		t.Errorf("after 2, with room up to 2, comes %d", e.Seq())
	}
	f.roomSeq = math.MaxUint64
	first := f.add(1)[0]
	if e := f.After(es[3]); e != first {
		t.Errorf("after the last resend comes %v, want the first copy that waits", e)
	}
	check(t, f.Box)
}

// What may have left is not taken as unsent, even if it is to be sent again.
func TestTakeUnsentLeavesWhatMayHaveLeft(t *testing.T) {
	f := newFixture(t)
	es := f.sent(2)
	f.Unknown(es[0], 1)
	f.Box.NotPosted(es[1], 1)
	waits := f.add(1)[0]
	if got := f.TakeUnsent(); len(got) != 2 || got[0] != waits || got[1] != es[1] {
		t.Errorf("took %s", seqs(got))
	}
	if f.Len() != 1 || !es[0].Held() {
		t.Errorf("%d are left", f.Len())
	}
	check(t, f.Box)
}

// Where nothing is acked no ack is overdue.
func TestNothingIsOverdueWhereNothingIsAcked(t *testing.T) {
	f := newFixture(t)
	f.OpenUnacked(8)
	es := f.sent(2)
	if due := f.Due(); !due.Equal(es[0].Deadline) {
		t.Errorf("due %v, before the deadline", due)
	}
	f.pass(time.Hour)
	if late := f.Timeouts(f.now); late != nil || f.lanes[0].Len() != 2 {
		t.Errorf("%v is late, %d wait", late, f.lanes[0].Len())
	}
	if f.CreditDue(f.now) {
		t.Error("room is asked for")
	}
	check(t, f.Box)
}
