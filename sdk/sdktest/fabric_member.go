package sdktest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// member is one instance of a node's transport on a fabric.
type member struct {
	f      *Fabric
	node   string
	killed chan struct{}
	life   context.Context // ends with Close and Kill
	end    context.CancelCauseFunc

	// Guarded by the fabric's lock.
	cfg      sdk.Config
	addr     string
	closed   bool
	dead     bool
	draining bool
	progress uint64
	ends     map[*end]struct{}
	newest   map[newestKey]uint64 // accepted
	tried    map[newestKey]uint64 // the newest that this side has connected, or tried to
	regions  map[sdk.Capability]*fabricRegion
	remotes  []*fabricRemote
}

type newestKey struct {
	peer sdk.Incarnation
	path string
	use  sdk.Use
	lane int
}

func newestOf(t sdk.Target) newestKey { return newestKey{t.Peer, t.Path, t.Use, t.Lane} }

var errDraining = sdk.Errorf(sdk.Closed, "the transport is draining")

const (
	attrAddr  = "addr"
	attrPaths = "paths"
)

// offer is what the connecting side tells the accepting one.
type offer struct {
	From        string
	Path        string
	Token       uint64
	Generation  uint64
	Local, Peer sdk.Incarnation
	Use         sdk.Use
	Lane        int
}

// Describe implements [sdk.Transport].
func (m *member) Describe() sdk.Description {
	d := sdk.Description{
		Name:         m.f.opt.Name,
		Version:      "1.0.0",
		Contract:     sdk.ContractVersion,
		Features:     []sdk.Feature{sdk.FeatureProbe, sdk.FeatureDrain},
		Limits:       m.f.opt.Limits,
		SharedDevice: !m.f.opt.Exclusive,
	}
	if !m.f.opt.NoFrames {
		d.Features = append(d.Features, sdk.FeatureNotify)
	}
	if m.f.opt.Moves {
		d.Features, d.Move = append(d.Features, sdk.FeatureMove), m.f.opt.Move
	}
	return d
}

// Configure implements [sdk.Transport].
func (m *member) Configure(_ context.Context, cfg sdk.Config) (sdk.Setup, error) {
	for _, l := range cfg.Listeners {
		l.Close() //nolint:errcheck // it has none of them
	}
	var settings map[string]json.RawMessage
	if err := json.Unmarshal(cfg.Settings, &settings); err != nil || len(settings) > 0 {
		return sdk.Setup{}, sdk.Errorf(sdk.InvalidArgument, "the memory transport has no settings, got %s", cfg.Settings)
	}
	f := m.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.addr != "" || m.closed {
		return sdk.Setup{}, sdk.Errorf(sdk.InvalidArgument, "Configure is called once, before Close")
	}
	f.serial++
	m.cfg = cfg
	m.addr = fmt.Sprintf("%s/%d/%d", m.node, cfg.Instance, f.serial)
	m.ends = map[*end]struct{}{}
	m.newest, m.tried = map[newestKey]uint64{}, map[newestKey]uint64{}
	m.regions = map[sdk.Capability]*fabricRegion{}
	f.members[m.addr] = m
	setup := sdk.Setup{Attributes: sdk.Attributes{attrAddr: m.addr, attrPaths: strings.Join(f.opt.Paths, ",")}}
	for _, p := range f.opt.Paths {
		setup.Paths = append(setup.Paths, sdk.LocalPath{Name: p, Detail: m.addr})
	}
	return setup, nil
}

