//go:build linux

package mnnvltransport

import (
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// TestWaitsForTheEvent: a copy is made after the producer's work, and the fence
// of its endpoint waits for it; others go past.
func TestWaitsForTheEvent(t *testing.T) {
	const size, busy = 1 << 20, 100 * time.Millisecond
	l := newLab(t)
	a, b := l.start(t, l.apart(t), 1), l.start(t, l.transport(t), 2)
	mine, theirs := l.on(t, 0, size), l.on(t, len(l.devices)-1, size)
	fill(t, mine, 1, size)
	here, there := a.register(t, mine, true, 1<<40, 1), b.register(t, theirs, true, 1<<41, 1)
	a.announce(t, there)
	w, other := connect(t, a, b), connect(t, a, b)
	w.must(opOf(sdk.Write, here, there, size))
	p := l.producer(t, mine)
	began := time.Now()
	o := opOf(sdk.Write, here, there, size)
	o.Event = p.produce(2, busy)
	late := w.post(o)
	other.must(opOf(sdk.Write, here, there, 1))
	if len(late) > 0 && time.Since(began) < busy {
		t.Fatalf("an outcome, %+v, before the producer had ended", <-late)
	}
	w.ep.Close()
	if err := <-w.ended; time.Since(began) < busy {
		t.Errorf("the endpoint ended (%v) before its copy", err)
	}
	if c := <-late; c.Outcome != sdk.Done {
		t.Errorf("%v (%v)", c.Outcome, c.Code)
	}
	if x, y := bytesOf(t, theirs, size); x != 2 || y != 2 {
		t.Errorf("the bytes are %d..%d, which the producer had not written last", x, y)
	}
	other.must(opOf(sdk.Write, here, there, 1))
}

// TestManyEvents: what waits for one more event than are waited for at a time
// waits for that, too. Others go past it, and the end of its endpoint ends it.
func TestManyEvents(t *testing.T) {
	const size = 4096
	l := newLab(t)
	a, b := l.start(t, l.apart(t), 1), l.start(t, l.transport(t), 2)
	mine, theirs := l.on(t, 0, size), l.on(t, len(l.devices)-1, size)
	here, there := a.register(t, mine, true, 1<<40, 1), b.register(t, theirs, true, 1<<41, 1)
	a.announce(t, there)
	w, other := connect(t, a, b), connect(t, a, b)
	w.must(opOf(sdk.Write, here, there, size))
	other.must(opOf(sdk.Write, here, there, size))
	var ps []*producer
	for range maxOpened + 2 {
		ps = append(ps, l.producer(t, mine))
	}
	busy := time.Second // the first one's work; that of the others is behind it
	var late []<-chan sdk.Completion
	for i, p := range ps {
		o := opOf(sdk.Write, here, there, size)
		o.Event, busy = p.produce(2, busy), time.Nanosecond
		if i <= maxOpened {
			late = append(late, w.post(o))
		} else {
			late = append(late, other.post(o))
		}
	}
	doomed := late[maxOpened+1]
	late = late[:maxOpened+1]
	w.must(opOf(sdk.Write, here, there, size))
	other.ep.Close()
	if c := <-doomed; c.Outcome != sdk.NotPosted || c.Code != sdk.Closed {
		t.Errorf("the end of its endpoint: %v (%v)", c.Outcome, c.Code)
	}
	select {
	case c := <-late[0]:
		t.Fatalf("%v (%v): no event was left to be waited for", c.Outcome, c.Code)
	default:
	}
	for i, c := range late {
		if x := <-c; x.Outcome != sdk.Done {
			t.Errorf("op %d of %d: %v (%v)", i+1, len(late), x.Outcome, x.Code)
		}
	}
}

// TestBadEvent: an event that nobody has fails its op alone. It says nothing of
// the region, which the next op uses.
func TestBadEvent(t *testing.T) {
	const size = 4096
	l := newLab(t)
	a, b := l.start(t, l.apart(t), 1), l.start(t, l.transport(t), 2)
	mine, theirs := l.on(t, 0, size), l.on(t, len(l.devices)-1, size)
	here, there := a.register(t, mine, true, 1<<40, 1), b.register(t, theirs, true, 1<<41, 1)
	a.announce(t, there)
	w := connect(t, a, b)
	o := opOf(sdk.Write, here, there, size)
	o.Event = &[sdk.EventBytes]byte{1, 2, 3}
	if c := w.do(o); c.Outcome != sdk.NotPosted || c.Code != sdk.InvalidArgument {
		t.Errorf("an event that nobody has: %v (%v)", c.Outcome, c.Code)
	}
	w.must(opOf(sdk.Write, here, there, size))
}
