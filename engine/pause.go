package engine

import (
	"time"

	"github.com/hawser-transport/hawser/engine/internal/health"
	"github.com/hawser-transport/hawser/engine/internal/outbox"
)

// pathChanged tells a peer's association that a path was paused or resumed.
func (e *Engine) pathChanged(ev health.PathEvent) {
	if ev.Kind == health.PathPaused {
		e.stats.Pauses.Add(1)
		e.stats.of(ev.Key.Transport).pauses.Add(1)
	}
	e.directory.mu.Lock()
	a := e.directory.byIncarnation[ev.Key.Peer]
	e.directory.mu.Unlock()
	if a == nil {
		return
	}
	kind := PathResumed
	if ev.Kind == health.PathPaused {
		kind = PathPaused
	}
	e.hub.tell(Event{
		Kind: kind, Address: a.address, Peer: a.node.Load(),
		Transport: ev.Key.Transport, Path: ev.Key.Path, Until: ev.Until,
	})
	e.log.Info(kind.String(), "peer", a.peer(), "transport", ev.Key.Transport, "path", ev.Key.Path, "until", ev.Until)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rankLocked(time.Now())
	if ev.Kind == health.PathResumed {
		a.resendAllLocked()
	}
	a.pumpLocked()
}

// keyLocked names the path in what is known of its health.
func (a *association) keyLocked(p *path) health.Key {
	return health.Key{Peer: a.node.Load().Incarnation, Transport: p.transport, Path: p.name}
}

// blameLocked takes in a failure of a path.
func (a *association) blameLocked(p *path, f health.Failure) {
	if a.node.Load() == nil || a.selfLane != nil || a.dead != nil || a.successor != nil {
		return
	}
	switch {
	case p.down:
		return // as was said
	case !health.Blame(f.Kind, f.Facts):
		a.e.stats.excused[excuse(f.Kind)].Add(1)
		return
	case !f.Began.IsZero() && a.e.freeze.Since(f.Began):
		a.e.stats.voided[voidPathError].Add(1)
		return
	}
	p.countersLocked(a.e).errors[f.Kind-health.EndpointEnded].Add(1)
	if a.e.watch.failed(a.keyLocked(p), f) {
		a.rankLocked(time.Now()) // what is pending goes another way at once
	}
}

// praiseLocked takes in that something sent at some time has arrived, over
// this path and no other.
func (a *association) praiseLocked(p *path, sent time.Time) {
	if !a.e.watch.troubled.Load() {
		return
	}
	a.e.watch.succeeded(a.keyLocked(p), sent)
}

// failed takes in a failure and reports whether the path is paused now.
func (w *watch) failed(key health.Key, f health.Failure) (paused bool) {
	w.change(func(now time.Time) []any {
		events := list(w.mu.paths.Failed(key, f, now))
		paused = !w.mu.paths.PausedUntil(key, now).IsZero()
		return events
	})
	return paused
}

func (w *watch) succeeded(key health.Key, sent time.Time) {
	w.change(func(time.Time) []any { return list(w.mu.paths.Succeeded(key, sent)) })
}

func (w *watch) forgetPath(key health.Key) {
	w.change(func(time.Time) []any { return list(w.mu.paths.Forget(key)) })
}

// forgetPeer drops the paths of a life that is over.
func (w *watch) forgetPeer(i Incarnation) {
	if !w.troubled.Load() {
		return
	}
	w.change(func(time.Time) []any {
		w.mu.paths.ForgetPeer(i)
		return nil
	})
}

// pausedUntil is when the path's pause ends, zero if it is not paused.
func (w *watch) pausedUntil(key health.Key, now time.Time) time.Time {
	if !w.troubled.Load() {
		return time.Time{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.paths.PausedUntil(key, now)
}

// pause is how many pauses in a row the path has had, and when the one that
// runs ends, zero if none does.
func (w *watch) pause(key health.Key, now time.Time) (n int, until time.Time) {
	if !w.troubled.Load() {
		return 0, time.Time{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.paths.Pauses(key), w.mu.paths.PausedUntil(key, now)
}

// suspicion is an ack that was overdue, until it is known whether the path is
// to blame: what was asked of the peer and sent over other paths has then had
// its time.
type suspicion struct {
	sent  time.Time // when the frame was; zero: nothing is suspected
	judge time.Time // when to decide
}

// suspectLocked suspects the path of a frame whose ack is overdue.
func (a *association) suspectLocked(p *path, late outbox.Late, now time.Time) {
	p.note("no acknowledgement within the ack timeout")
	if p.suspicion.sent.IsZero() {
		p.suspicion = suspicion{late.Since, now.Add(a.box.AckTimeout())}
		a.e.watch.ask(a.address)
	}
}

// judgeLocked decides the suspicions that are due. A path over which something
// arrived since is cleared.
func (a *association) judgeLocked(now time.Time) {
	for _, p := range a.order {
		s := p.suspicion
		if s.sent.IsZero() || now.Before(s.judge) {
			continue
		}
		p.suspicion = suspicion{}
		if p.provedAt.After(s.sent) {
			continue
		}
		a.blameLocked(p, health.Failure{Kind: health.AckTimeout, Began: s.sent, Facts: health.Facts{
			PeerAnswers: a.e.watch.answers(a.address, s.sent),
			HasRoom:     true, // else it would not be overdue
			OtherAcked:  a.otherAckedLocked(p, s.sent),
		}})
	}
}

// otherAckedLocked reports whether something last sent over another path was
// acked since.
func (a *association) otherAckedLocked(p *path, since time.Time) bool {
	for _, q := range a.order {
		if q != p && q.ackedAt.After(since) {
			return true
		}
	}
	return false
}

// trustLocked drops all suspicions: the peer's silence, or a freeze of this
// process, explains them.
func (a *association) trustLocked() {
	for _, p := range a.order {
		p.suspicion = suspicion{}
	}
}

// ackedLocked notes over which path an entry was acked.
func (a *association) ackedLocked(x *outbox.Entry, now time.Time) {
	if x.Lane() == nil {
		return
	}
	p, ok := x.Lane().Owner.(*path)
	if !ok {
		return
	}
	p.ackedAt = now
	if x.Copies() == 1 {
		p.provedAt = now
		a.praiseLocked(p, x.SentAt())
	}
}

// forgiveLocked forgets what is known of a path with another instance at
// either end.
func (a *association) forgiveLocked(p *path) {
	p.suspicion = suspicion{}
	if !a.e.watch.troubled.Load() {
		return
	}
	a.e.watch.forgetPath(a.keyLocked(p))
}
