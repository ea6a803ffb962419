package engine

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/health"
	"github.com/hawser-transport/hawser/sdk"
)

// relistEvery is how often, at most, a transport's paths are asked for anew: a
// port whose link flaps a thousand times a second, or a plugin that says so,
// costs no more than this.
const relistEvery = 20 * time.Millisecond

// relisting is a transport's word that its paths have changed, until they were
// asked for. Whatever it says meanwhile is one more round.
type relisting struct {
	mu      sync.Mutex
	running bool
	again   bool
}

// next reports whether there is another round.
func (r *relisting) next(ended bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = r.again && !ended
	r.again = false
	return r.running
}

// PathsChanged has the transport's paths to every peer asked for anew.
func (t *transport) PathsChanged() {
	r, e := &t.relisting, t.set.e
	r.mu.Lock()
	defer r.mu.Unlock()
	r.again = true
	if !r.running && e.ctx.Err() == nil {
		r.running = true
		e.tasks.Go(t.relist)
	}
}

func (t *transport) relist() {
	e := t.set.e
	for t.relisting.next(e.ctx.Err() != nil) {
		for _, a := range e.directory.all() {
			a.relist()
		}
		select {
		case <-time.After(relistEvery):
		case <-e.ctx.Done():
		}
		e.freeze.Awake()
	}
}

// relist asks for the paths anew, while those that are known go on.
func (a *association) relist() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.relisted = true
	a.matchLocked()
}

// listLocked takes in which paths the transports list, and which one of them
// does not list any more although both are the same as before: those are down.
// That is no failure, but nothing is sent over them until both list them again.
func (a *association) listLocked(routes []route, now time.Time) {
	news := false
	for _, p := range a.pathsLocked() {
		i := slices.IndexFunc(routes, func(r route) bool {
			return r.local.name == p.transport && r.local.inst == p.inst && r.remote.Instance == p.remote
		})
		here := i >= 0 && !slices.Contains(routes[i].paths, p.name)
		there := i >= 0 && slices.Contains(routes[i].remote.Down, p.name)
		news = news || here != p.downHere
		p.downHere = here
		if down := here || there; down != p.down {
			a.turnLocked(p, down, now)
		}
		switch {
		case here:
			p.note("down: its transport does not list it now")
		case there:
			p.note("down: the peer's transport does not list it now")
		}
	}
	if news {
		a.e.transports.renew()
		a.tellLocked()
	}
}

// turnLocked takes a path down, or back.
func (a *association) turnLocked(p *path, down bool, now time.Time) {
	p.down, p.suspicion, p.trouble = down, suspicion{}, ""
	p.connecting = nil // an attempt belongs to what was
	p.failures, p.retryAt, p.fresh = 0, now, false
	p.shunUntil, p.blockedUntil, p.fullSince = time.Time{}, time.Time{}, time.Time{}
	a.e.watch.listed(a.keyLocked(p), down)
}

// unlistedLocked takes in that the peer asks for a path between the same two
// instances that this side's does not list. A path that was down before the two
// met has its name from there only; it is down like any other from now on. It
// reports false for what may yet be listed, and where a peer has named so many
// that it makes them up.
func (a *association) unlistedLocked(req control.BootstrapRequest, now time.Time) bool {
	i := slices.IndexFunc(a.remote.list, func(t control.Transport) bool {
		return t.Name == req.Transport && t.Instance == req.FromInstance
	})
	local := a.e.local(req.Transport)
	if i < 0 || local == nil || local.inst.ID != req.ToInstance || !a.matched || a.relisted || len(a.downLocked()) >= maxDown {
		return false
	}
	key := pathKey{req.Transport, req.Path}
	p := a.paths[key]
	if p == nil {
		p = &path{transport: key.transport, name: key.name, generation: a.forgotten}
		a.paths[key] = p
	}
	a.bindPathLocked(p, *local, a.remote.list[i], now)
	p.downHere = true
	a.turnLocked(p, true, now)
	a.e.transports.renew()
	a.tellLocked()
	return true
}

// renew gives what is published another version.
func (ts *transports) renew() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.version++
}

// publishedLocked is what the peer is told: what runs here, and which paths to
// it are down and which endpoints gone, so that it does not find out by failing.
func (a *association) publishedLocked() ([]control.Transport, uint64) {
	list, version := a.e.published()
	a.addLostLocked(list)
	for _, p := range a.downLocked() {
		i := slices.IndexFunc(list, func(t control.Transport) bool { return t.Name == p.transport && t.Instance == p.inst.ID })
		if i >= 0 && p.downHere && len(list[i].Down) < maxDown {
			list[i].Down = append(list[i].Down, p.name)
		}
	}
	return list, version
}

// maxDown is how many paths of a transport a peer takes.
const maxDown = 64

// downLocked returns the paths that are down, in order of preference.
func (a *association) downLocked() []*path {
	var list []*path
	for _, p := range a.paths {
		if p.down {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(p, q *path) int {
		return cmp.Or(cmp.Compare(p.rank, q.rank), cmp.Compare(p.index, q.index), cmp.Compare(p.name, q.name))
	})
	return list
}

// listing is the news that a path went down or came back.
type listing struct {
	key  health.Key
	down bool
}

// listed forgets what is known of a path that comes or goes: its errors were
// the beginning of that, or are over with it.
func (w *watch) listed(key health.Key, down bool) {
	w.change(func(time.Time) []any { return append(list(w.mu.paths.Forget(key)), listing{key, down}) })
}

// errDown is in the event of a path that is down.
var errDown = sdk.Errorf(sdk.Unavailable, "a transport does not list the path now")

// pathListed tells of it.
func (e *Engine) pathListed(l listing) {
	e.directory.mu.Lock()
	a := e.directory.byIncarnation[l.key.Peer]
	e.directory.mu.Unlock()
	if a == nil {
		return
	}
	ev := Event{Kind: PathResumed, Address: a.address, Peer: a.node.Load(), Transport: l.key.Transport, Path: l.key.Path}
	if l.down {
		ev.Kind, ev.Err = PathPaused, errDown
	}
	e.hub.tell(ev)
	e.log.Info(ev.Kind.String(), "peer", a.peer(), "transport", ev.Transport, "path", ev.Path, "down", l.down)
}
