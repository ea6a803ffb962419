package engine

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
)

// transports is the set of transports that this engine runs: one supervisor
// each, and what is up at the moment.
type transports struct {
	e         *Engine
	instances atomic.Uint64

	// changes serialises changes of the set: whoever makes one has put a token
	// in. It is held while transports start and drain, so whoever waits for it
	// gives up when its context ends.
	changes chan struct{}
	mu      sync.Mutex
	set     []*transport // in configured order
	absent  []absent     // transports whose binary was not found
	lacking []absent     // the same of those that were demanded
	version uint64       // of what is published

	// later are transports that are started when a GPU's memory is used first,
	// nil if there is none; demanding says that they are.
	later     atomic.Pointer[[]TransportConfig]
	demanding atomic.Bool
}

// absent is a configured transport whose binary was not found, and why.
type absent struct {
	name string
	err  error
}

// transport is one configured transport; it observes its supervisor.
type transport struct {
	set  *transports
	cfg  TransportConfig
	spec pluginhost.Spec
	sum  string // of the binary
	sup  *pluginhost.Supervisor
	// cur is the instance that new work goes to, nil if none is up. Guarded
	// by the set's lock, as is rank.
	cur  *pluginhost.Instance
	rank int
	wire string // the name on the wire, once it was up

	downs, quarantines atomic.Uint64
	relisting          relisting
	unsupported        bool // was said since it was up last; the supervisor's
}

// localInstance is a transport that is up here.
type localInstance struct {
	name     string // on the wire
	rank     int
	fallback bool
	inst     *pluginhost.Instance
}

// prepare finds every transport's binary. One that is missing costs its
// transport only, and nothing if nobody has listed that.
func (ts *transports) prepare(e *Engine) error {
	ts.e, ts.changes = e, make(chan struct{}, 1)
	finder, err := newFinder(e.cfg.Plugins)
	if err != nil {
		return err
	}
	var later []TransportConfig
	for i, c := range e.cfg.Transports {
		if c.onDemand {
			later = append(later, c)
			continue
		}
		spec, err := finder.spec(c)
		if c.leavesOut(err) {
			e.log.Info("transport not installed: it is tried by default only", "transport", c.Name)
			continue
		}
		if err != nil {
			ts.absent = append(ts.absent, absent{c.Name, err})
			e.log.Error("transport not available", "transport", c.Name, "error", err)
			continue
		}
		ts.set = append(ts.set, ts.newTransport(c, spec, i))
	}
	ts.postpone(later)
	return nil
}

func (ts *transports) newTransport(c TransportConfig, spec pluginhost.Spec, rank int) *transport {
	t := &transport{set: ts, cfg: c, spec: spec, sum: imageSum(spec), rank: rank}
	t.sup = pluginhost.New(spec, ts.options(), t)
	return t
}

func (ts *transports) options() pluginhost.Options {
	p := ts.e.cfg.Plugins
	return pluginhost.Options{
		Keys: ts.e.security.keysForPlugins(), CheckListen: ts.e.cfg.Security.checkListen(),
		Incarnation:  ts.e.incarnation,
		NextInstance: func() uint64 { return ts.instances.Add(1) },
		Log:          ts.e.log, Freeze: ts.e.freeze,
		StartTimeout: p.StartTimeout(), StopTimeout: p.StopTimeout(), AbandonAfter: p.AbandonAfter(),
		DrainTimeout: p.DrainTimeout(), HealthInterval: p.HealthInterval(), HealthTimeout: p.HealthTimeout(),
		CrashBudget: p.CrashBudget, CrashWindow: p.CrashWindow(),
		Random: ts.e.random, BackoffMin: p.RestartBackoff(), BackoffMax: p.MaxRestartBackoff(), QuarantineRetry: p.QuarantineRetry(),
		RunDir: p.RunDir,
	}
}

// start starts every transport and waits until each is up or has failed. That
// fails only if none is up: nothing could be carried.
func (ts *transports) start(ctx context.Context) error {
	for _, t := range ts.set {
		t.sup.Start()
	}
	var errs []error
	for _, a := range ts.absent {
		errs = append(errs, a.err)
	}
	for _, t := range ts.set {
		errs = append(errs, t.ready(ctx))
	}
	if len(ts.up()) == 0 {
		return sdk.Errorf(sdk.Unavailable, "no transport could be started: %w", errors.Join(errs...))
	}
	return nil
}

