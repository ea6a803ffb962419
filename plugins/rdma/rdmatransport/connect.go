package rdmatransport

import (
	"context"
	"slices"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/rail"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/sdk"
)

// Paths implements [sdk.Notifier].
func (t *Transport) Paths(remote sdk.Attributes) ([]string, error) {
	paths, err := t.paths(remote)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(paths))
	for i, p := range paths {
		names[i] = p.Name
	}
	return names, nil
}

// paths lists the ways from the ports that are up to a peer's.
func (t *Transport) paths(remote sdk.Attributes) ([]rail.Path, error) {
	text, ok := remote[attrPorts]
	if !ok {
		return nil, sdk.Errorf(sdk.InvalidArgument, "the peer publishes no %q", attrPorts)
	}
	theirs, err := rail.Parse(text)
	if err != nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "%w", err)
	}
	return rail.Pair(t.localPorts(func(p *localPort) bool { return p.usable() && p.active }), theirs,
		t.incarnation.String() < remote[attrIncarnation]), nil
}

// way is a path with the device and the port that it begins at.
type way struct {
	rail.Path
	device *device
	port   localPort
}

// way finds the target's path.
func (t *Transport) way(target sdk.Target) (way, error) {
	paths, err := t.paths(target.Remote)
	if err != nil {
		return way{}, err
	}
	i := slices.IndexFunc(paths, func(p rail.Path) bool { return p.Name == target.Path })
	if i < 0 {
		return way{}, sdk.Errorf(sdk.Unavailable, "there is no path %.128s to %s: unknown, or its port here is down", target.Path, bootstrap.PeerName(target))
	}
	w := way{Path: paths[i]}
	for _, d := range t.devices {
		if d.name == w.Local.NIC {
			w.device, w.port = d, d.ports.get(w.Local.Number)
		}
	}
	return w, nil
}

// mtu is the most that this end of the path carries, given what the peer says.
func (t *Transport) mtu(w way, peers verbs.MTU) verbs.MTU {
	m := min(verbs.MTU(t.settings.Endpoint.PathMTU), w.port.MTU)
	if peers != 0 {
		m = min(m, peers)
	}
	return m
}

// describe is this end of the endpoint, for the peer.
func (t *Transport) describe(e *endpoint, w way, target sdk.Target, mtu verbs.MTU) message {
	m := message{
		LocalNICPath: t.host + "@" + w.Local.Name(), PeerNICPath: target.PeerName + "@" + w.Remote.Name(),
		QPNum: []uint32{}, LocalLID: w.port.LID, LocalGID: w.Local.GID, NotifyQPNum: e.num,
		From: target.Local.String(), To: target.Peer.String(), Generation: target.Generation, Instance: t.instance,
		MTU: mtu, PSN: e.psn, SendLimit: int(e.granted),
	}
	if e.memory {
		m.QPNum, m.NotifyQPNum, m.ReadLimit = []uint32{e.num}, 0, e.d.destReads()
	}
	return m
}

// Connect implements [sdk.Notifier]. It returns once the peer's end has taken
// a first message.
func (t *Transport) Connect(ctx context.Context, target sdk.Target, exchange sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	end, err := t.life.Begin()
	if err != nil {
		return nil, err
	}
	defer end()
	w, err := t.way(target)
	if err != nil {
		return nil, err
	}
	if err := t.generations.Admit(target, bootstrap.Connecting); err != nil {
		return nil, err
	}
	ctx, stop := t.life.Until(ctx)
	defer stop()
	e, err := newEndpoint(w.device, w.port, target, 0)
	if err != nil {
		return nil, err
	}
	peer, err := t.reach(ctx, e, w, target, exchange)
	if err != nil {
		t.dispose(e, err)
		return nil, err
	}
	e.handler = h
	if err := t.life.Start(e, func() { t.run(e) }); err != nil {
		t.dispose(e, err)
		return nil, err
	}
	if e.memory {
		return &mover{
			endpoint: e, table: &t.Table, limits: moveLimits(),
			provider: target.Peer, instance: peer.Instance, device: w.Remote.NIC,
		}, nil
	}
	return e, nil
}

