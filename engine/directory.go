package engine

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/sdk"
)

// directory finds associations. An association is under the address that it
// was made for, and, once that is known, under its incarnation. Its lock may
// be taken while an association's is held, never the other way round.
type directory struct {
	mu            sync.Mutex
	byAddress     map[string]*association
	byIncarnation map[Incarnation]*association
}

func (d *directory) init() {
	d.byAddress = map[string]*association{}
	d.byIncarnation = map[Incarnation]*association{}
}

func (d *directory) has(address string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.byAddress[address] != nil
}

// all returns every association once, oldest first.
func (d *directory) all() []*association {
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := map[*association]bool{}
	var list []*association
	for _, m := range d.byAddress {
		if !seen[m] {
			seen[m] = true
			list = append(list, m)
		}
	}
	for _, m := range d.byIncarnation {
		if !seen[m] {
			seen[m] = true
			list = append(list, m)
		}
	}
	slices.SortFunc(list, func(a, b *association) int {
		return cmp.Or(a.made.Compare(b.made), cmp.Compare(a.address, b.address))
	})
	return list
}

// associationAt returns the association for an address, a new one if need be.
func (e *Engine) associationAt(address string) (*association, error) {
	e.directory.mu.Lock()
	defer e.directory.mu.Unlock()
	return e.associationAtLocked(address)
}

func (e *Engine) associationAtLocked(address string) (*association, error) {
	if a := e.directory.byAddress[address]; a != nil {
		return a, nil
	}
	if e.closing.Load() {
		return nil, sdk.Errorf(sdk.Closed, "the engine is closed")
	}
	a := newAssociation(e, address)
	e.directory.byAddress[address] = a
	return a, nil
}

// bind tells which association owns the incarnation that answered a's hello:
// a itself, which is bound to it now, or the one that there is, if the answer
// came from the bearer of its certificate. stale means that a belongs to an
// earlier life.
func (e *Engine) bind(a *association, n control.Node, identity string) (owner *association, stale bool, err error) {
	if n.Incarnation == e.incarnation {
		if own := e.security.identity(); own != identity {
			return nil, false, notTheirs("the answer to hello from "+a.address, n.Incarnation, own, identity)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	d := &e.directory
	d.mu.Lock()
	defer d.mu.Unlock()
	if node := a.node.Load(); node != nil {
		return a, node.Incarnation != n.Incarnation, nil
	}
	if owner = d.byIncarnation[n.Incarnation]; owner != nil {
		if owner.identity != identity {
			return nil, false, notTheirs("the answer to hello from "+a.address, n.Incarnation, owner.identity, identity)
		}
		d.byAddress[a.address] = owner
		return owner, false, nil
	}
	d.byIncarnation[n.Incarnation] = a
	a.bindLocked(n, identity)
	if n.Incarnation == e.incarnation {
		a.openSessionLocked(e.randomNonzero(), time.Now())
		a.selfLane = a.box.NewLane(nil)
	}
	return a, false, nil
}

// greet finds or makes the association of a sender that says hello. A newer
// life at an address ends the older one's association; news of an older life
// is refused. Both are so under one certificate only. Another one's bearer may
// be at the address now, but its word for that is not enough: calls that are
// made there will show it.
func (e *Engine) greet(n control.Node, identity string) (*association, error) {
	d := &e.directory
	for {
		d.mu.Lock()
		if a := d.byIncarnation[n.Incarnation]; a != nil {
			d.mu.Unlock()
			if a.identity != identity {
				return nil, e.impostor(notTheirs("hello", n.Incarnation, a.identity, identity))
			}
			return a, nil
		}
		older := d.byAddress[n.Address]
		if older == nil || older.node.Load() == nil || older.identity != identity {
			a, err := e.newcomerLocked(n, identity, older)
			d.mu.Unlock()
			return a, err
		}
		d.mu.Unlock()
		if n.Started.Before(older.since) {
			return nil, sdk.Errorf(sdk.PeerRestarted, "hello: a later incarnation than %s is known at %s", n.Incarnation.Short(), n.Address)
		}
		older.die(sdk.Errorf(sdk.PeerRestarted, "the peer at %s is a new incarnation", n.Address))
	}
}

// newcomerLocked makes an association for a sender. One that is at the sender's
// address already, waiting for an answer or another's, is left to find it.
func (e *Engine) newcomerLocked(n control.Node, identity string, there *association) (*association, error) {
	if e.closing.Load() {
		return nil, sdk.Errorf(sdk.Closed, "hello: this engine is closing")
	}
	a := newAssociation(e, n.Address)
	a.bindLocked(n, identity) // nobody else has it yet
	e.directory.byIncarnation[n.Incarnation] = a
	if there == nil {
		e.directory.byAddress[n.Address] = a
	}
	return a, nil
}

// forget takes a dead association out, and, if something is left to send,
// returns what is at its address now; nil if the engine is closing.
func (e *Engine) forget(a *association, wanted bool) *association {
	d := &e.directory
	d.mu.Lock()
	defer d.mu.Unlock()
	for address, b := range d.byAddress {
		if b == a {
			delete(d.byAddress, address)
		}
	}
	if node := a.node.Load(); node != nil && d.byIncarnation[node.Incarnation] == a {
		delete(d.byIncarnation, node.Incarnation)
	}
	if !wanted {
		return nil
	}
	next, err := e.associationAtLocked(a.address)
	if err != nil {
		return nil
	}
	return next
}