// ready waits until the transport is up, or says why it is not.
func (t *transport) ready(ctx context.Context) error {
	err := t.sup.Ready(ctx)
	// An interrupted start is no transport's fault, and what is given up has
	// its own line.
	state := t.sup.Status().State
	if err != nil && ctx.Err() == nil && state != pluginhost.Quarantined && state != pluginhost.Unsupported {
		t.set.e.log.Error("transport not started", "transport", t.cfg.Name, "error", err)
	}
	return err
}

// stop stops every transport. A reload under way ends early when its
// transports stop; what it has added by then is stopped after it.
func (ts *transports) stop(ctx context.Context) error {
	err := ts.stopAll(ctx)
	select {
	case ts.changes <- struct{}{}:
		defer func() { <-ts.changes }()
	case <-ctx.Done():
	}
	return errors.Join(err, ts.stopAll(ctx))
}

func (ts *transports) stopAll(ctx context.Context) error {
	ts.mu.Lock()
	set := slices.Clone(ts.set)
	ts.mu.Unlock()
	var stops sync.WaitGroup
	errs := make([]error, len(set))
	for i, t := range set {
		stops.Go(func() { errs[i] = t.sup.Stop(ctx) })
	}
	stops.Wait()
	return errors.Join(errs...)
}

// Up publishes the instance, here and to the peers.
func (t *transport) Up(inst *pluginhost.Instance) {
	t.unsupported = false
	t.set.change(func() { t.cur, t.wire = inst, inst.Description.Name })
	t.set.e.hub.tell(Event{Kind: TransportUp, Transport: t.cfg.Name})
	t.set.e.log.Info("transport up", "transport", t.cfg.Name, "instance", inst.ID, "version", inst.Description.Version)
	t.set.e.security.cameUp(inst)
	t.set.e.memory.cameUp(inst)
}

// Down withdraws it. Its endpoints have ended, each on its own.
func (t *transport) Down(old *pluginhost.Instance, err error) {
	t.set.change(func() {
		if t.cur == old {
			t.cur = nil
		}
	})
	t.set.e.memory.wentDown(old)
	t.set.e.stats.TransportsDown.Add(1)
	t.set.e.hub.tell(Event{Kind: TransportDown, Transport: t.cfg.Name, Err: err})
	t.downs.Add(1)
	if err == nil {
		t.set.e.log.Info("transport stopped", "transport", t.cfg.Name, "instance", old.ID)
		return
	}
	t.set.e.log.Warn("transport down", "transport", t.cfg.Name, "instance", old.ID, "error", err)
}

// Quarantined is the supervisor's word that it gives up for some minutes.
func (t *transport) Quarantined(err error) {
	t.set.e.hub.tell(Event{Kind: TransportQuarantined, Transport: t.cfg.Name, Err: err})
	t.quarantines.Add(1)
	t.set.e.log.Error("transport quarantined", "transport", t.cfg.Name, "retry", t.set.e.cfg.Plugins.QuarantineRetry(), "error", err)
}

// Unsupported is the supervisor's word that there is nothing for the transport
// on this machine. That is no fault, but if somebody has listed it they may
// want to know. It is said once.
func (t *transport) Unsupported(err error) {
	level := slog.LevelWarn
	if t.cfg.optional {
		level = slog.LevelInfo
	}
	if t.unsupported {
		level = slog.LevelDebug
	}
	t.unsupported = true
	t.set.e.log.Log(t.set.e.ctx, level, "transport not supported here",
		"transport", t.cfg.Name, "retry", t.set.e.cfg.Plugins.QuarantineRetry(), "error", err)
}

// Drain moves traffic off an instance: new work goes elsewhere at once, and
// what was given to it gets its outcome.
func (t *transport) Drain(ctx context.Context, old *pluginhost.Instance) {
	t.set.change(func() {
		if t.cur == old {
			t.cur = nil
		}
	})
	t.set.e.drain(ctx, old)
}

// change changes what is up, and lets every association and peer know.
func (ts *transports) change(f func()) {
	ts.mu.Lock()
	f()
	ts.version++
	ts.mu.Unlock()
	for _, a := range ts.e.directory.all() {
		a.localChanged()
	}
}

// tellLocked lets the peer know which transports are up here.
func (a *association) tellLocked() {
	if a.telling || a.node.Load() == nil || a.selfLane != nil || a.dead != nil || a.successor != nil {
		return
	}
	a.telling = true
	a.e.tasks.Go(a.tell)
}

