package demo

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
	"github.com/hawser-transport/hawser/engine"
)

// sender sends notifications at a pace that can be changed meanwhile.
type sender struct {
	e       *engine.Engine
	peer    string
	count   int // of the row
	from    int // the first that this sender sends, and to behind the last
	to      int
	hold    bool // END waits until it is asked for
	sizes   sizes
	outbox  *outbox // of transfers, or nil
	journal *journal
	pace    atomic.Int64 // notifications a second; 0 is as fast as they are taken
	burst   atomic.Int64 // to send at once, beside the pace
	waits   sync.WaitGroup
	// pressed counts the times that Notify found no room.
	pressed atomic.Int64
	// longest is the longest call of Notify. One goroutine writes it.
	longest atomic.Int64
}

// run sends all, waits until each has ended, and sends END.
func (s *sender) run(ctx context.Context) {
	defer s.waits.Wait()
	if !s.stream(ctx) {
		return
	}
	s.waits.Wait()
	if s.hold {
		s.journal.add(func(e *entries) { e.Done = true })
		return
	}
	s.end(ctx)
}

// end sends END.
func (s *sender) end(ctx context.Context) {
	if s.notify(ctx, s.count) {
		s.waits.Wait()
		s.journal.add(func(e *entries) { e.Done = true })
	}
}

// beat is how often the sender sends what is due.
const beat = time.Millisecond

func (s *sender) stream(ctx context.Context) bool {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	due, last := 0.0, time.Now()
	for i := s.from; i < s.to; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
		now := time.Now()
		if pace := s.pace.Load(); pace == 0 {
			due = float64(s.count)
		} else {
			// What was missed while the machine was busy is not caught up.
			due += float64(pace) * min(now.Sub(last), 20*beat).Seconds()
		}
		due += float64(s.burst.Swap(0))
		for last = now; due >= 1 && i < s.to; due-- {
			if !s.notify(ctx, i) {
				return false
			}
			i++
		}
	}
	return true
}

// notify sends one. It waits for room as long as it takes.
func (s *sender) notify(ctx context.Context, i int) bool {
	n := engine.Notification{Name: name(i, s.count)}
	n.Payload = s.sizes.payload(n.Name)
	at := lab.Now()
	if s.outbox != nil && bound(i, s.count) {
		s.journal.add(func(e *entries) { e.Sent = append(e.Sent, sent{i, at}) })
		s.waits.Go(func() {
			if err := s.outbox.send(ctx, i, n); ctx.Err() == nil {
				s.transferEnded(i, err)
			}
		})
		return true
	}
	d, err := s.e.Notify(ctx, s.peer, n)
	s.longest.Store(max(s.longest.Load(), int64(lab.Now()-at)))
	for errors.Is(err, engine.Backpressure) && ctx.Err() == nil {
		s.pressed.Add(1)
		d, err = s.e.Notify(ctx, s.peer, n)
	}
	if ctx.Err() != nil {
		return false
	}
	s.journal.add(func(e *entries) { e.Sent = append(e.Sent, sent{i, at}) })
	if err != nil {
		s.ended(i, nil, err)
		return true
	}
	s.waits.Go(func() {
		if err := d.Wait(ctx); ctx.Err() == nil {
			s.ended(i, d, err)
		}
	})
	return true
}

func (s *sender) ended(i int, d *engine.Delivery, err error) {
	x := ending{Index: i, At: lab.Now(), Acked: err == nil}
	if d != nil {
		r := d.Report()
		x.Seq, x.Copies = r.Seq, r.Copies
		x.Taken = r.End == engine.HandedOver
		x.Acked = r.End == engine.Acknowledged || x.Taken
	}
	if err != nil {
		x.Error = err.Error()
		x.Code = codeOf(err)
	}
	s.journal.add(func(e *entries) { e.Ended = append(e.Ended, x) })
}

// codeOf says whether a copy of what failed may still arrive, or nothing.
func codeOf(err error) string {
	for _, c := range []engine.Code{engine.NotSent, engine.DeliveryUnknown} {
		if errors.Is(err, c) {
			return c.Error()
		}
	}
	return ""
}
