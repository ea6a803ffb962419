package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/health"
)

// watch knows which control planes are silent and which paths are paused. What
// changes is told to the associations by its own goroutine, run, which is also
// the prober; it sleeps while there is nothing to ask and no pause to end. Its
// lock may be taken while any other is held, and none is taken under it.
type watch struct {
	e    *Engine
	wake chan struct{} // a token: run has something to do

	// A look without the lock, for the hot path.
	marked   atomic.Bool // some address is known
	troubled atomic.Bool // some path is known

	mu struct {
		sync.Mutex
		peers *health.Peers
		paths *health.Paths
		news  []any // events that were not told yet, in order
		ended bool
	}
}

func newWatch(e *Engine) *watch {
	w := &watch{e: e, wake: make(chan struct{}, 1)}
	p, q := e.cfg.PeerHealth, e.cfg.PathHealth
	w.mu.peers = health.NewPeers(health.PeerOptions{
		Enable: *p.Enable, Cooldown: p.Cooldown(), MaxCooldown: p.MaxCooldown(),
		ProbeInterval: p.ProbeInterval(), ProbeTimeout: e.cfg.RPC.ProbeTimeout(), MaxAge: p.MaxAge(),
	})
	w.mu.paths = health.NewPaths(health.PathOptions{
		ErrorThreshold: q.ErrorThreshold, ErrorWindow: q.ErrorWindow(),
		Cooldown: q.Cooldown(), MaxCooldown: q.MaxCooldown(),
	})
	return w
}

// change changes what is known, and has run tell what that led to.
func (w *watch) change(f func(now time.Time) []any) {
	w.mu.Lock()
	if w.mu.ended {
		w.mu.Unlock()
		return
	}
	news := f(time.Now())
	w.mu.news = append(w.mu.news, news...)
	w.marked.Store(!w.mu.peers.Idle())
	w.troubled.Store(!w.mu.paths.Idle())
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// list makes events of one kind those of any.
func list[E any](events []E) []any {
	var l []any
	for _, e := range events {
		l = append(l, e)
	}
	return l
}

// run tells news, asks silent peers and ends pauses, until ctx ends.
func (w *watch) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Stop()
		if next := w.round(); !next.IsZero() {
			timer.Reset(max(time.Until(next), time.Millisecond))
		}
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
		w.e.freeze.Awake()
	}
}

// round does what is due, and returns when something is due next; zero is never.
func (w *watch) round() time.Time {
	w.mu.Lock()
	now := time.Now()
	due, events := w.mu.peers.Due(now)
	news := append(w.mu.news, list(events)...)
	news = append(news, list(w.mu.paths.Due(now))...)
	w.mu.news = nil
	w.marked.Store(!w.mu.peers.Idle())
	w.troubled.Store(!w.mu.paths.Idle())
	next := w.mu.peers.Next(now)
	if t := w.mu.paths.Next(now); next.IsZero() || !t.IsZero() && t.Before(next) {
		next = t
	}
	w.mu.Unlock()
	for _, address := range due {
		w.e.tasks.Go(func() { w.probe(address) })
	}
	for _, n := range news {
		switch n := n.(type) {
		case health.PeerEvent:
			w.e.peerChanged(n)
		case health.PathEvent:
			w.e.pathChanged(n)
		case listing:
			w.e.pathListed(n)
		}
	}
	return next
}

// thawed takes in that this process did not run for some time.
func (w *watch) thawed(from, to time.Time) {
	w.e.stats.Freezes.Add(1)
	w.e.stats.Frozen.Add(int64(to.Sub(from)))
	w.change(func(time.Time) []any {
		return append(list(w.mu.peers.Rearm(from, to)), list(w.mu.paths.Rearm(from, to))...)
	})
}

// end forgets everything, for good.
func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.ended, w.mu.news = true, nil
	w.mu.peers = health.NewPeers(health.PeerOptions{})
	w.mu.paths = health.NewPaths(health.PathOptions{})
	w.marked.Store(false)
	w.troubled.Store(false)
}
