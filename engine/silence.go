package engine

import (
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/health"
	"github.com/hawser-transport/hawser/sdk"
)

// peerChanged tells the associations with an address what happened to it.
func (e *Engine) peerChanged(ev health.PeerEvent) {
	if ev.Kind == health.PeerSilent {
		e.stats.Marks.Add(1)
		e.hub.tell(Event{Kind: PeerSilent, Address: ev.Address, Peer: e.nodeAt(ev.Address), Until: ev.Until})
		e.log.Warn("peer silent", "address", ev.Address, "until", ev.Until)
	} else {
		how := markForgotten
		if ev.Kind == health.PeerResumed {
			how = markAnswered
		}
		e.stats.marksEnded[how].Add(1)
		e.hub.tell(Event{Kind: PeerResumed, Address: ev.Address, Peer: e.nodeAt(ev.Address)})
		e.log.Info("peer no longer silent", "address", ev.Address, "answered", ev.Kind == health.PeerResumed)
	}
	for _, a := range e.at(ev.Address) {
		if ev.Kind == health.PeerSilent {
			a.fellSilent()
		} else {
			a.cameBack()
		}
	}
}

// at returns the associations that call an address.
func (e *Engine) at(address string) []*association {
	var list []*association
	for _, a := range e.directory.all() {
		if a.address == address {
			list = append(list, a)
		}
	}
	return list
}

// nodeAt returns who is at an address, or nil.
func (e *Engine) nodeAt(address string) *Node {
	for _, a := range e.at(address) {
		if n := a.node.Load(); n != nil {
			return n
		}
	}
	return nil
}

// clientOf returns a client for an address that no mark stops, and what to call
// when it is no longer needed.
func (e *Engine) clientOf(address string) (c control.Client, done func()) {
	for _, a := range e.at(address) {
		return a.client.Client, func() {}
	}
	c = e.control.Dial(address)
	return c, func() { _ = c.Close() }
}

// gone ends the associations with an address whose host refuses connections.
func (e *Engine) gone(address string, err error) {
	for _, a := range e.at(address) {
		if a.node.Load() != nil {
			a.die(goneError(address, err))
		} else {
			a.cameBack() // it may be called again
		}
	}
}

func goneError(address string, err error) error {
	return sdk.Errorf(sdk.Unavailable, "the peer at %s is gone: %w", address, err)
}

// fellSilent ends what waits for a call to the peer.
func (a *association) fellSilent() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trustLocked()
	a.pumpLocked()
}

// cameBack sends everything pending again and waits for nothing that was
// put off.
func (a *association) cameBack() {
	a.client.ResetBackoff()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dead != nil || a.successor != nil {
		return
	}
	a.trustLocked()
	now := time.Now()
	for _, p := range a.order {
		p.failures, p.retryAt = 0, now
	}
	close(a.back)
	a.back = make(chan struct{})
	a.resendAllLocked()
	a.pumpLocked()
}

// silentLocked returns an error while the peer is marked.
func (a *association) silentLocked(now time.Time) error {
	if a.selfLane != nil {
		return nil
	}
	return a.e.watch.allow(a.address, now)
}

// abandonLocked ends, at once, what never left for a marked peer to which
// nothing is connected. What may have left goes on until its deadline: the peer
// may come back and acknowledge it.
func (a *association) abandonLocked(now time.Time) {
	if !a.e.watch.marked.Load() || a.box.Len() == 0 || a.connectedLocked() {
		return
	}
	cause := a.silentLocked(now)
	if cause == nil {
		return
	}
	for _, x := range a.box.TakeUnsent() {
		d := x.Owner.(*Delivery)
		a.explainLocked(d)
		a.settle(x, func(d *Delivery) { d.fail(cause) })
	}
}

// connectedLocked reports whether any path is.
func (a *association) connectedLocked() bool {
	for _, p := range a.order {
		if p.up() {
			return true
		}
	}
	return false
}
