package engine

import (
	"cmp"
	"slices"
	"time"
)

// PeerStatus is what an engine holds of one peer: of an incarnation, or, as
// long as none has answered there, of an address.
type PeerStatus struct {
	// Address is where the peer is called. Name and Incarnation are what it
	// said there, empty before it has.
	Address, Name string
	Incarnation   Incarnation
	// Self: it is this engine.
	Self bool
	// Session says how far sending to the peer has come: none (nothing was
	// sent yet), opening (hello has no answer) or open. HelloError is why the
	// last hello failed.
	Session    string
	HelloError error
	// Cooldowns is not 0 while the peer is marked as silent: it counts its
	// cooldowns in a row, the last of which ends at SilentUntil. Until then
	// calls to it fail at once, unless it answers a probe; what is connected
	// carries on. See [PeerSilent].
	Cooldowns   int
	SilentUntil time.Time
	// Receiving: the peer has a session here, and may send.
	Receiving bool
	// Pending is notifications that have not ended: Waiting were not sent
	// yet, Sent are under way, Resend are to be sent again. OutboxBytes is
	// what they take.
	Pending, Waiting, Sent, Resend int
	OutboxBytes                    int
	// Room is how many more notifications, and RoomBytes how many more
	// bytes, the peer lets go out now. Held: its room holds something back.
	Room      int
	RoomBytes uint64
	Held      bool
	// Since is when the engine got to know the peer, Heard when the peer last
	// said anything, zero if it never did.
	Since, Heard time.Time
	// Paths are the ways to the peer, in order of preference.
	Paths []PathStatus
	// Segment is what the peer publishes of its memory, nil if nobody has read
	// it.
	Segment *SegmentStatus
}

// Usable lists the paths that take notifications now.
func (p PeerStatus) Usable() []PathStatus {
	var list []PathStatus
	for _, w := range p.Paths {
		if w.Usable() {
			list = append(list, w)
		}
	}
	return list
}

// The states of a path.
const (
	// PathUp: connected.
	PathUp = "up"
	// PathFull: connected, with as much under way as it takes.
	PathFull = "full"
	// PathRefusing: connected, but it refused a frame a moment ago.
	PathRefusing = "refusing"
	// PathInPause: it failed too often, and is skipped until PausedUntil,
	// connected or not, unless every path to the peer is paused.
	PathInPause = "paused"
	// PathDown: its transport does not list it now, as when a port has lost its
	// link. It is used again once it is listed.
	PathDown = "down"
	// PathConnecting: the first endpoint, or the next one, is being made.
	PathConnecting = "connecting"
	// PathFailed: connecting failed, and is tried again at RetryAt.
	PathFailed = "failed"
	// PathIdle: not connected, since nothing needed it.
	PathIdle = "idle"
)

// pathStates are all of them, as metrics have them.
var pathStates = []string{PathUp, PathFull, PathRefusing, PathInPause, PathDown, PathConnecting, PathFailed, PathIdle}

// PathStatus is how one way to a peer fares.
type PathStatus struct {
	// Transport is the transport's name on the wire, Path the way's name in
	// it.
	Transport, Path string
	// State is one of the states above; Since is since when the path is
	// connected, zero if it is not.
	State string
	Since time.Time
	// Instance is the transport's instance here that the endpoint belongs to,
	// or will, PeerInstance the peer's; Generation grows with each
	// endpoint.
	Instance, PeerInstance, Generation uint64
	// InFlight is frames given to the transport that have no outcome yet,
	// Pending notifications that were last sent this way and have not ended,
	// Retiring endpoints that were replaced and are not done.
	InFlight, Pending, Retiring int
	// Trouble is what went wrong last, empty after a connect, RetryAt when
	// connecting is tried again.
	Trouble string
	RetryAt time.Time
	// Pauses counts the path's pauses in a row, without a success since, and
	// PausedUntil is when the one that runs ends, zero if none does: then the
	// path is on probation, and its next error pauses it again for longer.
	Pauses      int
	PausedUntil time.Time
}

// Usable reports whether the path is connected and takes notifications.
func (p PathStatus) Usable() bool { return p.State == PathUp || p.State == PathFull }

// Peers tells what the engine holds of each peer, by address.
func (e *Engine) Peers() []PeerStatus {
	now := time.Now()
	var list []PeerStatus
	for _, a := range e.directory.all() {
		if s, ok := a.status(now); ok {
			if x := e.memory.source(s.Incarnation); x != nil {
				segment := x.status()
				s.Segment = &segment
			}
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b PeerStatus) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), a.Since.Compare(b.Since))
	})
	return list
}

// status reports false for an association whose place another one has taken.
func (a *association) status(now time.Time) (PeerStatus, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dead != nil || a.successor != nil {
		return PeerStatus{}, false
	}
	box := a.box.Status()
	var cooldowns int
	var silentUntil time.Time
	if a.selfLane == nil {
		cooldowns, silentUntil = a.e.watch.cooldown(a.address, now)
	}
	s := PeerStatus{
		Address: a.address, Self: a.selfLane != nil, Session: "none", Receiving: a.in != nil,
		Pending: a.box.Len(), Waiting: box.Waiting, Sent: box.Sent, Resend: box.Resend,
		OutboxBytes: box.Bytes, Room: box.Room, RoomBytes: box.RoomBytes, Held: box.Held,
		Since: a.made, Heard: a.heard, HelloError: a.hello.err,
		Cooldowns: cooldowns, SilentUntil: silentUntil,
	}
	if n := a.node.Load(); n != nil {
		s.Name, s.Incarnation = n.Name, n.Incarnation
	}
	switch {
	case a.box.Session() != 0:
		s.Session = "open"
	case a.hello.running:
		s.Session = "opening"
	}
	for _, p := range a.order {
		path := p.statusLocked(now)
		if a.selfLane == nil {
			path.Pauses, path.PausedUntil = a.e.watch.pause(a.keyLocked(p), now)
		}
		if !path.PausedUntil.IsZero() {
			path.State = PathInPause
		}
		s.Paths = append(s.Paths, path)
	}
	for _, p := range a.downLocked() {
		path := p.statusLocked(now)
		path.State = PathDown
		s.Paths = append(s.Paths, path)
	}
	return s, true
}

func (p *path) statusLocked(now time.Time) PathStatus {
	s := PathStatus{
		Transport: p.transport, Path: p.name, State: PathIdle, Instance: p.inst.ID, PeerInstance: p.remote,
		Generation: p.generation, Retiring: len(p.retiring), Trouble: p.trouble,
	}
	if p.up() {
		s.State, s.Since = PathUp, p.ep.installed
		s.Instance, s.PeerInstance, s.Generation = p.ep.inst.ID, p.ep.remote, p.ep.generation
		s.InFlight, s.Pending = p.ep.inflight.frames, p.ep.lane.Len()
		switch {
		case now.Before(p.shunUntil):
			s.State = PathRefusing
		case !p.fullSince.IsZero():
			s.State = PathFull
		}
		return s
	}
	switch {
	case p.connecting != nil:
		s.State = PathConnecting
	case p.failures > 0:
		s.State, s.RetryAt = PathFailed, p.retryAt
	}
	return s
}
