package engine

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/outbox"
	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/engine/internal/ranker"
	"github.com/hawser-transport/hawser/sdk"
)

const (
	// A path that could not be connected is tried again after reconnectMin,
	// doubled up to reconnectMax; a change at either end tries it at once.
	reconnectMin = 100 * time.Millisecond
	reconnectMax = 5 * time.Second
	// retrySend is how long a path that took nothing is left alone.
	retrySend = 2 * time.Millisecond
	// retireCheck is how often replaced endpoints are looked at.
	retireCheck = 20 * time.Millisecond
)

type pathKey struct{ transport, name string }

// path is one way to a peer: a transport's path, with the endpoint that is
// connected over it, if any. The association's lock guards it; transport and
// name are constant.
type path struct {
	transport, name string

	rank     int // the transport's place
	index    int // the path's place
	fallback bool
	limit    int // the largest frame, of both sides
	inst     *pluginhost.Instance
	remote   uint64 // the peer's instance
	attrs    sdk.Attributes

	ep         *endpoint
	retiring   []*endpoint // replaced, with entries pending
	generation uint64      // the highest seen
	lost       uint64      // the generation whose end here went by itself, of which the peer is told
	own        uint64      // the same if this side drew it, else 0
	connecting *endpoint   // the attempt under way, or nil
	fresh      bool        // not tried since it became known: worth waiting for
	freshUntil time.Time   // for so long
	failures   int
	outdated   int // attempts in a row that the peer had seen a later one than
	retryAt    time.Time
	fullSince  time.Time // since when it took nothing more
	// blockedUntil is when to try again a transport that had no room although
	// the endpoint is within its limits.
	blockedUntil time.Time
	// shunUntil is when to try again a transport that refused a frame, and
	// shuns how often it did so in a row.
	shunUntil time.Time
	shuns     int
	down      bool   // a side's transport does not list it now: it is not in the order
	downHere  bool   // this side's
	trouble   string // what went wrong last

	suspicion suspicion
	// ackedAt is when something last sent over the path was last acked, and
	// provedAt the same of what was sent over no other.
	ackedAt, provedAt time.Time
	counters          *transportCounters
}

// shun leaves the path alone for a moment: it refused a frame, and will refuse
// the next one, too, until its end is noticed. Longer each time, up to the
// pause between two passes over all ways.
func (p *path) shun(now time.Time) {
	p.shunUntil = now.Add(min(retrySend<<min(p.shuns, 10), helloMax))
	p.shuns++
}

// note keeps what went wrong last, for the errors of deliveries.
func (p *path) note(reason string) { p.trouble = reason }

// failedLocked paces the next attempt.
func (a *association) failedLocked(p *path, now time.Time, reason string) {
	p.fresh, p.outdated = false, 0
	p.note(reason)
	wait := min(reconnectMax, reconnectMin<<min(p.failures, 10))
	p.failures++
	p.retryAt = now.Add(a.e.spread(wait))
}

// stale reports whether the endpoint belongs to an instance, here or at the
// peer, that has a successor. It carries until a new one is connected.
func (p *path) stale() bool { return p.ep != nil && (p.ep.inst != p.inst || p.ep.remote != p.remote) }

// up reports whether frames can be sent over the path.
func (p *path) up() bool { return p.ep != nil && p.ep.se != nil }

// dueLocked is when the path wants the association's timer, or zero.
func (p *path) dueLocked(a *association, now time.Time) time.Time {
	due := p.sendDueLocked(a, now)
	if s := p.suspicion; !s.sent.IsZero() && (due.IsZero() || s.judge.Before(due)) {
		return s.judge
	}
	return due
}

// sendDueLocked is when the path may be able to take something.
func (p *path) sendDueLocked(a *association, now time.Time) time.Time {
	if p.up() {
		if now.Before(p.shunUntil) && a.box.Head() != nil {
			return p.shunUntil
		}
		if now.Before(p.blockedUntil) && len(a.owed) > 0 {
			return p.blockedUntil
		}
		if p.fullSince.IsZero() || a.box.Head() == nil {
			return time.Time{}
		}
		if now.Before(p.blockedUntil) {
			return p.blockedUntil
		}
		return later(p.fullSince.Add(a.e.cfg.Notification.SlotWait()), now)
	}
	if p.fresh && now.Before(p.freshUntil) {
		return p.freshUntil
	}
	if p.connecting != nil {
		return time.Time{}
	}
	if a.box.Head() != nil || a.keepsLocked(p) {
		return later(p.retryAt, now)
	}
	return time.Time{}
}

// later returns t if it is yet to come, else zero: what was due by now was done
// or waits for something else, which has its own word.
func later(t, now time.Time) time.Time {
	if t.After(now) {
		return t
	}
	return time.Time{}
}

// keepsLocked reports whether the path is connected without a frame to send:
// the fallback is, towards peers that we send to, so that falling back needs
// no dial.
func (a *association) keepsLocked(p *path) bool { return p.fallback && a.box.Session() != 0 }

