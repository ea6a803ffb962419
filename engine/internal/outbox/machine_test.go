package outbox

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hawser-transport/hawser/engine/internal/frame"
)

// copyOf is a copy that a transport has, and will report on once.
type copyOf struct {
	e      *Entry
	number int
}

// counted is what the test knows of an entry.
type counted struct{ given, never int }

// machine drives a box as an engine and a hostile world would, and checks
// every step against rules that do not look into the box.
type machine struct {
	b       *Box
	now     time.Time
	lanes   []*Lane
	out     []copyOf
	held    map[*Entry]*counted
	room    uint64
	bytes   uint64
	acks    uint64
	highest uint64 // number of an ack
}

func newMachine() *machine {
	m := &machine{b: New(time.Second), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), held: map[*Entry]*counted{}}
	for range 3 {
		m.lanes = append(m.lanes, m.b.NewLane(len(m.lanes)))
	}
	return m
}

func (m *machine) open(t *rapid.T) {
	m.room = rapid.Uint64Range(0, 40).Draw(t, "room")
	m.bytes = rapid.Uint64Range(0, 3000).Draw(t, "bytes")
	m.highest = 0
	m.b.Open(rapid.Uint64Range(1, math.MaxUint64).Draw(t, "session"), m.room, m.bytes)
}

// ended checks entries that the box gave up.
func (m *machine) ended(t *rapid.T, es []*Entry) {
	for _, e := range es {
		c := m.held[e]
		if c == nil {
			t.Fatalf("number %d ended twice", e.Seq())
		}
		if e.MayHaveLeft() != (c.given > c.never) {
			t.Fatalf("number %d of %+v: may have left %v", e.Seq(), *c, e.MayHaveLeft())
		}
		delete(m.held, e)
	}
}

func (m *machine) add(t *rapid.T) {
	for range rapid.IntRange(1, 30).Draw(t, "n") {
		e := &Entry{
			Frame:    make([]byte, rapid.IntRange(0, 300).Draw(t, "size")),
			Deadline: m.now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "deadline")) * ms),
		}
		m.b.Add(e)
		m.held[e] = &counted{}
	}
}

func (m *machine) send(t *rapid.T) {
	l := rapid.SampledFrom(m.lanes).Draw(t, "lane")
	for range rapid.IntRange(1, 20).Draw(t, "n") {
		e := m.b.Head()
		if e == nil {
			return
		}
		first := e.Seq() == 0
		if first && m.b.bytes >= m.bytes {
			t.Fatalf("a first copy with %d bytes of %d", m.b.bytes, m.bytes)
		}
		m.b.Posted(e, l, m.now)
		if e.Seq() > m.room {
			t.Fatalf("number %d goes out beyond %d", e.Seq(), m.room)
		}
		if first && e.Seq() >= m.b.Floor()+Span {
			t.Fatalf("number %d with floor %d", e.Seq(), m.b.Floor())
		}
		m.out = append(m.out, copyOf{e, e.Copies()})
		m.held[e].given++
	}
}

// report is the outcome of a copy, at any time.
func (m *machine) report(t *rapid.T) {
	if len(m.out) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.out)-1).Draw(t, "copy")
	c := m.out[i]
	m.out = slices.Delete(m.out, i, i+1)
	if rapid.Bool().Draw(t, "left") {
		m.b.Unknown(c.e, c.number)
		return
	}
	m.b.NotPosted(c.e, c.number)
	if k := m.held[c.e]; k != nil {
		k.never++
	}
}

func (m *machine) handover(t *rapid.T) {
	i := rapid.IntRange(0, len(m.lanes)-1).Draw(t, "lane")
	n := m.lanes[i].Len()
	if got := m.b.Handover(m.lanes[i]); got != n || m.lanes[i].Len() != 0 {
		t.Fatalf("%d of %d handed over", got, n)
	}
	m.lanes[i] = m.b.NewLane(i)
}

// ack is any ack: of what was drawn, or nonsense.
func (m *machine) ack(t *rapid.T) {
	m.acks++
	next := m.b.next
	a := frame.Ack{
		Cumulative: rapid.Uint64Range(0, m.b.low+3).Draw(t, "cumulative"),
		RoomSeq:    rapid.Uint64Range(0, next+60).Draw(t, "room"),
		RoomBytes:  rapid.Uint64Range(0, 4000).Draw(t, "bytes"),
	}
	at := a.Cumulative
	for range rapid.IntRange(0, 4).Draw(t, "ranges") {
		first := at + rapid.Uint64Range(2, 6).Draw(t, "gap")
		at = first + rapid.Uint64Range(0, 4).Draw(t, "more")
		a.Ranges = append(a.Ranges, frame.Range{First: first, Last: at})
	}
	named := func(seq uint64) bool {
		return seq <= a.Cumulative || slices.ContainsFunc(a.Ranges, func(r frame.Range) bool { return r.First <= seq && seq <= r.Last })
	}
	var want []*Entry
	for e := range m.held {
		if e.Seq() != 0 && named(e.Seq()) {
			want = append(want, e)
		}
	}
	sense := a.Cumulative < next && (len(a.Ranges) == 0 || at < next)
	if !sense {
		want = nil
	}
	number := rapid.Uint64Range(m.acks/2, m.acks+2).Draw(t, "number")
	got := m.b.Ack(number, a, m.now, nil)
	if len(got) != len(want) {
		t.Fatalf("%+v resolves %s, want %s", a, seqs(got), seqs(want))
	}
	for _, e := range want {
		if !slices.Contains(got, e) {
			t.Fatalf("%+v resolves %s, want %s", a, seqs(got), seqs(want))
		}
	}
	m.ended(t, got)
	if sense && number > m.highest {
		m.highest, m.room, m.bytes = number, a.RoomSeq, a.RoomBytes
	}
}

