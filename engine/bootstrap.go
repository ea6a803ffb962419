package engine

import (
	"context"
	"errors"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/health"
	"github.com/hawser-transport/hawser/sdk"
)

// connectLocked starts connecting a path, unless that is under way or was
// tried a moment ago. One attempt serves all who wait for it.
func (a *association) connectLocked(p *path, now time.Time) {
	if p.connecting != nil || p.ep != nil && !p.stale() || p.retryAt.After(now) || a.e.ctx.Err() != nil || a.silentLocked(now) != nil {
		return
	}
	p.generation = a.e.generations.next(p.generation)
	p.own = p.generation
	t := a.targetLocked(p)
	ep := a.newEndpointLocked(p)
	ep.outgoing = true
	p.connecting = ep
	a.e.tasks.Go(func() { a.connect(p, ep, t) })
}

func (a *association) targetLocked(p *path) sdk.Target {
	return sdk.Target{
		Local: a.e.incarnation, Peer: a.node.Load().Incarnation, PeerName: a.peer(), PeerIdentity: a.identity,
		Path: p.name, Remote: p.attrs, Generation: p.generation,
	}
}

// connect is one attempt: the transport makes an offer, the peer's engine
// answers it, the transport connects.
func (a *association) connect(p *path, ep *endpoint, t sdk.Target) {
	ctx, cancel := context.WithTimeout(a.e.ctx, a.e.cfg.RPC.BootstrapTimeout())
	defer cancel()
	req := control.BootstrapRequest{
		From: t.Local, To: t.Peer, Transport: p.transport, FromInstance: ep.inst.ID,
		ToInstance: ep.remote, Path: t.Path, Generation: t.Generation,
	}
	var peerErr error // what the peer's engine said, or did not say
	se, err := ep.inst.Notifier.Connect(ctx, t, func(ctx context.Context, offer []byte) ([]byte, error) {
		req.Offer = offer
		reply, err := a.client.Bootstrap(ctx, req)
		if err == nil && reply.Newest != 0 {
			err = a.outdated(p, req.Generation, reply.Newest)
		}
		peerErr = err
		return reply.Answer, err
	}, ep)
	if err == nil {
		a.connected(p, ep, se)
		return
	}
	if peerErr != nil {
		err = peerErr
	}
	a.notConnected(p, ep, err)
}

// errOutdated is in the error of an attempt that the peer has seen a later one
// than. Nobody is to blame for it.
var errOutdated = errors.New("not newer")

// maxOutdated bounds how often in a row such an attempt is repeated at once: a
// peer could say so for ever.
const maxOutdated = 3

// outdated takes in that the peer has seen a generation that this attempt's is
// not newer than.
func (a *association) outdated(p *path, tried, newest uint64) error {
	a.mu.Lock()
	p.generation = max(p.generation, newest)
	a.mu.Unlock()
	return sdk.Errorf(sdk.Busy, "bootstrap: generation %d is %w than %d", tried, errOutdated, newest)
}

// connected installs an endpoint, unless a newer one took its place meanwhile.
func (a *association) connected(p *path, ep *endpoint, se sdk.Endpoint) {
	a.mu.Lock()
	ep.se = se
	current := a.dead == nil && a.successor == nil && p.connecting == ep && !ep.ended
	if current {
		a.installLocked(p, ep, time.Now())
		a.e.stats.Connects.Add(1)
		p.countersLocked(a.e).connects.Add(1)
		a.pumpLocked()
	} else {
		if p.connecting == ep { // it ended before it was installed
			p.connecting = nil
			a.failedLocked(p, time.Now(), "ended while connecting")
			a.blameLocked(p, ep.deathLocked(health.EndKind(ep.cause)))
		}
		ep.failedLocked()
		a.pumpLocked() // what waited for it goes another way, or has a timer
	}
	a.mu.Unlock()
	if !current {
		se.Close()
	} else {
		a.e.log.Debug("path connected", "peer", a.peer(), "transport", p.transport, "path", p.name, "generation", ep.generation)
	}
}

