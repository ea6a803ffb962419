package engine

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/frame"
	"github.com/hawser-transport/hawser/engine/internal/inbox"
	"github.com/hawser-transport/hawser/engine/internal/outbox"
	"github.com/hawser-transport/hawser/sdk"
)

// association is all that one engine holds of one peer: the outbox and its
// session towards the peer, the peer's session here, and the ways between the
// two. It belongs to the peer's incarnation; before the first hello is
// answered it belongs to an address, and afterwards it is merged into the
// association of the incarnation found there, if there is one.
//
// Its lock is held neither across a call of a transport nor across a call to
// a peer. Frames leave through pumpLocked alone, by one goroutine at a time.
type association struct {
	e       *Engine
	address string
	client  *caller

	// node is nil before hello and constant after; since, when the peer's
	// engine started, and identity, whose certificate it bears, are written
	// before node.
	node     atomic.Pointer[Node]
	since    time.Time
	identity string

	// proto is the protocol of both ways, constant once hello has settled it.
	proto atomic.Int32
	kept  atomic.Int64 // bytes in the holds of its endpoints

	mu sync.Mutex
	// All below are guarded by mu.

	agreed bool // proto is
	// successor is what took this association's place: the incarnation's own
	// after a merge, the next life's after death.
	successor *association
	dead      error
	gone      bool      // dead, empty, and out of the directory
	used      time.Time // when it was last needed
	made      time.Time // constant
	heard     time.Time // when the peer last said something

	box      *outbox.Box
	lastSent time.Time // when a notification was last given to a transport
	hello    helloState
	in       *inbox.Session

	remote    remoteTransports
	paths     map[pathKey]*path
	order     []*path       // that both sides run, as configured
	ranked    []*path       // of order, those to try, best first
	paused    []*path       // of order, the one whose pause ends first first
	forgotten uint64        // the highest generation of a path that was forgotten
	retiring  int           // endpoints that were replaced and have not ended
	found     []route       // by the last match
	matched   bool          // order reflects what both sides run now
	news      chan struct{} // closed, and made anew, when order has changed
	back      chan struct{} // closed, and made anew, when the peer is no longer silent
	matches   uint64        // counts changes of what either side runs
	matching  bool          // the transports are being asked for their paths
	relisted  bool          // and one of them has others by now
	selfLane  *outbox.Lane  // of an association with this engine itself
	telling   bool          // the peer is being told what runs here

	pumping  bool
	batch    batch
	owed     []*endpoint // that owe the peer an ack
	refusals []refusal   // sessions of the peer that are not held
	refused  time.Time   // when the last refusal was sent
	credit   bool        // a request for room is due
	creditAt int         // the path that the last one took

	ranges  []frame.Range   // scratch of answeredLocked
	settled []*outbox.Entry // likewise

	timer   *time.Timer
	armed   time.Time // what the timer is set to; zero: not set
	armedAt time.Time // when that was
}

// remoteTransports is what the peer runs, as it said last.
type remoteTransports struct {
	version uint64
	list    []control.Transport
}

// refusal is a SESSION_CLOSE to send.
type refusal struct {
	ep      *endpoint
	session uint64
	proto   int
}

func newAssociation(e *Engine, address string) *association {
	a := &association{
		e: e, address: address, client: &caller{e.control.Dial(address), e.watch, address},
		box:   outbox.New(e.cfg.Notification.AckTimeout()),
		paths: map[pathKey]*path{}, news: make(chan struct{}), back: make(chan struct{}),
		hello: helloState{try: newHelloTry()},
		used:  time.Now(), made: time.Now(),
	}
	a.timer = time.AfterFunc(time.Hour, a.tick)
	a.timer.Stop()
	a.proto.Store(2)
	return a
}

// bindLocked gives the association its incarnation, which is that of one
// certificate.
func (a *association) bindLocked(n control.Node, identity string) {
	a.since, a.identity = n.Started, identity
	a.client.Bind(identity)
	a.node.Store(&Node{Name: n.Name, Address: n.Address, Incarnation: n.Incarnation, Identity: identity})
	if n.Incarnation != a.e.incarnation {
		a.e.hub.tell(Event{Kind: PeerUp, Address: a.address, Peer: a.node.Load()})
	}
}