// tell repeats the news until the peer has the latest: of an instance that it
// does not know it would refuse every bootstrap.
func (a *association) tell() {
	for wait := helloMin; ; wait = min(2*wait, reconnectMax) {
		version, err := a.tellOnce()
		a.lost(err)
		a.mu.Lock()
		_, latest := a.e.published()
		done := err == nil && version == latest || errors.Is(err, sdk.SessionUnknown) // then hello will say it
		if done || a.dead != nil || a.successor != nil || a.e.ctx.Err() != nil {
			a.telling = false
			a.mu.Unlock()
			return
		}
		back := a.back
		a.mu.Unlock()
		if err == nil {
			continue // there is more by now
		}
		a.e.log.Debug("peer not told of changed transports", "peer", a.peer(), "error", err)
		select {
		case <-time.After(wait):
		case <-back:
			wait = helloMin
		case <-a.e.ctx.Done():
		}
		a.e.freeze.Awake()
	}
}

func (a *association) tellOnce() (version uint64, err error) {
	a.mu.Lock()
	list, version := a.publishedLocked()
	a.mu.Unlock()
	return version, a.client.Changed(a.e.ctx, control.ChangeRequest{From: a.e.incarnation, Transports: list, Version: version})
}

// up returns what is up here, in order of preference.
func (ts *transports) up() []localInstance {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.upLocked()
}

func (ts *transports) upLocked() []localInstance {
	var list []localInstance
	for _, t := range ts.set {
		if t.cur != nil {
			name := t.cur.Description.Name
			list = append(list, localInstance{name, t.rank, name == rpcFallbackName, t.cur})
		}
	}
	slices.SortStableFunc(list, func(a, b localInstance) int { return cmp.Compare(a.rank, b.rank) })
	return list
}

// local finds a transport that is up here, or nil.
func (e *Engine) local(name string) *localInstance {
	for _, l := range e.transports.up() {
		if l.name == name {
			return &l
		}
	}
	return nil
}

// runs reports whether a transport of this name was up here and is still
// configured.
func (e *Engine) runs(name string) bool {
	ts := &e.transports
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return slices.ContainsFunc(ts.set, func(t *transport) bool { return t.wire == name })
}

// published is what peers are told.
func (e *Engine) published() ([]control.Transport, uint64) {
	ts := &e.transports
	ts.mu.Lock()
	version, up := ts.version, ts.upLocked() // of one moment
	ts.mu.Unlock()
	var list []control.Transport
	for _, l := range up {
		list = append(list, control.Transport{
			Name: l.name, Instance: l.inst.ID, Attributes: l.inst.Setup.Attributes,
			MaxFrame: l.inst.Description.Limits.WithDefaults().MaxFrame,
		})
	}
	return list, version
}

// missing explains the configured transports that cannot be used with a peer
// that runs these, if that is known.
func (e *Engine) missing(remote []control.Transport, known bool) []Attempt {
	e.transports.mu.Lock()
	defer e.transports.mu.Unlock()
	var list []Attempt
	for _, a := range e.transports.absent {
		list = append(list, Attempt{Transport: a.name, Reason: a.err.Error()})
	}
	for _, t := range e.transports.set {
		if t.cur == nil {
			reason := "not up here"
			if err := t.sup.Status().LastError; err != nil {
				reason += ": " + err.Error()
			}
			list = append(list, Attempt{Transport: t.cfg.Name, Reason: reason})
			continue
		}
		name := t.cur.Description.Name
		if known && !slices.ContainsFunc(remote, func(r control.Transport) bool { return r.Name == name }) {
			list = append(list, Attempt{Transport: name, Reason: "not up at the peer"})
		}
	}
	return list
}

// learnLocked takes in what the peer runs, unless something newer is known.
func (a *association) learnLocked(list []control.Transport, version uint64) {
	a.heard = time.Now()
	if version < a.remote.version {
		return
	}
	a.remote = remoteTransports{version, list}
	a.rematchLocked()
}

// localChanged takes in what this engine runs, and has the peer told.
func (a *association) localChanged() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rematchLocked()
	a.tellLocked()
}

// rematchLocked finds the paths anew, off this goroutine: a transport is asked
// for them.
func (a *association) rematchLocked() {
	a.matches++
	a.matched = false
	a.matchLocked()
}

// matchLocked asks for the paths, unless that is under way: then it goes on
// until nothing has changed meanwhile.
func (a *association) matchLocked() {
	if a.matching || a.node.Load() == nil || a.selfLane != nil || a.dead != nil || a.successor != nil {
		return
	}
	a.matching = true
	a.e.tasks.Go(a.match)
}

