package engine

import (
	"errors"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/sdk"
)

const (
	// A hello that failed is repeated after helloMin, doubled up to helloMax,
	// while something waits for it.
	helloMin = 100 * time.Millisecond
	helloMax = time.Second
)

// helloState is where an association stands with its own hello.
type helloState struct {
	running bool
	// replaces is the session that the receiver is known not to hold any
	// more, or that is given up.
	replaces uint64
	err      error // of the last try
	// wanted counts who waits for an answer although nothing is to be sent,
	// and try is what they wait for, another one after every try.
	wanted int
	try    *helloTry
}

// helloTry is one try of hello, or the association's end.
type helloTry struct {
	done chan struct{}
	err  error // valid once done is closed; nil if it was answered
}

func newHelloTry() *helloTry { return &helloTry{done: make(chan struct{})} }

// triedLocked wakes who waits for a try.
func (h *helloState) triedLocked() {
	h.try.err = h.err
	close(h.try.done)
	h.try = newHelloTry()
}

// helloIfNeededLocked opens a session if something waits for one.
func (a *association) helloIfNeededLocked() {
	if a.box.Session() != 0 || a.box.Len()+a.hello.wanted == 0 || a.hello.running || a.dead != nil || a.successor != nil {
		return
	}
	a.hello.running = true
	a.e.tasks.Go(a.sayHello)
}

// reopenLocked gives up the session: the receiver does not hold it, or may not
// any more.
func (a *association) reopenLocked() {
	if s := a.box.Session(); s != 0 { // else a hello is under way already
		a.hello.replaces = s
		a.e.stats.Reopened.Add(1)
	}
	cause := sdk.Errorf(sdk.SessionUnknown, "the receiver no longer holds the session")
	for _, x := range a.box.CloseSession() {
		a.settle(x, func(d *Delivery) { d.fail(cause) })
	}
	a.helloIfNeededLocked()
}

// sayHello repeats hello until it is answered or nothing waits for it.
func (a *association) sayHello() {
	wait := helloMin
	for {
		done := a.helloOnce()
		a.mu.Lock()
		a.hello.triedLocked()
		a.abandonLocked(time.Now())
		back := a.back
		if done || a.dead != nil || a.successor != nil || a.box.Len()+a.hello.wanted == 0 {
			a.hello.running = false
			a.pumpLocked() // what came meanwhile asks anew if need be
			a.mu.Unlock()
			return
		}
		a.mu.Unlock()
		select {
		case <-time.After(wait):
		case <-back:
			wait = helloMin
		case <-a.e.ctx.Done():
			a.mu.Lock()
			a.hello.running = false
			a.mu.Unlock()
			return
		}
		a.e.freeze.Awake()
		wait = min(2*wait, helloMax)
	}
}

// helloOnce says hello, and reports whether there is nothing left to say.
func (a *association) helloOnce() bool {
	a.mu.Lock()
	if a.box.Session() != 0 || a.successor != nil || a.dead != nil {
		a.mu.Unlock()
		return true // another name's hello was answered meanwhile
	}
	req := control.HelloRequest{From: a.e.self(), Proto: *a.e.cfg.Notification.Proto, Session: a.e.randomNonzero(), Replaces: a.hello.replaces}
	req.Transports, req.Version = a.publishedLocked()
	a.mu.Unlock()
	reply, err := a.client.Hello(a.e.ctx, req)
	switch {
	case err == nil:
		a.e.stats.helloSent[helloAnswered].Add(1)
	case silent(err):
		a.e.stats.helloSent[helloSilent].Add(1)
	default:
		a.e.stats.helloSent[helloFailed].Add(1)
	}
	if err == nil && (reply.Node.Incarnation.IsZero() || reply.Session == 0) {
		err = sdk.Errorf(sdk.Refused, "hello: the answer names no incarnation or session")
	}
	if err != nil {
		a.helloFailed(err)
		return a.node.Load() != nil && a.lost(err)
	}
	return a.greeted(req.Session, reply)
}

// helloFailed notes why. A refusal is not told by anything else, so it is said
// once each.
func (a *association) helloFailed(err error) {
	a.mu.Lock()
	before := a.hello.err
	a.hello.err = err
	a.mu.Unlock()
	if refused(err) && (before == nil || before.Error() != err.Error()) {
		a.e.log.Warn("hello refused: what is sent to this peer waits for another answer until its deadline", "peer", a.peer(), "error", err)
		return
	}
	a.e.log.Debug("hello failed", "peer", a.peer(), "error", err)
}

// refused reports whether a failed hello was answered all the same.
func refused(err error) bool { return control.Answered(err) || errors.Is(err, sdk.Refused) }

// lost ends the association if a call's error says that its peer is not there
// any more.
func (a *association) lost(err error) bool {
	switch {
	case control.Gone(err):
		a.die(goneError(a.address, err))
	case errors.Is(err, control.ErrAnother):
		a.die(sdk.Errorf(sdk.PeerRestarted, "the peer at %s is another one: %w", a.address, err))
	default:
		return false
	}
	return true
}

// greeted takes in the answer to hello. The association may turn out to belong
// to an incarnation that already has one, or to a life that is over.
//
// A session is used only if this hello proposed it, or if it is in use already.
// Any other one that the receiver holds may have been used before, under an
// association that ended: its numbers would be taken for copies, and acked as
// such. It is named as replaced and hello is said again.
func (a *association) greeted(proposed uint64, reply control.HelloReply) bool {
	owner, stale, err := a.e.bind(a, reply.Node, reply.Identity)
	if err != nil {
		a.helloFailed(a.e.impostor(err))
		return false
	}
	if stale {
		a.die(sdk.Errorf(sdk.PeerRestarted, "the peer at %s is a new incarnation", a.address))
		return true
	}
	if owner != a {
		a.mergeInto(owner)
	}
	owner.mu.Lock()
	defer owner.mu.Unlock()
	if owner.dead != nil || owner.successor != nil {
		return true
	}
	owner.hello.err = nil
	if owner.selfLane == nil && !owner.agreeLocked(min(reply.Proto, *a.e.cfg.Notification.Proto)) {
		owner.hello.err = sdk.Errorf(sdk.InvalidArgument, "hello: the peer changed its protocol to %d", reply.Proto)
		return owner != a
	}
	owner.learnLocked(reply.Transports, reply.Version)
	if owner.box.Session() == 0 {
		// One that a hello under way replaces is as good as gone.
		if reply.Session != proposed || reply.Session == owner.hello.replaces {
			owner.hello.replaces = reply.Session
			owner.pumpLocked()
			return owner != a // its own hello goes on
		}
		if owner.acks() {
			owner.box.Open(reply.Session, reply.Room.Seq, reply.Room.Bytes)
		} else {
			owner.box.OpenUnacked(reply.Session)
		}
		owner.lastSent = time.Now() // unused, it rests, too
	}
	owner.hello.replaces = 0
	owner.pumpLocked()
	return true
}

// mergeInto gives what waits here to the association of the incarnation.
func (a *association) mergeInto(owner *association) {
	a.mu.Lock()
	entries := a.box.TakeWaiting()
	a.successor = owner
	a.timer.Stop()
	a.mu.Unlock()
	owner.adopt(entries)
	_ = a.client.Close() // the owner has its own
}