// chooseLocked picks the path for an entry: the first in the ranked order that
// is connected and has room. It starts what connecting is worthwhile on the
// way, and returns nil if the entry has to wait.
func (a *association) chooseLocked(e *outbox.Entry, now time.Time) *path {
	var avoided *path
	for _, p := range a.waysLocked(a.size(e)) {
		if a.size(e) > p.limit {
			continue
		}
		if !p.up() {
			a.connectLocked(p, now)
			if p.fresh && p.freshUntil.IsZero() {
				p.freshUntil = now.Add(a.e.cfg.Notification.SlotWait())
			}
			if p.fresh && p.connecting != nil && now.Before(p.freshUntil) {
				return nil // its first connect is under way, and it is the better one
			}
			continue
		}
		if p.stale() {
			a.connectLocked(p, now)
		}
		if now.Before(p.shunUntil) {
			continue
		}
		if !p.ep.hasRoom(a.size(e)) || now.Before(p.blockedUntil) {
			if p.fullSince.IsZero() {
				p.fullSince = now
			}
			if now.Sub(p.fullSince) < a.e.cfg.Notification.SlotWait() {
				return nil
			}
			continue
		}
		p.fullSince = time.Time{}
		if p != e.Avoid {
			return p
		}
		if avoided == nil {
			avoided = p
		}
	}
	return avoided
}

// waysLocked returns the paths to try for a frame, best first: if those that
// can carry it are all paused, the one whose pause ends first.
func (a *association) waysLocked(size int) []*path {
	for _, p := range a.ranked {
		if size <= p.limit {
			return a.ranked
		}
	}
	for i, p := range a.paused {
		if size <= p.limit {
			return a.paused[i : i+1]
		}
	}
	return nil
}

// tooLargeLocked reports whether no transport that both sides run can ever
// carry the entry, and the largest limit there is.
func (a *association) tooLargeLocked(e *outbox.Entry) (limit int, is bool) {
	if !a.matched || len(a.order) == 0 {
		return 0, false
	}
	for _, p := range a.order {
		limit = max(limit, p.limit)
	}
	if a.size(e) <= limit {
		return limit, false
	}
	for _, p := range a.paths { // of a transport that is only restarting
		if a.size(e) <= p.limit && a.e.runs(p.transport) {
			return limit, false
		}
	}
	return limit, true
}

// outgrownLocked reports whether the entry is too large for a connected path,
// which a smaller one behind it may use.
func (a *association) outgrownLocked(e *outbox.Entry) bool {
	for _, p := range a.ranked {
		if p.up() && a.size(e) > p.limit {
			return true
		}
	}
	return false
}

// keepLocked connects what is to be connected without being used.
func (a *association) keepLocked(now time.Time) {
	for _, p := range a.order {
		if a.keepsLocked(p) && (!p.up() || p.stale()) {
			a.connectLocked(p, now)
		}
	}
}

// rankLocked decides which paths are tried for notifications, in which order.
func (a *association) rankLocked(now time.Time) {
	candidates := make([]ranker.Candidate, len(a.order))
	until := map[*path]time.Time{}
	for i, p := range a.order {
		candidates[i] = ranker.Candidate{Transport: p.rank, Path: p.index}
		if a.selfLane == nil {
			candidates[i].PausedUntil = a.e.watch.pausedUntil(a.keyLocked(p), now)
		}
		if candidates[i].PausedUntil.After(now) {
			until[p] = candidates[i].PausedUntil
		}
	}
	a.paused = slices.SortedStableFunc(maps.Keys(until), func(p, q *path) int {
		return cmp.Or(until[p].Compare(until[q]), cmp.Compare(p.rank, q.rank), cmp.Compare(p.index, q.index))
	})
	a.ranked = a.ranked[:0]
	for _, i := range ranker.Order(candidates, now) {
		a.ranked = append(a.ranked, a.order[i])
	}
}

// install makes ep the path's endpoint. One that it replaces carries nothing
// new; it is ended once nothing is pending on it, or soon.
func (a *association) installLocked(p *path, ep *endpoint, now time.Time) {
	if old := p.ep; old != nil {
		old.retired = now
		p.retiring = append(p.retiring, old)
		a.retiring++
	}
	p.ep, p.connecting, p.fresh, p.trouble = ep, nil, false, ""
	p.outdated = 0
	ep.installed = now
}

const (
	// retireFor is how long a replaced endpoint may take to get rid of what is
	// pending on it.
	retireFor = 2 * time.Second
	// linger is how long it stays in any case: the peer may have sent over it
	// before it knew of the new one.
	linger = 250 * time.Millisecond
)

// idleLocked reports whether a retired endpoint carries nothing any more.
func (ep *endpoint) idleLocked(now time.Time) bool {
	return ep.lane.Len() == 0 && now.Sub(ep.retired) >= linger
}

// reapLocked returns the replaced endpoints that can be ended now.
func (a *association) reapLocked(now time.Time) []*endpoint {
	if a.retiring == 0 {
		return nil
	}
	var done []*endpoint
	for _, p := range a.pathsLocked() {
		for _, ep := range p.retiring {
			if ep.idleLocked(now) || now.Sub(ep.retired) >= retireFor {
				done = append(done, ep)
			}
		}
	}
	return done
}

// retire moves traffic off a local instance and returns how many endpoints
// still have something pending, or no successor yet.
func (a *association) retire(inst *pluginhost.Instance) int {
	a.mu.Lock()
	busy := 0
	var idle []*endpoint
	now := time.Now()
	for _, p := range a.pathsLocked() {
		for _, ep := range p.retiring {
			if ep.inst != inst {
				continue
			}
			if ep.idleLocked(now) {
				idle = append(idle, ep)
			} else {
				busy++
			}
		}
		if p.ep == nil || p.ep.inst != inst {
			continue
		}
		if p.ep.retired.IsZero() {
			p.ep.retired = now
		}
		switch {
		case p.inst != inst: // its successor is up: connect that first
			a.connectLocked(p, now)
			busy++
		case p.ep.idleLocked(now):
			idle = append(idle, p.ep)
		default:
			busy++
		}
	}
	a.mu.Unlock()
	for _, ep := range idle {
		ep.shut()
	}
	return busy
}
