package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/outbox"
	"github.com/hawser-transport/hawser/sdk"
)

// budget bounds the bytes in all outboxes together, and wakes those that wait
// for room in any of them.
type budget struct {
	limit   int64
	used    atomic.Int64
	waiting atomic.Int32

	mu    sync.Mutex
	freed chan struct{} // closed when something was released
}

func newBudget(limit int) *budget { return &budget{limit: int64(limit), freed: make(chan struct{})} }

// reserve takes n bytes, unless that would be over the limit. Something always
// fits an empty budget.
func (b *budget) reserve(n int) bool {
	if used := b.used.Add(int64(n)); used > b.limit && used != int64(n) {
		b.used.Add(int64(-n))
		return false
	}
	return true
}

func (b *budget) release(n int) {
	b.used.Add(int64(-n))
	if b.waiting.Load() > 0 {
		b.wake()
	}
}

func (b *budget) wake() {
	b.mu.Lock()
	close(b.freed)
	b.freed = make(chan struct{})
	b.mu.Unlock()
}

func (b *budget) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.freed
}

// admit puts a delivery into an outbox, waiting for room for the slot wait at
// most. try reports false if there is none.
func (e *Engine) admit(ctx context.Context, d *Delivery, try func() (done bool, err error)) error {
	if done, err := try(); done {
		return err
	}
	e.outbox.waiting.Add(1)
	defer e.outbox.waiting.Add(-1)
	timeout := time.NewTimer(e.cfg.Notification.SlotWait())
	defer timeout.Stop()
	for {
		freed := e.outbox.next()
		if done, err := try(); done {
			return err
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return contextEnded(ctx, "notification to "+d.peer)
		case <-timeout.C:
			e.stats.Backpressure.Add(1)
			return sdk.Errorf(sdk.Backpressure, "notification to %s: the outbox is full and had no room for %v", d.peer, e.cfg.Notification.SlotWait())
		}
		e.freeze.Awake()
	}
}

// tryAdmit reports false if there is no room.
func (e *Engine) tryAdmit(address string, d *Delivery) (done bool, err error) {
	for {
		if e.closing.Load() {
			return true, sdk.Errorf(sdk.Closed, "notification to %s: the engine is closed", d.peer)
		}
		a, err := e.associationAt(address)
		if err != nil {
			return true, err
		}
		a = a.lockLatest()
		if !a.gone {
			done = a.addLocked(d)
			a.mu.Unlock()
			return done, nil
		}
		a.mu.Unlock() // it went since it was looked up: look again
	}
}

// addLocked puts a delivery into the association's box and sends what can be
// sent. It reports false if the box is full; something always fits an empty
// one. With what it has adopted a box may be over the bound for a while, never
// over that of all boxes together: then it takes nothing new.
func (a *association) addLocked(d *Delivery) bool {
	cost := outbox.Cost(len(d.entry.Frame))
	if a.box.Size() > 0 && a.box.Size()+cost > a.e.cfg.Outbox.Bytes || !a.e.outbox.reserve(cost) {
		return false
	}
	a.e.deliveries.Add()
	a.used = time.Now()
	a.box.Add(&d.entry)
	a.pumpLocked()
	return true
}

// tryBound is tryAdmit for what may go to one life of a peer only.
func (a *association) tryBound(d *Delivery) (done bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.e.closing.Load() && a.e.transfers.n.Load() == 0:
		return true, sdk.Errorf(sdk.Closed, "notification to %s: the engine is closed", d.peer)
	case a.dead != nil:
		return true, a.dead
	case a.successor != nil:
		return true, sdk.Errorf(sdk.PeerRestarted, "the peer at %s is another one", a.address)
	}
	return a.addLocked(d), nil
}

// lockLatest returns what has taken the association's place, or itself,
// locked.
func (a *association) lockLatest() *association {
	a.mu.Lock()
	for a.successor != nil {
		next := a.successor
		a.mu.Unlock()
		a = next
		a.mu.Lock()
	}
	return a
}

// pending counts what has not ended, and lets Close wait for none.
type pending struct {
	n    atomic.Int64
	mu   sync.Mutex
	none chan struct{} // closed when n drops to 0 while somebody waits
}

// Add counts one more.
func (p *pending) Add() { p.n.Add(1) }

// Done counts one less.
func (p *pending) Done() {
	if p.n.Add(-1) == 0 {
		p.mu.Lock()
		if p.none != nil {
			close(p.none)
			p.none = nil
		}
		p.mu.Unlock()
	}
}

// wait waits until there is none, and reports false if ctx ended first. No
// more may be added meanwhile.
func (p *pending) wait(ctx context.Context) bool {
	for {
		p.mu.Lock()
		if p.n.Load() == 0 {
			p.mu.Unlock()
			return true
		}
		if p.none == nil {
			p.none = make(chan struct{})
		}
		none := p.none
		p.mu.Unlock()
		select {
		case <-none:
		case <-ctx.Done():
			return false
		}
	}
}