func (m *machine) reopen(t *rapid.T) {
	kept := 0
	for _, c := range m.held {
		if c.given == c.never {
			kept++
			*c = counted{}
		}
	}
	m.ended(t, m.b.CloseSession())
	if len(m.held) != kept || m.b.Len() != kept {
		t.Fatalf("%d kept, want %d", len(m.held), kept)
	}
	// What was given to transports has ended; their reports come all the same.
	if rapid.Bool().Draw(t, "open") {
		m.open(t)
	}
}

// tick lets time pass, and does what is due.
func (m *machine) tick(t *rapid.T) {
	m.now = m.now.Add(time.Duration(rapid.IntRange(0, 700).Draw(t, "ms")) * ms)
	m.atDue(t)
}

// atDue does what is due now: afterwards nothing is, or the caller's timer
// would spin.
func (m *machine) atDue(t *rapid.T) {
	var over []*Entry
	for e := range m.held {
		if !e.Deadline.After(m.now) {
			over = append(over, e)
		}
	}
	expired := m.b.Expire(m.now)
	if len(expired) != len(over) {
		t.Fatalf("%d ended at their deadline, want %d", len(expired), len(over))
	}
	m.ended(t, expired)
	m.b.Timeouts(m.now)
	m.b.CreditDue(m.now)
	due := m.b.Due()
	if !due.IsZero() && !due.After(m.now) {
		t.Fatalf("due %v ago, and nothing happens", m.now.Sub(due))
	}
	if m.b.Len() > 0 && due.IsZero() {
		t.Fatal("something is held, and nothing is ever due")
	}
}

func TestMachine(t *testing.T) {
	for range 10 { // rapid's own default is short
		rapid.Check(t, runMachine)
	}
}

func runMachine(t *rapid.T) {
	m := newMachine()
	m.open(t)
	t.Repeat(map[string]func(*rapid.T){
		"add": m.add, "send": m.send, "report": m.report, "handover": m.handover,
		"ack": m.ack, "tick": m.tick, "remove": m.remove,
		"reopen": func(t *rapid.T) {
			if m.b.Session() == 0 {
				m.open(t)
			} else if rapid.IntRange(0, 3).Draw(t, "close") == 0 {
				m.reopen(t)
			}
		},
		"rearm": func(*rapid.T) { m.b.Rearm(m.now) },
		"": func(t *rapid.T) {
			check(t, m.b)
			if m.b.Len() != len(m.held) {
				t.Fatalf("%d entries, want %d", m.b.Len(), len(m.held))
			}
		},
	})
	m.drain(t)
}

func (m *machine) remove(t *rapid.T) {
	all := timed(m.b)
	if len(all) == 0 {
		return
	}
	e := all[rapid.IntRange(0, len(all)-1).Draw(t, "entry")]
	m.b.Remove(e)
	m.ended(t, []*Entry{e})
}

// drain lets the box go on with a receiver that has room and answers when it
// is asked: whatever came before, everything ends, at the times that the box
// asks for.
func (m *machine) drain(t *rapid.T) {
	if m.b.Session() == 0 {
		m.open(t)
	}
	m.atDue(t)
	for range 10000 {
		due := m.b.Due()
		if due.IsZero() {
			if m.b.Len() > 0 {
				t.Fatalf("%d entries never end", m.b.Len())
			}
			return
		}
		m.now = due
		sent := 0
		for e := m.b.Head(); e != nil; e = m.b.Head() {
			m.b.Posted(e, m.lanes[0], m.now)
			m.held[e].given++
			sent++
		}
		m.ended(t, m.b.Expire(m.now))
		m.b.Timeouts(m.now)
		if asked := m.b.CreditDue(m.now); asked || sent > 0 {
			next := m.b.next - 1
			m.ended(t, m.b.Ack(math.MaxUint64-1<<30+m.acks, frame.Ack{Cumulative: next, RoomSeq: next + 100, RoomBytes: 1 << 20}, m.now, nil))
			m.acks++
		}
		check(t, m.b)
	}
	t.Fatalf("%d entries are left, due at %v after now", m.b.Len(), m.b.Due().Sub(m.now))
}
