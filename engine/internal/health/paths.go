package health

import (
	"cmp"
	"slices"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// MaxPaths bounds the paths with trouble that are remembered. Otherwise a peer
// that publishes ever new paths and refuses them all, or a crowd of such peers,
// makes this engine remember each.
const MaxPaths = 8192

// PathOptions are [Paths]' settings: engine.PathHealthConfig, checked and
// filled in.
type PathOptions struct {
	// ErrorThreshold errors within ErrorWindow pause a path.
	ErrorThreshold int
	ErrorWindow    time.Duration
	// Cooldown is the first pause, MaxCooldown the longest.
	Cooldown, MaxCooldown time.Duration
}

// Key names a path. It says nothing of descriptors, instances or endpoints, so
// that what is known survives their refresh.
type Key struct {
	Peer            sdk.Incarnation
	Transport, Path string
}

// PathEventKind is what happened to a path.
type PathEventKind uint8

const (
	// PathPaused: it is to be skipped.
	PathPaused PathEventKind = iota + 1
	// PathResumed: its pause is over. What is pending goes out now.
	PathResumed
)

// PathEvent is one change of a path. Per path they alternate.
type PathEvent struct {
	Kind PathEventKind
	Key  Key
	// Until is when the pause ends, for PathPaused.
	Until time.Time
}

// Failure is something that went wrong on a path.
type Failure struct {
	Kind  Kind
	Facts Facts
	// Began is when that began which failed: the frame was sent, the attempt
	// or the endpoint started, the transport was called. Zero means now.
	Began time.Time
	// Endpoint is the bootstrap generation of an endpoint that has ended or
	// was never connected, else 0. An endpoint's death counts once, whatever
	// reports it and however often.
	Endpoint uint64
}

// death reports whether the failure is an endpoint's last word.
func (f Failure) death() bool {
	return f.Endpoint != 0 && (f.Kind == EndpointEnded || f.Kind == Refused || f.Kind == ConnectFailed)
}

// Paths knows which paths are paused. It is not safe for concurrent use.
//
// A path on which nothing goes wrong costs nothing.
type Paths struct {
	o     PathOptions
	clock clock
	paths map[Key]*path
	max   int
}

// path is what is known of a path with trouble.
type path struct {
	errors  []time.Time // within the window, fewer than the threshold
	counted time.Time   // when the last error was
	died    uint64      // the newest endpoint whose death was counted

	// pauses counts the pauses in a row, without a success since. A path with
	// pauses that is not paused is on probation: the next error pauses it
	// again at once, for twice as long. Its last trial failed and it has not
	// shown since that it works; a threshold of errors, each of which is a
	// frame that waited for its ack, would be paid after every pause.
	pauses int
	paused bool      // as told; true until it is told that until has passed
	began  time.Time // when the last pause did
	until  time.Time
}

// NewPaths returns a Paths that knows of no trouble.
func NewPaths(o PathOptions) *Paths { return &Paths{o: o, paths: map[Key]*path{}, max: MaxPaths} }

// Idle reports whether no path has trouble.
func (p *Paths) Idle() bool { return len(p.paths) == 0 }

// PausedUntil is when the path's pause ends, zero if it is not paused.
func (p *Paths) PausedUntil(key Key, now time.Time) time.Time {
	s := p.paths[key]
	if s == nil || !p.clock.at(now).Before(s.until) {
		return time.Time{}
	}
	return s.until
}

// Pauses is how many pauses in a row the path has had without a success since,
// the one that runs included.
func (p *Paths) Pauses(key Key) int {
	if s := p.paths[key]; s != nil {
		return s.pauses
	}
	return 0
}

// Failed takes in a failure. It counts if [Blame] says so, if it is not the
// echo of one that counted, and if the path is not paused: then it is known,
// and if it is tried for want of others its pause just runs on.
func (p *Paths) Failed(key Key, f Failure, now time.Time) []PathEvent {
	now = p.clock.at(now)
	if f.Began.IsZero() {
		f.Began = now
	}
	if !Blame(f.Kind, f.Facts) || p.clock.void(f.Began) {
		return nil
	}
	s, events := p.hold(key, now)
	if now.Before(s.until) || s.echo(f) {
		return events
	}
	events = append(events, s.over(key, now)...)
	s.counted = now
	if f.death() {
		s.died = max(s.died, f.Endpoint)
	}
	if s.pauses == 0 {
		s.errors = append(p.recent(s, now), now)
		if len(s.errors) < p.o.ErrorThreshold {
			return events
		}
	}
	s.pauses++
	s.errors, s.paused, s.began = nil, true, now
	s.until = now.Add(doubled(p.o.Cooldown, p.o.MaxCooldown, s.pauses))
	return append(events, PathEvent{PathPaused, key, s.until})
}

// echo reports whether a failure tells of nothing that did not count before:
// the frames of one burst are overdue one after the other, and an endpoint's
// end is reported by whoever waited for it.
func (s *path) echo(f Failure) bool {
	if f.death() {
		return f.Endpoint <= s.died
	}
	return !f.Began.After(s.counted)
}

// Succeeded clears everything about a path over which something arrived that
// began (a frame: was sent) after the last error that counted; what began
// before says nothing of the time since. At protocol 2 a success is the ack of
// a frame whose only copy went over the path: neither a connect nor a
// transport's own receipt shows that frames arrive, and of two copies it is
// not known which one did.
func (p *Paths) Succeeded(key Key, began time.Time) []PathEvent {
	if len(p.paths) == 0 { // the usual case, and this is called for every ack
		return nil
	}
	if s := p.paths[key]; s == nil || !began.After(s.counted) {
		return nil
	}
	return p.Forget(key)
}

// Forget clears everything about a path of which either end is another one
// now: a plugin's new instance is not to blame for the old one's failures.
func (p *Paths) Forget(key Key) []PathEvent {
	s := p.paths[key]
	delete(p.paths, key)
	if s == nil || !s.paused {
		return nil
	}
	return []PathEvent{{Kind: PathResumed, Key: key}}
}

// ForgetPeer drops the paths of a peer that is dead. There is nothing to tell.
func (p *Paths) ForgetPeer(peer sdk.Incarnation) {
	for key := range p.paths {
		if key.Peer == peer {
			delete(p.paths, key)
		}
	}
}

// Due tells which pauses have ended, each once, and drops what has no meaning
// any more.
func (p *Paths) Due(now time.Time) []PathEvent {
	now = p.clock.at(now)
	var events []PathEvent
	for key, s := range p.paths {
		events = append(events, s.over(key, now)...)
		if p.idle(s, now) {
			delete(p.paths, key)
		}
	}
	slices.SortFunc(events, byKey)
	return events
}

// Next is when the next pause ends, never before now; zero if there is none.
func (p *Paths) Next(now time.Time) time.Time {
	now = p.clock.at(now)
	var next time.Time
	for _, s := range p.paths {
		if s.paused {
			next = earlier(next, notBefore(s.until, now))
		}
	}
	return next
}

// Rearm says that this process did not run for a part of the time since then.
// Errors of that interval, and pauses that began in it, are void; so is what
// will fail of all that began before now. Earlier pauses run on: what they
// wait for goes on without this process.
func (p *Paths) Rearm(since, now time.Time) []PathEvent {
	now = p.clock.at(now)
	if !since.Before(now) {
		return nil
	}
	p.clock.thawed = now
	var events []PathEvent
	for key, s := range p.paths {
		s.errors = slices.DeleteFunc(s.errors, func(at time.Time) bool { return !at.Before(since) })
		if s.pauses > 0 && !s.began.Before(since) {
			s.pauses--
			s.until = now
			events = append(events, s.over(key, now)...)
		}
	}
	slices.SortFunc(events, byKey)
	return events
}

// over tells, once, that the path's pause has ended.
func (s *path) over(key Key, now time.Time) []PathEvent {
	if !s.paused || now.Before(s.until) {
		return nil
	}
	s.paused = false
	return []PathEvent{{Kind: PathResumed, Key: key}}
}

// recent drops the errors that are out of the window.
func (p *Paths) recent(s *path, now time.Time) []time.Time {
	return slices.DeleteFunc(s.errors, func(at time.Time) bool { return now.Sub(at) >= p.o.ErrorWindow })
}

// idle reports whether nothing is known of the path that matters still.
func (p *Paths) idle(s *path, now time.Time) bool {
	return s.pauses == 0 && !s.paused && now.Sub(s.counted) >= p.o.ErrorWindow
}

// hold returns what is known of a path, and remembers one that is new. At the
// bound the path whose last error is the oldest goes, idle ones before others.
func (p *Paths) hold(key Key, now time.Time) (*path, []PathEvent) {
	if s := p.paths[key]; s != nil {
		return s, nil
	}
	var events []PathEvent
	if len(p.paths) >= p.max {
		events = p.Forget(p.victim(now))
	}
	s := &path{}
	p.paths[key] = s
	return s, events
}

func (p *Paths) victim(now time.Time) Key {
	var victim Key
	var worst *path
	for key, s := range p.paths {
		if worst == nil || cmp.Or(
			-compareBool(p.idle(s, now), p.idle(worst, now)),
			s.counted.Compare(worst.counted),
			compareKeys(key, victim),
		) < 0 {
			victim, worst = key, s
		}
	}
	return victim
}

func compareKeys(a, b Key) int {
	return cmp.Or(slices.Compare(a.Peer[:], b.Peer[:]), cmp.Compare(a.Transport, b.Transport), cmp.Compare(a.Path, b.Path))
}

func byKey(a, b PathEvent) int { return compareKeys(a.Key, b.Key) }