// notConnected deals with a failed attempt according to who failed.
func (a *association) notConnected(p *path, ep *endpoint, err error) {
	if a.lost(err) {
		return
	}
	if errors.Is(err, sdk.PeerRestarted) {
		a.die(sdk.Errorf(sdk.PeerRestarted, "the peer at %s is a new incarnation", a.address))
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	ep.failedLocked()
	if p.connecting != ep {
		return // superseded: the peer's own attempt, or a new instance
	}
	p.connecting = nil
	if errors.Is(err, errOutdated) && p.outdated < maxOutdated {
		p.outdated++
		a.connectLocked(p, time.Now())
		a.pumpLocked()
		return
	}
	if errors.Is(err, sdk.SessionUnknown) && ep.session == a.box.Session() {
		// The peer does not know us: it forgot us, or never got our hello.
		a.reopenLocked()
	}
	a.failedLocked(p, time.Now(), "connect: "+err.Error())
	a.blameLocked(p, ep.deathLocked(health.ConnectKind(err, silent(err))))
	a.e.stats.ConnectFailures.Add(1)
	p.countersLocked(a.e).connectFailure.Add(1)
	a.e.log.Info("path not connected", "peer", a.peer(), "transport", p.transport, "path", p.name, "error", err)
	a.pumpLocked()
}

// accept answers the peer's offer.
func (a *association) accept(ctx context.Context, req control.BootstrapRequest) (control.BootstrapReply, error) {
	p, err := a.acceptablePath(ctx, req)
	if err != nil {
		return control.BootstrapReply{}, err
	}
	a.mu.Lock()
	if _, err := a.acceptableLocked(req); err != nil { // no longer
		a.mu.Unlock()
		return control.BootstrapReply{}, err
	}
	if !p.supersededBy(req.Generation, req.From.Less(a.e.incarnation)) {
		newest := p.generation
		a.mu.Unlock()
		return control.BootstrapReply{Newest: newest}, nil
	}
	p.generation, p.own = req.Generation, 0
	t := a.targetLocked(p)
	ep := a.newEndpointLocked(p)
	p.connecting = ep
	a.mu.Unlock()

	se, answer, err := ep.inst.Notifier.Accept(ctx, t, req.Offer, ep)
	if err == nil {
		err = a.accepted(p, ep, se)
	} else {
		a.notAccepted(p, ep, err)
	}
	return control.BootstrapReply{Answer: answer}, err
}

// accepted installs an accepted endpoint.
func (a *association) accepted(p *path, ep *endpoint, se sdk.Endpoint) error {
	a.mu.Lock()
	ep.se = se
	if p.connecting == ep && !ep.ended && a.dead == nil && a.successor == nil {
		a.installLocked(p, ep, time.Now())
		a.e.stats.Accepts.Add(1)
		p.countersLocked(a.e).accepts.Add(1)
		a.pumpLocked()
		a.mu.Unlock()
		return nil
	}
	if p.connecting == ep { // it ended before it was installed
		p.connecting = nil
		a.failedLocked(p, time.Now(), "ended while accepting")
		a.blameLocked(p, ep.deathLocked(health.EndKind(ep.cause)))
	}
	ep.failedLocked()
	a.pumpLocked()
	a.mu.Unlock()
	se.Close()
	return sdk.Errorf(sdk.Busy, "bootstrap: superseded by a newer one")
}

func (a *association) notAccepted(p *path, ep *endpoint, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ep.failedLocked()
	if p.connecting == ep {
		p.connecting = nil
		a.failedLocked(p, time.Now(), "accept: "+err.Error())
		a.blameLocked(p, ep.deathLocked(health.ConnectKind(err, false)))
		p.countersLocked(a.e).acceptFailure.Add(1)
		a.pumpLocked()
	}
}

// deathLocked is the failure of an endpoint that was never installed.
func (ep *endpoint) deathLocked(k health.Kind) health.Failure {
	return health.Failure{Kind: k, Began: ep.begun, Endpoint: ep.generation}
}

// settleTime is how long a bootstrap waits for news of an instance that the
// peer already uses: the news and the bootstrap travel side by side.
const settleTime = time.Second

// acceptablePath finds the path that a bootstrap is for, or says why it is
// refused.
func (a *association) acceptablePath(ctx context.Context, req control.BootstrapRequest) (*path, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for {
		a.mu.Lock()
		p, err := a.acceptableLocked(req)
		done := err == nil || sdk.CodeOf(err) == sdk.SessionUnknown
		if !done && a.unlistedLocked(req, time.Now()) {
			err, done = sdk.Errorf(sdk.Refused, "bootstrap: transport %s does not list path %q here now", req.Transport, req.Path), true
		}
		news := a.news
		a.mu.Unlock()
		if done {
			return p, err
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, err
		}
		a.e.freeze.Awake()
	}
}

func (a *association) acceptableLocked(req control.BootstrapRequest) (*path, error) {
	if a.dead != nil || a.successor != nil {
		return nil, sdk.Errorf(sdk.SessionUnknown, "bootstrap: this association has ended: say hello")
	}
	local := a.e.local(req.Transport)
	if local == nil || local.inst.Notifier == nil {
		return nil, sdk.Errorf(sdk.Refused, "bootstrap: transport %q is not up here", req.Transport)
	}
	if local.inst.ID != req.ToInstance {
		return nil, sdk.Errorf(sdk.Refused, "bootstrap: transport %s is instance %d now, not %d", req.Transport, local.inst.ID, req.ToInstance)
	}
	p := a.paths[pathKey{req.Transport, req.Path}]
	if !a.matched || p == nil || p.inst != local.inst || p.remote != req.FromInstance {
		return nil, sdk.Errorf(sdk.Refused, "bootstrap: path %q of transport %s (instances %d and %d) is not known here yet",
			req.Path, req.Transport, req.FromInstance, req.ToInstance)
	}
	return p, nil
}

// supersededBy reports whether a bootstrap of the given generation from the
// peer takes the place of what there is. Of two attempts for one path, one from
// each side, the one with the higher generation counts, and of equal ones that
// of the lower incarnation, even if this side's has failed by now.
func (p *path) supersededBy(generation uint64, peerIsLower bool) bool {
	if generation != p.generation {
		return generation > p.generation
	}
	return peerIsLower && p.own == generation && (p.ep == nil || p.ep.generation != generation)
}