// route is a transport that both sides run, and its paths.
type route struct {
	local  localInstance
	remote control.Transport
	paths  []string
}

// match asks the transports for their paths to the peer.
func (a *association) match() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for again := true; again; {
		round, remote := a.matches, a.remote.list
		a.relisted = false
		a.mu.Unlock()
		routes := a.routes(remote)
		a.mu.Lock()
		if a.matches != round {
			continue // this answer is of what ran before
		}
		again = a.relisted
		a.routeLocked(routes)
		a.matched = true
		close(a.news)
		a.news = make(chan struct{})
		a.pumpLocked()
	}
	a.matching = false
}

func (a *association) routes(remote []control.Transport) (routes []route) {
	for _, l := range a.e.transports.up() {
		i := slices.IndexFunc(remote, func(r control.Transport) bool { return r.Name == l.name })
		if i < 0 || l.inst.Notifier == nil && l.inst.Mover == nil {
			continue
		}
		lister := l.inst.Notifier
		if lister == nil {
			lister = l.inst.Mover
		}
		paths, err := lister.Paths(remote[i].Attributes)
		if err != nil {
			a.e.log.Warn("no path", "peer", a.peer(), "transport", l.name, "error", err)
			continue
		}
		routes = append(routes, route{l, remote[i], paths})
	}
	return routes
}

// routeLocked makes the routes' paths the ones in use. A path keeps its name's
// history; with a new instance at either end it is connected anew, while the
// next one carries.
func (a *association) routeLocked(routes []route) {
	a.order = a.order[:0]
	now := time.Now()
	a.found = routes
	a.e.memory.routed(a)
	for _, r := range routes {
		if r.local.inst.Notifier == nil {
			continue // it moves memory only
		}
		for i, name := range r.paths {
			if slices.Contains(r.remote.Down, name) {
				continue
			}
			key := pathKey{r.local.name, name}
			p := a.paths[key]
			if p == nil {
				p = &path{transport: key.transport, name: name, fresh: true, generation: a.forgotten}
				a.paths[key] = p
			}
			p.index = i
			a.bindPathLocked(p, r.local, r.remote, now)
			a.order = append(a.order, p)
		}
	}
	a.listLocked(routes, now)
	a.loseLocked() // a path that is down is not to blame
	a.rankLocked(now)
	a.pruneLocked()
}

// bindPathLocked makes a path one between these two instances.
func (a *association) bindPathLocked(p *path, local localInstance, remote control.Transport, now time.Time) {
	if p.inst != local.inst || p.remote != remote.Instance {
		p.failures, p.retryAt = 0, now
		p.connecting = nil // what is under way belongs to what was
		a.forgiveLocked(p)
	}
	p.inst, p.remote, p.attrs = local.inst, remote.Instance, remote.Attributes
	p.rank, p.fallback = local.rank, local.fallback
	p.limit = min(local.inst.Description.Limits.WithDefaults().MaxFrame, remote.MaxFrame)
}

// maxPaths bounds what is remembered of paths to one peer, whose names the peer
// has a say in.
const maxPaths = 256

// pruneLocked forgets paths that are neither in use nor listed any more, but
// not how far their generations had come: those only grow.
func (a *association) pruneLocked() {
	if len(a.paths) <= maxPaths {
		return
	}
	for key, p := range a.paths {
		if p.ep == nil && p.connecting == nil && len(p.retiring) == 0 && !slices.Contains(a.order, p) {
			a.forgotten = max(a.forgotten, p.generation)
			if p.down {
				a.e.watch.listed(a.keyLocked(p), false)
			}
			delete(a.paths, key)
		}
	}
}

// drain waits until nothing that was given to the instance is without an
// outcome, and ends its endpoints.
func (e *Engine) drain(ctx context.Context, old *pluginhost.Instance) {
	check := time.NewTicker(drainEvery)
	defer check.Stop()
	for {
		busy := 0
		for _, a := range e.directory.all() {
			busy += a.retire(old)
		}
		busy += e.memory.retire(old)
		if busy == 0 {
			return
		}
		select {
		case <-check.C:
		case <-ctx.Done():
			e.log.Warn("drain not finished: what is left is handed over", "transport", old.Name, "frames", busy)
			return
		}
		e.freeze.Awake()
	}
}

// drainEvery is how often a drain looks whether it is done.
const drainEvery = 5 * time.Millisecond