// Close implements [sdk.Transport].
func (m *member) Close(ctx context.Context) error {
	m.f.mu.Lock()
	m.stopLocked(sdk.Errorf(sdk.Closed, "the transport was closed"))
	var waits []chan struct{}
	for _, e := range m.endsLocked() {
		waits = append(waits, e.done)
	}
	m.f.mu.Unlock()
	for _, done := range waits {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// dieLocked is what Kill does.
func (m *member) dieLocked() {
	m.dead = true
	close(m.killed)
	for _, e := range m.endsLocked() {
		// Receipts and frames that have not left are lost with the process.
		l := &e.c.lanes[e.side]
		l.receipts, l.frames = nil, nil
		m.f.counters.Ended++
	}
	m.stopLocked(sdk.Errorf(sdk.PluginExited, "the transport of %s was killed", m.node))
}

func (m *member) stopLocked(err error) {
	if m.closed {
		return
	}
	m.closed = true
	m.end(err)
	delete(m.f.members, m.addr)
	for _, e := range m.endsLocked() {
		e.endLocked(err, true)
		e.signal()
	}
	m.forgetMemoryLocked()
}

// Done is closed when the instance was killed. With Err, Health and Progress it
// is what pluginhost looks for in a transport of its own process.
func (m *member) Done() <-chan struct{} { return m.killed }

// Err says why Done is closed.
func (m *member) Err() error {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	if m.dead {
		return m.usableLocked()
	}
	return nil
}

// Health returns nil unless the node is frozen or the instance was killed.
func (m *member) Health(ctx context.Context) error {
	if err := m.thawed(ctx); err != nil {
		return err
	}
	return m.Err()
}

// Progress counts frames that the instance took from its peers.
func (m *member) Progress() uint64 {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	return m.progress
}

// usableLocked says why a call cannot be served.
func (m *member) usableLocked() error {
	switch {
	case m.dead:
		return sdk.Errorf(sdk.PluginExited, "the transport of %s was killed", m.node)
	case m.closed:
		return sdk.Errorf(sdk.Closed, "the transport was closed")
	case m.addr == "":
		return sdk.Errorf(sdk.InvalidArgument, "the transport is not configured")
	}
	return nil
}

// Paths implements [sdk.Notifier].
func (m *member) Paths(remote sdk.Attributes) ([]string, error) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	return m.pathsLocked(remote)
}

func (m *member) pathsLocked(remote sdk.Attributes) ([]string, error) {
	if remote[attrAddr] == "" {
		return nil, sdk.Errorf(sdk.InvalidArgument, "the peer's attributes have no %q", attrAddr)
	}
	theirs := strings.Split(remote[attrPaths], ",")
	var paths []string
	for _, p := range m.f.opt.Paths {
		if slices.Contains(theirs, p) && m.listedLocked(p) == nil {
			paths = append(paths, p)
		}
	}
	return paths, nil
}

// Connect implements [sdk.Notifier].
func (m *member) Connect(ctx context.Context, t sdk.Target, exchange sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	ctx, cancel := m.bound(ctx)
	defer cancel()
	if err := m.checkTarget(ctx, t); err != nil {
		return nil, err
	}
	m.f.mu.Lock()
	m.f.serial++
	token, draining, tried := m.f.serial, m.draining, m.tried[newestOf(t)]
	if !draining {
		m.tried[newestOf(t)] = max(tried, t.Generation)
	}
	m.f.mu.Unlock()
	if draining {
		return nil, errDraining
	}
	if t.Generation < tried && !m.f.lax {
		return nil, sdk.Errorf(sdk.Refused, "generation %d is older than %d", t.Generation, tried)
	}
	msg, err := json.Marshal(offer{m.addr, t.Path, token, t.Generation, t.Local, t.Peer, t.Use, t.Lane})
	if err != nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "offer: %w", err)
	}
	answer, err := exchange(ctx, msg)
	if err != nil {
		return nil, m.callError(ctx, err)
	}
	if string(answer) != string(answerTo(token)) {
		return nil, sdk.Errorf(sdk.InvalidArgument, "the answer is not one to the offer")
	}
	if err := m.travel(ctx, t); err != nil {
		return nil, err
	}
	return m.join(t, token, h)
}

func answerTo(token uint64) []byte { return fmt.Appendf(nil, "accepted %d", token) }

// join makes the connecting end of an accepted conn.
func (m *member) join(t sdk.Target, token uint64, h sdk.Handler) (sdk.Endpoint, error) {
	f := m.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := m.usableLocked(); err != nil {
		return nil, err
	}
	c := f.pending[token]
	if c == nil {
		return nil, sdk.Errorf(sdk.Unavailable, "the accepted endpoint is gone")
	}
	delete(f.pending, token)
	c.arrive.Stop()
	e := newEnd(c, m, 0, h)
	e.peer = t.Peer
	c.ends[0] = e
	c.arrived = true
	m.ends[e] = struct{}{}
	go e.pump()
	c.advanceLocked(0)
	c.advanceLocked(1)
	c.ends[1].watchStallLocked()
	return e, nil
}

// Accept implements [sdk.Notifier].
func (m *member) Accept(ctx context.Context, t sdk.Target, msg []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
	if err := m.thawed(ctx); err != nil {
		return nil, nil, err
	}
	var o offer
	if err := json.Unmarshal(msg, &o); err != nil {
		return nil, nil, sdk.Errorf(sdk.InvalidArgument, "not an offer: %w", err)
	}
	f := m.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := m.acceptableLocked(t, o); err != nil {
		return nil, nil, err
	}
	from := f.members[o.From]
	if from == nil {
		return nil, nil, sdk.Errorf(sdk.Unavailable, "%s is gone", o.From)
	}
	m.newest[newestOf(t)] = t.Generation
	c := &conn{f: f, path: o.Path, use: t.Use, token: o.Token, from: [2]string{from.node, m.node}}
	e := newEnd(c, m, 1, h)
	c.ends[1] = e
	f.conns[c] = struct{}{}
	f.pending[o.Token] = c
	m.ends[e] = struct{}{}
	c.arrive = time.AfterFunc(f.opt.ArriveTimeout, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !c.arrived {
			e.endLocked(sdk.Errorf(sdk.Unavailable, "%s did not arrive within %v", from.node, f.opt.ArriveTimeout), true)
		}
	})
	go e.pump()
	return e, answerTo(o.Token), nil
}

