package sim

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/hawser-transport/hawser/engine"
)

// span is a time in which something did not run.
type span struct{ from, to time.Time }

type spans []span

// in reports whether any part of the times between is in one of them.
func (ss spans) in(from, to time.Time) bool {
	for _, s := range ss {
		if s.from.Before(to) && (s.to.IsZero() || from.Before(s.to)) {
			return true
		}
	}
	return false
}

// freeze stops a node's process, alone or with its plugins, for a time. Stopped
// alone, its plugins go on taking frames from its peers, and tell them so.
func (w *world) freeze(r *rand.Rand, plugins bool) bool {
	n := w.nodes[r.IntN(len(w.nodes))]
	d := w.freezeTime(r)
	w.mu.Lock()
	l := n.cur
	if l == nil || n.busy || l.stoppedLocked() {
		w.mu.Unlock()
		return false
	}
	l.frozen = append(l.frozen, span{from: time.Now()})
	w.mu.Unlock()
	what := "alone"
	if plugins {
		what = "with its plugins"
	}
	w.add("", "fault: %s's process stops for %v, %s", l, d, what)
	l.proc.Stop()
	w.net.Freeze(n.address, true)
	if plugins {
		for _, f := range w.fabrics {
			f.Freeze(n.address)
		}
	}
	began := time.Now()
	w.later(d, func() {
		w.mu.Lock()
		same := l.stoppedLocked() && l.frozen[len(l.frozen)-1].from.Equal(began)
		w.mu.Unlock()
		if same {
			w.thaw(l)
		}
	})
	return true
}

// freezeTime draws how long a process is stopped: around what the detector
// sees, the ack timeout, a mark's expiry, and a session's.
func (w *world) freezeTime(r *rand.Rand) time.Duration {
	second := float64(time.Second)
	middle := []float64{
		0.3 * second, 0.6 * second, 1.2 * float64(w.p.ackTimeout) * float64(time.Millisecond), 3 * second,
		float64(min(w.p.maxAge, 20*time.Second)), 2 * float64(w.p.longest),
	}
	if w.p.last < 20*time.Second {
		middle = middle[:4]
	}
	return time.Duration(middle[r.IntN(len(middle))]*(0.8+0.6*r.Float64())) | 1
}

// thaw lets a life's process go on.
func (w *world) thaw(l *life) {
	w.mu.Lock()
	if !l.stoppedLocked() {
		w.mu.Unlock()
		return
	}
	s := &l.frozen[len(l.frozen)-1]
	s.to = time.Now()
	took := s.to.Sub(s.from)
	w.mu.Unlock()
	switch {
	case took < 500*time.Millisecond:
		w.count("short freeze")
	case took > 700*time.Millisecond: // a tick before, and late by half a second
		w.count("long freeze")
	}
	for what, limit := range map[string]time.Duration{
		"freeze past the ack timeout":    time.Duration(w.p.ackTimeout) * time.Millisecond,
		"freeze past a mark's expiry":    w.p.maxAge,
		"freeze past a session's expiry": 2 * w.p.longest,
	} {
		if took > limit {
			w.count(what)
		}
	}
	for _, f := range w.fabrics {
		f.Thaw(l.n.address)
	}
	w.net.Freeze(l.n.address, false)
	l.proc.Resume()
	w.add("", "%s's process goes on after %v", l, took)
}

func (l *life) stoppedLocked() bool {
	n := len(l.frozen)
	return n > 0 && l.frozen[n-1].to.IsZero()
}

// due is when what has to happen by t can happen at the latest: a process that
// is stopped then does it when it goes on.
func (l *life) due(t time.Time) time.Time {
	l.n.w.mu.Lock()
	defer l.n.w.mu.Unlock()
	for _, s := range l.frozen {
		if !s.from.After(t.Add(slack)) && s.to.After(t) {
			t = s.to
		}
	}
	return t
}

// listen keeps what the engine tells of others.
func (l *life) listen() {
	w := l.n.w
	sub := l.e.Events(context.Background())
	for ev := range sub.C() {
		switch ev.Kind {
		case engine.PeerSilent, engine.PathPaused, engine.TransportDown:
			w.add("", "%s: %v %s %s/%s", l, ev.Kind, ev.Address, ev.Transport, ev.Path)
			w.with(func() { l.events = append(l.events, ev) })
		}
	}
	if n := sub.Lost(); n > 0 {
		w.broken("", "%s: %d events lost", l, n)
	}
}

// blame is how long after a freeze of a peer something can still be held
// against it: the window of path errors, and some.
const blame = 15 * time.Second

// checkVerdicts wants of a world in which nothing but processes stopped that
// each was held against the one that was stopped, if against anybody: a process
// that did not run finds nobody silent, no path bad and no plugin hung for that,
// and nothing ends early.
func (w *world) checkVerdicts() {
	frozen := map[string]spans{}
	for _, l := range w.everyLife {
		frozen[l.n.address] = append(frozen[l.n.address], l.frozen...)
		frozen[l.n.alias] = frozen[l.n.address]
	}
	for _, l := range w.everyLife {
		for _, ev := range l.events {
			if ev.Kind == engine.TransportDown && ev.Time.Sub(w.start) < w.p.last {
				w.broken("", "%s: its %s was given up", l, ev.Transport)
			} else if ev.Kind == engine.PathPaused && w.p.deaths {
				continue // that was their doing
			} else if ev.Address != "" && !frozen[ev.Address].in(ev.Time.Add(-blame), ev.Time) {
				w.broken("", "%s: %v %s %s/%s at %v, although that never stopped", l, ev.Kind, ev.Address, ev.Transport, ev.Path, ev.Time.Sub(w.start))
			}
		}
	}
	for _, s := range w.sends {
		if s.d == nil || s.d.Ended() != engine.Failed {
			continue
		}
		there, here := frozen[s.to.address], s.from.frozen
		early := s.ended.Before(s.deadline)
		switch {
		case early && !there.in(s.at.Add(-blame), s.ended):
			w.broken(s.name, "ended early, although its receiver never stopped")
		case !early && !there.in(s.at.Add(-blame), s.ended) && !here.in(s.at.Add(-blame), s.ended) && s.deadline.Sub(s.at) > time.Second:
			w.broken(s.name, "failed, although nobody stopped")
		}
	}
}
