package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// EventKind is what happened.
type EventKind uint8

const (
	// PeerUp: a peer's engine was met.
	PeerUp EventKind = iota + 1
	// PeerSilent: it did not answer. Until then, at least, calls fail at once.
	PeerSilent
	// PeerResumed: it may be called again: it has answered, or its silence
	// turned out to say nothing.
	PeerResumed
	// PeerRestartedEvent: another incarnation is at its address.
	PeerRestartedEvent
	// PeerGone: it said goodbye, or its host refuses connections.
	PeerGone
	// TransportUp: an instance of a transport runs here.
	TransportUp
	// TransportDown: it does no more.
	TransportDown
	// TransportQuarantined: it failed too often, or for good.
	TransportQuarantined
	// PathPaused: a path to a peer is skipped.
	PathPaused
	// PathResumed: it is used again.
	PathResumed
)

var eventNames = [...]string{
	"", "peer up", "peer silent", "peer resumed", "peer restarted", "peer gone",
	"transport up", "transport down", "transport quarantined", "path paused", "path resumed",
}

// String returns the kind's name.
func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return "unknown"
}

// Event is something that happened to a peer, a transport or a path.
type Event struct {
	Kind EventKind
	Time time.Time
	// Address is the peer's, for peers and paths, and Peer who is there, nil
	// if that is not known.
	Address string
	Peer    *Node
	// Transport is the configured name for transports, and the transport's
	// for paths.
	Transport, Path string
	// Until is when a pause ends, or a first cooldown.
	Until time.Time
	// Err says why, if there is a reason.
	Err error
}

// Subscription is a stream of events. See [Engine.Events].
type Subscription struct {
	events chan Event
	lost   atomic.Uint64
	end    func()
}

// C returns the channel of events. It is closed when the subscription ends.
func (s *Subscription) C() <-chan Event { return s.events }

// Lost is how many events its reader was too slow for.
func (s *Subscription) Lost() uint64 { return s.lost.Load() }

// Close ends the subscription.
func (s *Subscription) Close() { s.end() }

// eventBuffer is how many events wait for their reader.
const eventBuffer = 256

// Events subscribes to what happens to peers, transports and paths, until ctx
// ends, the subscription or the engine is closed. Up to 256 events wait for
// their reader; of more the oldest are lost, and counted.
func (e *Engine) Events(ctx context.Context) *Subscription {
	s := &Subscription{events: make(chan Event, eventBuffer)}
	stop := context.AfterFunc(ctx, func() { e.hub.remove(s) })
	s.end = func() {
		stop()
		e.hub.remove(s)
	}
	e.hub.add(s)
	return s
}

// hub hands events to subscriptions. Its lock may be taken while any other is
// held.
type hub struct {
	some atomic.Bool // there is a subscription

	mu     sync.Mutex
	subs   map[*Subscription]struct{}
	closed bool
}

func (h *hub) add(s *Subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		close(s.events)
		return
	}
	if h.subs == nil {
		h.subs = map[*Subscription]struct{}{}
	}
	h.subs[s] = struct{}{}
	h.some.Store(true)
}

func (h *hub) remove(s *Subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.subs[s]; ok {
		delete(h.subs, s)
		close(s.events)
	}
	h.some.Store(len(h.subs) > 0)
}

// close ends every subscription.
func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for s := range h.subs {
		close(s.events)
	}
	h.subs = nil
}

// tell hands an event to everybody.
func (h *hub) tell(ev Event) {
	if !h.some.Load() {
		return
	}
	ev.Time = time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs {
		s.offer(ev)
	}
}

// offer makes room by dropping the oldest. The hub's lock is held, so nobody
// else adds.
func (s *Subscription) offer(ev Event) {
	for {
		select {
		case s.events <- ev:
			return
		default:
		}
		select {
		case <-s.events:
			s.lost.Add(1)
		default:
		}
	}
}
