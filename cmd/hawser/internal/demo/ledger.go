package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"
)

// ledger is all that the nodes have told of one row.
type ledger struct {
	mu      sync.Mutex
	news    chan struct{} // closed and replaced at every entry
	sent    []sent
	ended   []ending
	arrived []arrival
	dones   int   // nodes whose streams are over, and ENDs that were asked for
	fault   error // a node said something that makes no sense
}

func newLedger() *ledger { return &ledger{news: make(chan struct{})} }

// take writes down a node's message; life is the node's, and shift is added to
// its times.
func (l *ledger) take(life int, shift time.Duration, event string, data json.RawMessage) {
	var e entries
	err := json.Unmarshal(data, &e)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case event != entriesEvent:
		l.fault = fmt.Errorf("a node sent %q", event)
	case err != nil:
		l.fault = fmt.Errorf("a node sent %s: %w", event, err)
	}
	for i := range e.Sent {
		e.Sent[i].At += shift
	}
	for i := range e.Ended {
		e.Ended[i].At += shift
	}
	for i := range e.Arrived {
		e.Arrived[i].Life = life
		e.Arrived[i].At += shift
	}
	l.sent = append(l.sent, e.Sent...)
	l.ended = append(l.ended, e.Ended...)
	l.arrived = append(l.arrived, e.Arrived...)
	if e.Done {
		l.dones++
	}
	close(l.news)
	l.news = make(chan struct{})
}

// await waits until f holds of the ledger, which is locked meanwhile.
func (l *ledger) await(ctx context.Context, what string, f func(*ledger) bool) error {
	for {
		l.mu.Lock()
		ok, news, fault := f(l), l.news, l.fault
		state := fmt.Sprintf("%d sent, %d ended, %d received", len(l.sent), len(l.ended), len(l.arrived))
		l.mu.Unlock()
		if ok || fault != nil {
			return fault
		}
		select {
		case <-news:
		case <-ctx.Done():
			return fmt.Errorf("waited in vain for %s (%s): %w", what, state, context.Cause(ctx))
		}
	}
}

// counts are for the progress line.
func (l *ledger) counts() (sent, received int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.sent), len(l.arrived)
}

// copy is a snapshot.
func (l *ledger) copy() *ledger {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &ledger{
		sent: slices.Clone(l.sent), ended: slices.Clone(l.ended), arrived: slices.Clone(l.arrived), dones: l.dones,
	}
}

// arrivedSince finds the first arrival after t that f holds of. The ledger is
// locked, or a copy.
func (l *ledger) arrivedSince(t time.Duration, f func(arrival) bool) (arrival, bool) {
	i := slices.IndexFunc(l.arrived, func(a arrival) bool { return a.At > t && f(a) })
	if i < 0 {
		return arrival{}, false
	}
	return l.arrived[i], true
}

// before counts what had been sent and received at t.
func (l *ledger) before(t time.Duration) (sentThen, receivedThen int) {
	for _, s := range l.sent {
		if s.At <= t {
			sentThen++
		}
	}
	for _, a := range l.arrived {
		if a.At <= t {
			receivedThen++
		}
	}
	return sentThen, receivedThen
}