// dueLocked is when the next thing is to be done, or zero.
func (a *association) dueLocked(now time.Time) time.Time {
	if a.selfLane != nil {
		if a.box.Head() != nil {
			return now.Add(selfRetry)
		}
		return a.box.Due()
	}
	if a.box.CreditDue(now) { // also starts or stops its own clock
		a.credit = true
		return now
	}
	due := a.box.Due()
	if t := now.Add(retireCheck); a.retiring > 0 && (due.IsZero() || t.Before(due)) {
		due = t
	}
	if t := a.receiptDueLocked(); !t.IsZero() && (due.IsZero() || t.Before(due)) {
		due = t
	}
	for _, p := range a.order {
		if t := p.dueLocked(a, now); !t.IsZero() && (due.IsZero() || t.Before(due)) {
			due = t
		}
	}
	return due
}

// selfRetry is how soon a full queue is tried again by the engine's own
// notifications to itself.
const selfRetry = 5 * time.Millisecond

// peer names the association in logs and errors.
func (a *association) peer() string { return a.address }

// die ends the association: what may have left ends as DeliveryUnknown, what
// never left goes on with whatever is at the address next, and so does what is
// added meanwhile. It is idempotent.
func (a *association) die(cause error) {
	a.mu.Lock()
	if a.dead != nil || a.successor != nil {
		a.mu.Unlock()
		return
	}
	a.dead = cause
	a.tellEnd(cause)
	posted := a.box.CloseSession()
	eps := a.endpointsLocked()
	in := a.in
	a.in = nil
	if n := a.node.Load(); n != nil {
		a.e.watch.forgetPeer(n.Incarnation)
	}
	a.timer.Stop()
	a.mu.Unlock()

	for _, ep := range eps {
		ep.shut()
	}
	a.e.memory.ended(a, cause)
	a.e.endSession(in, endOver)
	for _, x := range posted {
		a.settle(x, func(d *Delivery) { d.fail(cause) })
	}
	a.mu.Lock()
	unsent, bound := partition(a.box.TakeWaiting(), func(x *outbox.Entry) bool { return !x.Owner.(*Delivery).bound })
	next := a.e.forget(a, len(unsent) > 0)
	a.successor, a.gone = next, true
	a.hello.triedLocked()
	a.mu.Unlock()
	for _, x := range bound {
		a.settle(x, func(d *Delivery) { d.fail(cause) })
	}
	if next == nil {
		for _, x := range unsent {
			a.settle(x, func(d *Delivery) { d.fail(cause) })
		}
		_ = a.client.Close()
		return
	}
	next.adopt(unsent)
	if next.client != a.client {
		_ = a.client.Close()
	}
}

// partition parts a list by what f says of each.
func partition[T any](list []T, f func(T) bool) (yes, no []T) {
	for _, x := range list {
		if f(x) {
			yes = append(yes, x)
		} else {
			no = append(no, x)
		}
	}
	return yes, no
}

// tellEnd tells of the end of a peer's life, if it was met.
func (a *association) tellEnd(cause error) {
	n := a.node.Load()
	if n == nil || a.selfLane != nil || errors.Is(cause, sdk.Closed) {
		return
	}
	kind := PeerGone
	if errors.Is(cause, sdk.PeerRestarted) {
		kind = PeerRestartedEvent
	}
	a.e.hub.tell(Event{Kind: kind, Address: a.address, Peer: n, Err: cause})
}

// settle ends an entry that is out of the box.
func (a *association) settle(x *outbox.Entry, end func(*Delivery)) {
	a.e.outbox.release(outbox.Cost(len(x.Frame)))
	a.e.deliveries.Done()
	end(x.Owner.(*Delivery))
}

// adopt takes in entries that were never sent.
func (a *association) adopt(entries []*outbox.Entry) {
	for a = a.lockLatest(); a.gone; a = a.lockLatest() {
		a.mu.Unlock()
		next, err := a.e.associationAt(a.address)
		if err != nil {
			for _, x := range entries {
				a.settle(x, func(d *Delivery) { d.fail(err) })
			}
			return
		}
		a = next
	}
	defer a.mu.Unlock()
	a.used = time.Now()
	for _, x := range entries {
		a.box.Add(x)
	}
	a.pumpLocked()
}

// pathsLocked returns every path, also those that are no longer in use, in an
// order that does not depend on chance.
func (a *association) pathsLocked() []*path {
	return slices.SortedFunc(maps.Values(a.paths), func(p, q *path) int {
		return cmp.Or(cmp.Compare(p.transport, q.transport), cmp.Compare(p.name, q.name))
	})
}

// endpointsLocked returns every endpoint, current or being replaced.
func (a *association) endpointsLocked() []*endpoint {
	var eps []*endpoint
	for _, p := range a.pathsLocked() {
		eps = append(eps, p.endpointsLocked()...)
	}
	return eps
}