func (m *member) acceptableLocked(t sdk.Target, o offer) error {
	if err := m.usableLocked(); err != nil {
		return err
	}
	switch {
	case m.draining:
		return errDraining
	case !slices.Contains(m.f.opt.Paths, t.Path):
		return sdk.Errorf(sdk.InvalidArgument, "no path %q", t.Path)
	case m.listedLocked(t.Path) != nil:
		return m.listedLocked(t.Path)
	case o.Token == 0 || m.f.pending[o.Token] != nil:
		return sdk.Errorf(sdk.Refused, "the offer was accepted before")
	case o.Path != t.Path || o.Use != t.Use || o.Lane != t.Lane || o.Generation != t.Generation || o.Local != t.Peer || o.Peer != t.Local:
		return sdk.Errorf(sdk.Refused, "the offer is not for this target")
	case t.Generation <= m.newest[newestOf(t)]:
		return sdk.Errorf(sdk.Refused, "generation %d is not newer than %d", t.Generation, m.newest[newestOf(t)])
	}
	return nil
}

// Probe implements [sdk.Prober].
func (m *member) Probe(ctx context.Context, t sdk.Target) error {
	ctx, cancel := m.bound(ctx)
	defer cancel()
	if err := m.checkTarget(ctx, t); err != nil {
		return err
	}
	return m.travel(ctx, t)
}

// Drain implements [sdk.Drainer].
func (m *member) Drain(context.Context) error {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	m.draining = true
	return m.usableLocked()
}

// bound makes a context that also ends with the transport.
func (m *member) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(m.life, func() { cancel(context.Cause(m.life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// thawed waits while the node is frozen.
func (m *member) thawed(ctx context.Context) error {
	return m.wait(ctx, func() bool { return m.f.frozenLocked(m.node) && !m.closed })
}

func (m *member) checkTarget(ctx context.Context, t sdk.Target) error {
	if err := m.thawed(ctx); err != nil {
		return err
	}
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	if err := m.usableLocked(); err != nil {
		return err
	}
	if err := m.listedLocked(t.Path); err != nil {
		return err
	}
	paths, err := m.pathsLocked(t.Remote)
	if err != nil {
		return err
	}
	if !slices.Contains(paths, t.Path) {
		return sdk.Errorf(sdk.InvalidArgument, "no path %q to the peer", t.Path)
	}
	return nil
}

// travel is one round trip to the peer's transport.
func (m *member) travel(ctx context.Context, t sdk.Target) error {
	f := m.f
	f.mu.Lock()
	peer := f.members[t.Remote[attrAddr]]
	if peer == nil {
		f.mu.Unlock()
		return sdk.Errorf(sdk.Unavailable, "%s is gone", t.Remote[attrAddr])
	}
	d := f.delays.get(m.node, peer.node, t.Path) + f.delays.get(peer.node, m.node, t.Path)
	f.mu.Unlock()
	err := m.wait(ctx, func() bool {
		return f.cutLocked(m.node, peer.node, t.Path) || f.cutLocked(peer.node, m.node, t.Path)
	})
	if err != nil || d == 0 {
		return err
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return m.callError(ctx, ctx.Err())
	}
}

// wait returns once held says no.
func (m *member) wait(ctx context.Context, held func() bool) error {
	f := m.f
	counted := false
	for {
		if ctx.Err() != nil {
			return m.callError(ctx, ctx.Err())
		}
		f.mu.Lock()
		changed, is := f.changed, held()
		if is && !counted {
			counted = true
			f.counters.Held++
		}
		f.mu.Unlock()
		if !is {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// callError gives an error a code, if it has none.
func (m *member) callError(ctx context.Context, err error) error {
	if own := context.Cause(m.life); own != nil {
		return own
	}
	switch {
	case sdk.CodeOf(err) != 0:
		return err
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return sdk.Errorf(sdk.DeadlineExceeded, "the peer did not answer in time: %w", err)
	}
	return sdk.Errorf(sdk.Unavailable, "the peer did not answer: %w", err)
}
