package verbstest

import (
	"bytes"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// soon bounds what has to happen on a working path; soft devices under
// emulation are slow.
const soon = 10 * time.Second

// pair is two started ends, and what a test says about them in few words.
type pair struct {
	testing.TB
	ends   [2]End
	at     [2]Address // of the queue pairs that connect made last
	traits Traits
}

func (p *pair) ok(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

// refused checks that a call failed with a number.
func (p *pair) refused(err error, want syscall.Errno) {
	p.Helper()
	if !errors.Is(err, want) {
		p.Fatalf("got %v, want %v", err, want)
	}
}

// start makes both ends.
func (p *pair) start(a, b Setup) {
	p.Helper()
	p.ok(p.ends[0].Start(a))
	p.ok(p.ends[1].Start(b))
}

// qps makes a queue pair on each side, in RESET.
func (p *pair) qps(sends int) {
	p.Helper()
	for i, e := range p.ends {
		var err error
		p.at[i], err = e.NewQP(sends)
		p.ok(err)
	}
}

// connect makes a connected queue pair on each side.
func (p *pair) connect(sends int, a Attr) {
	p.Helper()
	p.qps(sends)
	p.join(a)
}

func (p *pair) join(a Attr) {
	p.Helper()
	// Passive first: its peer's first message finds it in RTR.
	p.ok(p.ends[1].Connect(p.at[1].QP, p.at[0], a, verbs.RTS))
	p.ok(p.ends[0].Connect(p.at[0].QP, p.at[1], a, verbs.RTS))
}

func (p *pair) receives(i int, slots ...int) {
	p.Helper()
	n, err := p.ends[i].PostRecv(slots...)
	p.ok(err)
	if n != len(slots) {
		p.Fatalf("%d receives of %d were posted", n, len(slots))
	}
}

func (p *pair) send(i int, wrs ...WR) {
	p.Helper()
	n, err := p.ends[i].PostSend(p.at[i].QP, wrs...)
	p.ok(err)
	if n != len(wrs) {
		p.Fatalf("%d sends of %d were posted", n, len(wrs))
	}
}

// poll returns exactly n completions.
func (p *pair) poll(i, n int) []verbs.WC {
	p.Helper()
	wcs, err := p.ends[i].Poll(n, soon)
	p.ok(err)
	if len(wcs) != n {
		p.Fatalf("%d completions of %d within %v: %+v", len(wcs), n, soon, wcs)
	}
	return wcs
}

// quiet checks that nothing completes for a while.
func (p *pair) quiet(i int, wait time.Duration) {
	p.Helper()
	wcs, err := p.ends[i].Poll(1, wait)
	p.ok(err)
	if len(wcs) > 0 {
		p.Fatalf("a completion came: %+v", wcs[0])
	}
}

// statuses checks the next completions, by id and status in order.
func (p *pair) statuses(i int, want ...result) {
	p.Helper()
	for k, wc := range p.poll(i, len(want)) {
		if got := (result{wc.ID, wc.Status}); got != want[k] {
			p.Fatalf("completion %d is %v, want %v", k, got, want[k])
		}
		if wc.QP != p.at[i].QP {
			p.Fatalf("completion %d is of queue pair %d, want %d", k, wc.QP, p.at[i].QP)
		}
	}
}

type result struct {
	ID     uint64
	Status verbs.Status
}

func (p *pair) state(i int, want verbs.QPState) {
	p.Helper()
	got, err := p.ends[i].State(p.at[i].QP)
	p.ok(err)
	if got != want {
		p.Fatalf("the queue pair is in %v, want %v", got, want)
	}
}

func (p *pair) event(i int, t verbs.EventType) {
	p.Helper()
	ev, err := p.ends[i].Event(t, soon)
	p.ok(err)
	if ev.QP != p.at[i].QP {
		p.Fatalf("event %d is of queue pair %d, want %d", t, ev.QP, p.at[i].QP)
	}
}

// fill writes a pattern that tells slots and places apart.
func (p *pair) fill(i, slot int, seed byte, n int) {
	p.Helper()
	p.ok(p.ends[i].Fill(slot, pattern(seed, n)))
}

func (p *pair) holds(i, slot int, seed byte, n int) {
	p.Helper()
	got, err := p.ends[i].Bytes(slot, n)
	p.ok(err)
	for k, b := range pattern(seed, n) {
		if got[k] != b {
			p.Fatalf("slot %d differs at %d: %d, want %d", slot, k, got[k], b)
		}
	}
}

// shared checks the bytes of the passive end's shared memory.
func (p *pair) shared(seed byte, n int) {
	p.Helper()
	got, err := p.ends[1].Shared(n)
	p.ok(err)
	if !bytes.Equal(got, pattern(seed, n)) {
		p.Fatalf("the shared memory does not hold pattern %d", seed)
	}
}

func pattern(seed byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = seed + byte(i*7) + byte(i>>8)
	}
	return b
}
