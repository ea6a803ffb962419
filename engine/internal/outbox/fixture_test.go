package outbox

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/frame"
)

const ms = time.Millisecond

// fixture is a box with a clock and some lanes.
type fixture struct {
	*Box
	t     testing.TB
	now   time.Time
	lanes []*Lane
	acks  uint64
}

// newFixture returns an open box with ample room and two lanes, owned by "a"
// and "b".
func newFixture(t testing.TB) *fixture {
	f := &fixture{Box: New(time.Second), t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	f.lanes = []*Lane{f.NewLane("a"), f.NewLane("b")}
	f.Open(7, math.MaxUint64, math.MaxUint64)
	return f
}

func (f *fixture) add(n int) (es []*Entry) {
	for range n {
		e := &Entry{Frame: make([]byte, 100), Deadline: f.now.Add(time.Minute)}
		f.Add(e)
		es = append(es, e)
	}
	return es
}

// send gives what can be sent, at most n, to a lane.
func (f *fixture) send(n, lane int) (es []*Entry) {
	for len(es) < n {
		e := f.Head()
		if e == nil {
			break
		}
		f.Posted(e, f.lanes[lane], f.now)
		es = append(es, e)
	}
	return es
}

// sent adds and sends n entries over lane a.
func (f *fixture) sent(n int) []*Entry {
	f.t.Helper()
	es := f.add(n)
	if got := f.send(n, 0); len(got) != n {
		f.t.Fatalf("%d of %d were sent", len(got), n)
	}
	return es
}

// ack is the receiver's next ack, with ample room.
func (f *fixture) ack(cum uint64, more ...uint64) []*Entry {
	return f.ackRoom(math.MaxUint64, math.MaxUint64, cum, more...)
}

func (f *fixture) ackRoom(seq, bytes, cum uint64, more ...uint64) []*Entry {
	f.acks++
	a := frame.Ack{Cumulative: cum, RoomSeq: seq, RoomBytes: bytes}
	for _, m := range more {
		a.Ranges = append(a.Ranges, frame.Range{First: m, Last: m})
	}
	return f.Ack(f.acks, a, f.now, nil)
}

func (f *fixture) pass(d time.Duration) { f.now = f.now.Add(d) }

// seqs are the numbers of entries.
func seqs(es []*Entry) string {
	s := ""
	for _, e := range es {
		s += fmt.Sprintf("%d ", e.seq)
	}
	return s
}

func (f *fixture) want(what string, es []*Entry, want string) {
	f.t.Helper()
	if got := seqs(es); got != want {
		f.t.Errorf("%s: numbers %q, want %q", what, got, want)
	}
}

// check tests what always holds.
func check(t interface{ Fatalf(string, ...any) }, b *Box) {
	in := map[*Entry]bool{}
	walk := func(l *list, p place, each func(prev, e *Entry)) {
		n := 0
		var prev *Entry
		for e := l.head; e != nil; prev, e = e, e.next {
			if e.prev != prev || e.where != p || in[e] {
				t.Fatalf("entry %d: in the wrong list, or in two", e.seq)
			}
			in[e] = true
			n++
			each(prev, e)
		}
		if l.tail != prev || l.n != n {
			t.Fatalf("a list of %d says that it has %d", n, l.n)
		}
	}
	walk(&b.waiting, waiting, func(_, e *Entry) {
		if e.seq != 0 || e.copies != 0 {
			t.Fatalf("entry %d waits for its first copy", e.seq)
		}
	})
	walk(&b.resend, resend, func(prev, e *Entry) {
		if prev != nil && prev.seq >= e.seq {
			t.Fatalf("entry %d is to be resent after %d", e.seq, prev.seq)
		}
	})
	for _, l := range b.lanes {
		walk(&l.list, sent, func(prev, e *Entry) {
			if e.lane != l || prev != nil && (prev.order >= e.order || prev.sentAt.After(e.sentAt)) {
				t.Fatalf("entry %d is out of its order of sending", e.seq)
			}
		})
	}
	timed := timed(b)
	if len(in) != b.deadlines.n || len(in) != len(timed) {
		t.Fatalf("%d entries in lists, %d with deadlines, %d counted", len(in), len(timed), b.deadlines.n)
	}
	for i, e := range b.deadlines.others {
		if e.heap != i || i > 0 && e.Deadline.Before(b.deadlines.others[(i-1)/2].Deadline) {
			t.Fatalf("entry %d: the deadlines out of order are no heap", e.seq)
		}
	}
	for e := b.deadlines.head; e != nil; e = e.later {
		if e.heap != inOrder || e.later != nil && (e.later.earlier != e || e.later.Deadline.Before(e.Deadline)) {
			t.Fatalf("entry %d: the deadlines in order are not", e.seq)
		}
	}
	low, size, bytes, numbered := b.next, 0, uint64(0), 0
	for _, e := range timed {
		if !in[e] {
			t.Fatalf("entry %d has a deadline and is in no list", e.seq)
		}
		size += Cost(len(e.Frame))
		if e.seq != 0 {
			low = min(low, e.seq)
			bytes += uint64(len(e.Frame))
			numbered++
			if e.seq >= b.next || b.at(e.seq) != e {
				t.Fatalf("number %d is not in the ring", e.seq)
			}
		}
	}
	for _, e := range b.ring {
		if e != nil {
			numbered--
		}
	}
	if low != b.low || size != b.size || bytes != b.bytes || numbered != 0 {
		t.Fatalf("floor %d size %d bytes %d, want %d %d %d; the ring is off by %d", b.low, b.size, b.bytes, low, size, bytes, numbered)
	}
	if b.next-b.low > Span || b.next-b.low > uint64(len(b.ring)) {
		t.Fatalf("a span of %d with a ring of %d", b.next-b.low, len(b.ring))
	}
}

// timed is every entry that has a deadline.
func timed(b *Box) []*Entry {
	all := append([]*Entry(nil), b.deadlines.others...)
	for e := b.deadlines.head; e != nil; e = e.later {
		all = append(all, e)
	}
	return all
}
