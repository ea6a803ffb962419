//go:build linux

package mnnvltransport

import (
	"errors"
	"time"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/sdk"
)

// maxOpened bounds the application's events that are waited for at a time, each
// of which has a stream of its own so that the others do not wait.
const maxOpened = 64

// place reports whether a task's event, if it has one, can be waited for now.
func (w *worker) place(t *task) bool {
	return t.op.Event == nil || len(w.opened) < maxOpened || w.opened[cuda.EventHandle(*t.op.Event)] != nil
}

// lane finds the stream for a task that has its place. One that waits for an
// event goes behind it, with the others that wait for the same: a wait is for
// what the event was recorded after now, so each has its own.
func (w *worker) lane(c cuda.Context, t *task) (*lane, error) {
	if t.op.Event == nil {
		w.next++
		return w.stream(c, &w.plain[w.next%len(w.plain)])
	}
	h := cuda.EventHandle(*t.op.Event)
	l := w.opened[h]
	if l == nil {
		event, err := c.OpenEvent(h)
		if codeOf(err) == sdk.StaleCapability {
			// It is not the region that the handle led to.
			return nil, sdk.Errorf(sdk.InvalidArgument, "the op's event is none that another process has exported: %w", err)
		}
		if err != nil {
			return nil, err
		}
		if l, err = w.stream(c, &l); err != nil {
			w.destroy(c, event)
			return nil, err
		}
		l.event = event
		w.opened[h] = l
	}
	return l, c.Wait(l.stream, l.event)
}

// stream makes a lane the first time.
func (w *worker) stream(c cuda.Context, at **lane) (*lane, error) {
	if *at == nil {
		s, err := c.CreateStream()
		if err != nil {
			return nil, err
		}
		*at = &lane{stream: s}
	}
	return *at, nil
}

// forgetEvents closes the application's events that no op waits for any more.
// They are not kept: the bytes of a handle may be another event's the next time.
func (w *worker) forgetEvents(c cuda.Context) {
	for h, l := range w.opened {
		if len(l.flight) == 0 && len(l.open.tasks) == 0 {
			delete(w.opened, h)
			w.destroy(c, l.event)
			w.giveBack(c, func(c cuda.Context) error { return c.DestroyStream(l.stream) })
		}
	}
}

func (w *worker) destroy(c cuda.Context, e cuda.Event) {
	if e != 0 {
		w.giveBack(c, func(c cuda.Context) error { return c.DestroyEvent(e) })
	}
}

// giveBack gives something back, now or, if the driver refuses, at the end.
func (w *worker) giveBack(c cuda.Context, f func(cuda.Context) error) {
	if err := f(c); err != nil && !cuda.IsLost(err) {
		w.leftovers = append(w.leftovers, f)
	}
}

// end gives back what the thread has made.
func (w *worker) end(c cuda.Context) error {
	w.local.Close()
	for _, e := range w.spare {
		w.destroy(c, e)
	}
	for _, l := range w.plain {
		if l != nil {
			w.giveBack(c, func(c cuda.Context) error { return c.DestroyStream(l.stream) })
		}
	}
	const tries = 10
	for try := 0; len(w.leftovers) > 0 && try < tries; try++ {
		left := w.leftovers
		w.leftovers = nil
		for _, f := range left {
			w.giveBack(c, f)
		}
		if len(w.leftovers) > 0 {
			time.Sleep(time.Duration(try) * time.Millisecond)
		}
	}
	if n := len(w.leftovers); n > 0 {
		return errors.New("the driver does not take back what it gave")
	}
	return nil
}
