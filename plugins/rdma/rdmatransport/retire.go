package rdmatransport

import (
	"time"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/sdk"
)

const (
	// farewell is how long an endpoint that ended here waits until what it has
	// posted, and its bye, have reached the peer.
	farewell = 250 * time.Millisecond

	// lastReceives is how long a queue pair in the error state may take to say
	// that it takes no more receives; not every device says so.
	lastReceives = 250 * time.Millisecond

	// lastOps is how long an endpoint for memory waits for the completions of
	// what was posted: they say that the outcome is unknown, and so does Ended,
	// which somebody waits for who repeats them.
	lastOps = 2 * time.Second

	// destroyAgain is when a queue pair of an endpoint for memory that the
	// device has kept is destroyed again; later ever less often, down to
	// destroyRarely.
	destroyAgain  = 50 * time.Millisecond
	destroyRarely = 10 * time.Second
)

// retire is the end of the endpoint's goroutine. The queue pair stays published
// until it has no completions left, so that everything that has landed reaches
// the handler and every buffer comes back; only then its number is free.
func (e *endpoint) retire() {
	cause := e.withdraw()
	e.d.log.Debug("endpoint ends", "peer", e.peer, "number", e.num, "cause", cause)
	force := time.Now().Add(milliseconds(e.d.settings.RetireTimeoutMS))
	if e.memory {
		force = earlier(force, time.Now().Add(lastOps))
	}
	e.leave()
	e.flush(force)
	e.sweep() // what landed before the queue pair was empty
	e.await(force, e.handedOverLocked)
	e.rushed = true
	for !e.overWith() {
		e.deliver()
	}
	if e.memory {
		e.fence()
	}
	e.handler.Ended(cause)
	if !e.memory {
		e.destroy()
	}
}

// fence destroys the queue pair of an endpoint for memory, which has to come
// before Ended: then neither device does anything for it to memory here. A
// queue pair that the device keeps may still do so, and is tried again until
// the process ends.
func (e *endpoint) fence() {
	for wait := destroyAgain; !e.destroy(); wait = min(2*wait, destroyRarely) {
		time.Sleep(wait)
	}
}

// sweep has everything dispatched that is in the completion queue now.
func (e *endpoint) sweep() {
	if _, err := e.d.sweep(); err != nil {
		e.d.fail(err)
	}
}

// withdraw reports what was never posted, and returns the endpoint's cause.
func (e *endpoint) withdraw() error {
	e.mu.Lock()
	cause := e.cause
	var never slotList
	never.join(&e.queue)
	cs := make([]sdk.Completion, 0, never.n)
	for s := never.head; s != nil; s = s.next {
		e.bytes -= s.size
		cs = append(cs, sdk.Completion{ID: s.frame, Outcome: sdk.NotPosted, Code: sdk.CodeOf(cause)})
	}
	e.releaseAll(&never)
	e.mu.Unlock()
	if len(cs) > 0 {
		e.handler.Completed(cs)
	}
	return cause
}

// leave lets what is posted arrive, and tells the peer that nothing follows:
// otherwise it would learn that only from its next send, seconds later.
func (e *endpoint) leave() {
	e.sweep() // the peer's first message may be among what has landed
	e.mu.Lock()
	told := e.joined && !e.broken && !e.left && e.tellLocked(bye, 0)
	e.mu.Unlock()
	if told {
		e.await(time.Now().Add(farewell), func() bool { return e.posted == 0 || e.broken })
	}
}

// flush moves the queue pair to the error state and waits for the completions
// of everything that was posted, and until it takes no more receives.
func (e *endpoint) flush(force time.Time) {
	e.mu.Lock()
	linked := e.linked
	e.broken = true
	e.mu.Unlock()
	if !linked {
		return // nothing was posted, nothing can have come
	}
	if state, err := e.qp.State(); err == nil && state == verbs.Reset {
		// Somebody moved it there, and what was posted has no completions.
		e.lossy = true
		return
	}
	if err := e.qp.ToError(); err != nil {
		e.d.log.Warn("a queue pair does not go to the error state", "peer", e.peer, "error", err)
	}
	e.await(earlier(force, time.Now().Add(lastReceives)), func() bool { return e.posted == 0 && e.emptied })
	e.await(force, func() bool { return e.posted == 0 })
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// await hands over what comes until cond holds, which runs under the lock, or
// the time is over, or the device is lost.
func (e *endpoint) await(until time.Time, cond func() bool) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	for {
		e.deliver()
		e.mu.Lock()
		holds := cond()
		e.mu.Unlock()
		if holds || e.d.lost.Load() {
			return
		}
		select {
		case <-e.wake:
		case <-timer.C:
			return
		}
	}
}

// overWith closes the inbox if it is empty, and nothing of it is left.
func (e *endpoint) overWith() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = e.inbox == nil && e.kept == nil && e.missed == 0
	return e.over
}

// destroy takes the queue pair away, and with it what was still posted, whose
// buffers are free then. It says whether the device let it.
func (e *endpoint) destroy() bool {
	if err := e.qp.Close(); err != nil {
		// The device may still use the buffers, and the number.
		e.d.log.Error("a queue pair cannot be destroyed", "peer", e.peer, "error", err)
		return false
	}
	// Completions that the queue pair has left behind must not be taken for
	// those of the next one of its number.
	e.sweep()
	e.mu.Lock()
	left := e.posted
	e.posted = 0
	e.d.granted.Add(-int64(e.granted - e.consumed))
	e.releaseAll(&e.flying)
	e.mu.Unlock()
	if left > 0 {
		e.d.log.Warn("a queue pair was destroyed with work outstanding", "peer", e.peer, "count", left)
		e.d.giveRoom(left)
	}
	if left > 0 || e.lossy {
		// What the peer was granted may have landed, and control messages.
		e.d.missed.Add(int64(e.granted-e.received) + controls)
	}
	e.d.table.withdraw(e)
	if e.d.missed.Load() > 0 {
		e.d.settle()
	}
	return true
}

// discard is the handler of an endpoint that never came to be.
type discard struct{}

func (discard) Completed([]sdk.Completion) {}
func (discard) Received([][]byte)          {}
func (discard) Ended(error)                {}