// reach exchanges offer and answer, and has a first message taken.
func (t *Transport) reach(ctx context.Context, e *endpoint, w way, target sdk.Target, exchange sdk.Exchange) (message, error) {
	offered := t.mtu(w, 0)
	reply, err := exchange(ctx, t.describe(e, w, target, offered).marshal())
	if err != nil {
		code := sdk.CodeOf(err)
		if code == 0 {
			code = sdk.Unavailable
		}
		return message{}, sdk.Errorf(code, "bootstrap with %s: %w", e.peer, err)
	}
	answer, err := parse("answer", reply, target, w.Path)
	if err != nil {
		return message{}, err
	}
	if answer.MTU > offered {
		return message{}, sdk.Errorf(sdk.Refused, "answer has MTU %d, over the %d that was offered", answer.MTU, offered)
	}
	if err := e.link(w.Path, answer, t.mtu(w, answer.MTU)); err != nil {
		return message{}, err
	}
	e.mu.Lock()
	e.waiting = true
	e.tellLocked(ready, 0)
	e.mu.Unlock()
	return answer, t.joined(ctx, e)
}

// joined waits until the peer's end is known to be there.
func (t *Transport) joined(ctx context.Context, e *endpoint) error {
	limit := milliseconds(t.settings.ConnectTimeoutMS)
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		e.mu.Lock()
		joined, cause := e.joined, e.cause
		if !joined && cause == nil {
			e.tellLocked(ready, 0) // unless it is posted already
		} else {
			e.waiting = false
		}
		e.mu.Unlock()
		if joined {
			return nil
		}
		if cause != nil {
			return sdk.Errorf(sdk.Unavailable, "%s is not reached: %w", e.peer, cause)
		}
		select {
		case <-e.wake:
		case <-timer.C:
			return sdk.Errorf(sdk.Unavailable, "%s is not reached within %s", e.peer, limit)
		case <-ctx.Done():
			if err := t.life.Running(); err != nil {
				return err
			}
			return sdk.Errorf(sdk.Unavailable, "%s is not reached in time: %w", e.peer, ctx.Err())
		}
	}
}

// Accept implements [sdk.Notifier]. What is sent before the peer's first
// message is held.
func (t *Transport) Accept(_ context.Context, target sdk.Target, raw []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
	end, err := t.life.Begin()
	if err != nil {
		return nil, nil, err
	}
	defer end()
	w, err := t.way(target)
	if err != nil {
		return nil, nil, err
	}
	offer, err := parse("offer", raw, target, w.Path)
	if err != nil {
		return nil, nil, err
	}
	if err := t.generations.Admit(target, bootstrap.Accepting); err != nil {
		return nil, nil, err
	}
	access := verbs.Access(0)
	if target.Use == sdk.UseMemory {
		access = verbs.RemoteRead | verbs.RemoteWrite
	}
	e, err := newEndpoint(w.device, w.port, target, access)
	if err != nil {
		return nil, nil, err
	}
	e.handler, e.accept = h, true
	mtu := t.mtu(w, offer.MTU)
	answer := t.describe(e, w, target, mtu)
	if err = e.link(w.Path, offer, mtu); err == nil {
		err = t.life.Start(e, func() { t.run(e) })
	}
	if err != nil {
		t.dispose(e, err)
		return nil, nil, err
	}
	if e.memory {
		e.d.watch.arm(e.d)
		return &passive{e}, answer.marshal(), nil
	}
	return e, answer.marshal(), nil
}

// run is an endpoint's life.
func (t *Transport) run(e *endpoint) {
	e.run()
	t.life.Forget(e)
}

// dispose retires an endpoint that its caller never gets.
func (t *Transport) dispose(e *endpoint, cause error) {
	e.handler = discard{}
	e.end(sdk.Errorf(sdk.Unavailable, "%w", cause))
	if t.life.Start(e, func() { t.run(e) }) != nil { // closing, or draining
		e.run()
	}
}