// endpointsLocked returns the path's.
func (p *path) endpointsLocked() []*endpoint {
	eps := slices.Clone(p.retiring)
	if p.ep != nil {
		eps = append([]*endpoint{p.ep}, eps...)
	}
	return eps
}

// tick is the timer: deadlines, overdue acks, requests for room, reconnects.
func (a *association) tick() {
	a.e.freeze.Awake()
	a.mu.Lock()
	now := time.Now()
	retired := a.reapLocked(now)
	a.tickLocked(now)
	a.mu.Unlock()
	for _, ep := range retired {
		ep.shut()
	}
}

func (a *association) tickLocked(now time.Time) {
	if a.dead != nil || a.successor != nil {
		return
	}
	since := a.armedAt
	a.armed = time.Time{}
	if !since.IsZero() && a.e.freeze.Within(since, now) {
		// This process did not run: what fell due meanwhile says nothing.
		a.box.Rearm(now)
		a.e.stats.voided[voidAckTimeouts].Add(1)
		a.trustLocked()
	}
	held, full := a.heldLocked() // by what is about to be taken out, too
	for _, x := range a.box.Expire(now) {
		a.explainLocked(x.Owner.(*Delivery))
		a.settle(x, func(d *Delivery) { d.fail(a.lateLocked(x, held, full)) })
	}
	for lane, late := range a.box.Timeouts(now) {
		a.e.stats.Timeouts.Add(uint64(late.Entries))
		p, ok := lane.Owner.(*path)
		if !ok {
			continue
		}
		p.countersLocked(a.e).timeouts.Add(uint64(late.Entries))
		if !late.Since.IsZero() {
			a.suspectLocked(p, late, now)
		}
	}
	a.judgeLocked(now)
	a.missReceiptsLocked(now)
	a.pumpLocked()
}

// armLocked sets the timer to what is due next.
func (a *association) armLocked(now time.Time) {
	if a.dead != nil || a.successor != nil {
		return
	}
	due := a.dueLocked(now)
	if due.IsZero() {
		a.timer.Stop()
		a.armed = time.Time{}
		return
	}
	// A timer that fires a little early finds nothing to do and is set again;
	// moving it with every frame would cost more.
	if !a.armed.IsZero() && !due.Before(a.armed) && a.armed.After(now) {
		return
	}
	a.armed, a.armedAt = due, now
	a.timer.Reset(max(due.Sub(now), time.Millisecond))
}

// heldLocked reports whether room holds something back, and whether that is
// since the receiver's queue is full, rather than since it does not answer.
func (a *association) heldLocked() (held, full bool) {
	if a.selfLane != nil {
		full = a.box.Head() != nil
		return full, full
	}
	s := a.box.Status()
	return s.Held, s.Held && s.Sent == 0
}

// lateLocked says what an entry still waited for when its deadline came.
func (a *association) lateLocked(x *outbox.Entry, held, full bool) error {
	left := x.MayHaveLeft()
	text := "not acknowledged within its deadline"
	switch {
	case a.box.Session() == 0 && !left && refused(a.hello.err):
		text = "its deadline was over and the peer still refused hello"
	case a.box.Session() == 0 && !left:
		text = "its deadline was over before hello was answered"
	case full && !left:
		text = "not sent within its deadline: the peer had no room, its queue is full"
	case full:
		text += ": the peer had no room, its queue is full"
	case held && !left:
		text = "not sent within its deadline: what was sent before it has no answer"
	case !left:
		text = "its deadline was over before it could be sent"
	}
	return sdk.Errorf(sdk.DeadlineExceeded, "%s", text)
}

// explainLocked adds to a delivery that is about to fail what kept it from the
// ways that it was not sent over.
func (a *association) explainLocked(d *Delivery) {
	if a.box.Session() == 0 {
		switch {
		case a.hello.err != nil:
			d.failed(Attempt{Reason: a.hello.err.Error()})
		case a.hello.running:
			d.failed(Attempt{Reason: "hello to " + a.address + ": no answer in time"})
		}
	}
	for _, p := range slices.Concat(a.order, a.downLocked()) {
		if p.trouble != "" {
			d.failed(Attempt{Transport: p.transport, Path: p.name, Reason: p.trouble})
		} else if p.connecting != nil {
			d.failed(Attempt{Transport: p.transport, Path: p.name, Reason: "still connecting"})
		}
	}
	for _, t := range a.e.missing(a.remote.list, a.node.Load() != nil) {
		d.failed(t)
	}
}
