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
	// PeerUp: a peer's engine was met: it answered hello, or said hello. It is
	// told once per incarnation; Peer names it.
	PeerUp EventKind = iota + 1
	// PeerSilent: a call to Address got no answer in its time. Calls fail at
	// once until Until, and for longer if the probes have no answer either.
	// Connected paths carry on. Peer is nil if nobody was ever met there.
	PeerSilent
	// PeerResumed ends PeerSilent: Address has answered, or its silence turned
	// out to say nothing, or it was forgotten. What is pending goes out now.
	PeerResumed
	// PeerRestartedEvent: another incarnation than Peer is at its address. What
	// may have left for Peer ends as DeliveryUnknown; what never left goes to
	// the new one, whose PeerUp comes before or after.
	PeerRestartedEvent
	// PeerGone: Peer said goodbye, its host refuses connections, or it was
	// forgotten after long silence; Err says which.
	PeerGone
	// TransportUp: an instance of Transport runs here and can be used.
	TransportUp
	// TransportDown: an instance of Transport ended; Err is nil if it was
	// stopped or replaced in order. It is started again unless it was removed.
	TransportDown
	// TransportQuarantined: Transport failed too often, or starting it again
	// soon cannot help; Err says why. It is tried again after
	// plugins.quarantine_retry_secs, and told again if that failed. A machine
	// that lacks what Transport needs is no event.
	TransportQuarantined
	// PathPaused: Path of Transport to Peer failed too often and is skipped
	// until Until, unless every path to Peer is paused; or its transport does
	// not list it any more, as when a port has lost its link: then Err is set,
	// Until is not, and nothing uses it.
	PathPaused
	// PathResumed ends PathPaused: its time is over, something got through,
	// the transport lists it again, or either end has a new instance. What is
	// pending goes on.
	PathResumed
	// RegionHeld: Close of Region has waited for ten seconds, or was given up;
	// Err names who holds it. It is told once for a region.
	RegionHeld
	// RegionReleased ends RegionHeld: nothing can touch the memory any more.
	RegionReleased
	// RegionRefused: Transport did not register Region, although it moves such
	// memory: peers reach it over others, if at all. Err says why. It is told
	// once for each instance of Transport.
	RegionRefused
	// TransfersUnresolved: an op with Peer, which Err is of, has ended with an
	// outcome that is not known, and its memory stays in use. It is told once
	// until TransfersResolved.
	TransfersUnresolved
	// TransfersResolved ends TransfersUnresolved: nothing touches memory any
	// more for any op that has ended.
	TransfersResolved
)

var eventNames = [...]string{
	"", "peer up", "peer silent", "peer resumed", "peer restarted", "peer gone",
	"transport up", "transport down", "transport quarantined", "path paused", "path resumed",
	"region held", "region released", "region refused", "transfers unresolved", "transfers resolved",
}

// String returns the kind's name.
func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return "unknown"
}

// Event is something that happened to a peer, a transport, a path or memory. What
// is of no use to its kind is zero.
type Event struct {
	Kind EventKind
	// Time is when the event was told.
	Time time.Time
	// Address is the peer's, for peers, paths and transfers, and Peer who is there, nil
	// if that is not known.
	Address string
	Peer    *Node
	// Transport is the configured name for transports and regions, and the
	// transport's for paths.
	Transport, Path string
	// Region is the beginning of a region's capability, for people.
	Region string
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

// Events subscribes to what happens to peers, transports, paths and memory, until
// ctx ends, the subscription or the engine is closed. Up to 256 events wait for
// their reader; of more the oldest are lost, and counted.
func (e *Engine) Events(ctx context.Context) *Subscription {
	s := &Subscription{events: make(chan Event, eventBuffer)}
	stop := context.AfterFunc(orBackground(ctx), func() { e.hub.remove(s) })
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

	told [len(eventNames)]atomic.Uint64 // by kind, whether or not anybody listens
	lost atomic.Uint64                  // by all subscriptions

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
	h.told[ev.Kind].Add(1)
	if !h.some.Load() {
		return
	}
	ev.Time = time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs {
		h.lost.Add(s.offer(ev))
	}
}

// offer makes room by dropping the oldest. The hub's lock is held, so nobody
// else adds. It returns how many that were.
func (s *Subscription) offer(ev Event) (lost uint64) {
	for {
		select {
		case s.events <- ev:
			return lost
		default:
		}
		select {
		case <-s.events:
			s.lost.Add(1)
			lost++
		default:
		}
	}
}
