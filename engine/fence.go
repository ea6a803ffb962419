package engine

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
)

// gates are the passive ends of endpoints for memory: those over which peers
// reach this engine's regions. They belong to peers' incarnations and outlive
// associations, since what a fence promises must hold whoever forgot whom: once
// a generation is fenced, nothing that came over it is carried out any more, and
// neither it nor an older one is accepted.
//
// Their lock is a leaf: transports are called without it.
type gates struct {
	e  *Engine
	mu sync.Mutex
	by map[Incarnation]*gate
}

// gate is what one peer has connected.
type gate struct {
	lanes map[laneKey]*doorway
	floor uint64 // the highest generation of a lane that was forgotten
}

// laneKey names an endpoint for memory among those to one peer.
type laneKey struct {
	transport, path string
	lane            int
}

// doorway is one lane's passive ends: the current one and those that it
// replaced and that have not ended.
type doorway struct {
	seen uint64 // the highest generation that came, or was fenced
	ends []*passive
}

// maxDoorways bounds what is remembered of one peer's lanes, which the peer
// names, and maxEnds how many ends it has over them at a time.
const (
	maxDoorways = 512
	maxEnds     = 2 * maxDoorways
)

// passive is the handler of a passive end. It takes no frames.
type passive struct {
	gs         *gates
	from       Incarnation
	generation uint64
	inst       *pluginhost.Instance
	remote     uint64        // the peer's instance
	over       chan struct{} // closed once it is fenced
	retired    time.Time     // since when its instance is being replaced

	// Guarded by the gates' lock.
	se   sdk.Endpoint // nil until Accept has returned
	shut bool         // to be ended
}

func (gs *gates) init(e *Engine) { gs.e, gs.by = e, map[Incarnation]*gate{} }

// doorwayLocked returns what is known of a lane, or nil if there is no room for
// one more.
func (gs *gates) doorwayLocked(from Incarnation, k laneKey) *doorway {
	g := gs.by[from]
	if g == nil {
		g = &gate{lanes: map[laneKey]*doorway{}}
		gs.by[from] = g
	}
	d := g.lanes[k]
	if d == nil {
		if len(g.lanes) >= maxDoorways {
			g.prune()
		}
		if len(g.lanes) >= maxDoorways {
			return nil
		}
		d = &doorway{seen: g.floor}
		g.lanes[k] = d
	}
	return d
}

// prune forgets lanes without an end, but not how far their generations were.
func (g *gate) prune() {
	for k, d := range g.lanes {
		if len(d.ends) == 0 {
			g.floor = max(g.floor, d.seen)
			delete(g.lanes, k)
		}
	}
}

// ends is how many ends there are.
func (g *gate) ends() (n int) {
	for _, d := range g.lanes {
		n += len(d.ends)
	}
	return n
}

// accept has the transport accept a peer's offer of an endpoint for memory.
func (gs *gates) accept(ctx context.Context, inst *pluginhost.Instance, remote uint64, t sdk.Target, offer []byte) (control.BootstrapReply, error) {
	p := &passive{gs: gs, from: t.Peer, generation: t.Generation, inst: inst, remote: remote, over: make(chan struct{})}
	k := laneKey{inst.Description.Name, t.Path, t.Lane}
	gs.mu.Lock()
	d := gs.doorwayLocked(t.Peer, k)
	if d == nil || gs.by[t.Peer].ends() >= maxEnds {
		gs.mu.Unlock()
		return control.BootstrapReply{}, sdk.Errorf(sdk.Busy, "bootstrap: this engine holds at most %d endpoints for memory of a peer's, over %d lanes", maxEnds, maxDoorways)
	}
	if t.Generation <= d.seen {
		newest := d.seen
		gs.mu.Unlock()
		return control.BootstrapReply{Newest: newest}, nil
	}
	d.seen = t.Generation
	var old []*passive // whose other ends are gone; those between other instances drain
	for _, o := range d.ends {
		if o.inst == inst && o.remote == remote {
			old = append(old, o)
		}
	}
	d.ends = append(d.ends, p)
	gs.mu.Unlock()
	for _, o := range old {
		o.end()
	}

	se, answer, err := inst.Mover.Accept(ctx, t, offer, p)
	if err != nil {
		p.gone() // there is none
		return control.BootstrapReply{}, err
	}
	gs.mu.Lock()
	p.se = se
	shut := p.shut
	gs.mu.Unlock()
	if shut {
		se.Close()
		return control.BootstrapReply{}, sdk.Errorf(sdk.Busy, "bootstrap: generation %d is fenced", t.Generation)
	}
	gs.e.stats.moves[moveAccepted].Add(1)
	return control.BootstrapReply{Answer: answer}, nil
}

// end has the transport end it. It does not wait.
func (p *passive) end() {
	p.gs.mu.Lock()
	p.shut = true
	se := p.se
	p.gs.mu.Unlock()
	if se != nil {
		se.Close()
	}
}

// Completed is not for passive ends, which send nothing.
func (p *passive) Completed([]sdk.Completion) { p.gs.e.stats.Nonsense.Add(1) }

// Received is not for endpoints for memory.
func (p *passive) Received([][]byte) { p.gs.e.stats.Nonsense.Add(1) }

// Ended says that nothing is carried out for the endpoint any more, if it is the
// instance's own word; otherwise that is so once the instance is gone.
func (p *passive) Ended(err error) {
	if ownWord(p.inst, err) {
		p.gone()
		return
	}
	p.gs.e.stats.fences[fenceWaited].Add(1)
	p.gs.e.tasks.Go(func() {
		select {
		case <-p.inst.Gone:
			p.gone()
		case <-p.gs.e.ctx.Done():
		}
	})
}

// ownWord reports whether an endpoint's end was told by its instance, which has
// then stopped doing anything for it, rather than followed from the instance's
// loss: a process whose link is cut may still run.
func ownWord(inst *pluginhost.Instance, err error) bool {
	return sdk.CodeOf(err) != sdk.PluginExited || isClosed(inst.Gone)
}

// gone takes the end out: it is fenced.
func (p *passive) gone() {
	gs := p.gs
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if isClosed(p.over) {
		return
	}
	close(p.over)
	for _, d := range gs.by[p.from].lanes {
		if i := slices.Index(d.ends, p); i >= 0 {
			d.ends = slices.Delete(d.ends, i, i+1)
		}
	}
}

// fence ends a generation and all older ones, and waits until nothing of the
// former is carried out any more. The older ones are not waited for: what may
// have come over one of them has a fence of its own, and none of that lane would
// ever be granted after a plugin that does not die.
func (gs *gates) fence(ctx context.Context, from Incarnation, k laneKey, generation uint64) error {
	gs.mu.Lock()
	d := gs.doorwayLocked(from, k)
	if d == nil { // nothing came over it, and nothing older than this will
		gs.by[from].floor = max(gs.by[from].floor, generation)
		gs.mu.Unlock()
		return nil
	}
	d.seen = max(d.seen, generation)
	var ends []*passive
	var over <-chan struct{} = closedChan
	for _, p := range d.ends {
		if p.generation <= generation {
			ends = append(ends, p)
		}
		if p.generation == generation {
			over = p.over
		}
	}
	gs.mu.Unlock()
	for _, p := range ends {
		p.end()
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return sdk.Errorf(sdk.Busy, "fence: transport %s has not ended generation %d over %s yet", k.transport, generation, k.path)
	}
}

// Fence answers a peer that has to know that nothing of what it sent over an
// endpoint can be carried out any more.
func (h *answers) Fence(ctx context.Context, req control.FenceRequest) error {
	if _, err := h.sender(ctx, "fence", req.From); err != nil {
		return err
	}
	if req.To != h.e.incarnation {
		return notHere("fence", req.To, h.e.incarnation)
	}
	err := h.e.memory.gates.fence(ctx, req.From, laneKey{req.Transport, req.Path, req.Lane}, req.Generation)
	h.e.stats.fences[fenceAnswered+boolean(err != nil)].Add(1)
	return err
}

// shut ends all of a peer's ends and returns how many are not fenced yet.
func (gs *gates) shut(from Incarnation) int {
	gs.mu.Lock()
	var ends []*passive
	if g := gs.by[from]; g != nil {
		for _, d := range g.lanes {
			ends = append(ends, d.ends...)
		}
	}
	gs.mu.Unlock()
	for _, p := range ends {
		gs.e.tasks.Go(p.end) // the caller may hold a lock
	}
	return len(ends)
}

// retire returns how many ends an instance that is being replaced still has.
// Their active sides move to its successor on their own; those that do not in
// time are ended.
func (gs *gates) retire(inst *pluginhost.Instance) (busy int) {
	now := time.Now()
	var late []*passive
	gs.mu.Lock()
	for _, g := range gs.by {
		for _, d := range g.lanes {
			for _, p := range d.ends {
				if p.inst != inst {
					continue
				}
				busy++
				if p.retired.IsZero() {
					p.retired = now
				} else if now.Sub(p.retired) >= retireFor {
					late = append(late, p)
				}
			}
		}
	}
	gs.mu.Unlock()
	for _, p := range late {
		p.end()
	}
	return busy
}

// sweep forgets peers of which nothing is connected and nothing known.
func (gs *gates) sweep() {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	for i, g := range gs.by {
		g.prune()
		if len(g.lanes) == 0 && !gs.e.knows(i) {
			delete(gs.by, i)
		}
	}
}

// knows reports whether there is an association with an incarnation.
func (e *Engine) knows(i Incarnation) bool {
	e.directory.mu.Lock()
	defer e.directory.mu.Unlock()
	return e.directory.byIncarnation[i] != nil
}

// acceptMemory answers the peer's offer of an endpoint for memory.
func (a *association) acceptMemory(ctx context.Context, req control.BootstrapRequest) (control.BootstrapReply, error) {
	wait, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for {
		a.mu.Lock()
		inst, t, err := a.memoryTargetLocked(req)
		news := a.news
		a.mu.Unlock()
		if err == nil {
			return a.e.memory.gates.accept(ctx, inst, req.FromInstance, t, req.Offer)
		}
		if sdk.CodeOf(err) == sdk.SessionUnknown {
			return control.BootstrapReply{}, err
		}
		select {
		case <-news:
		case <-wait.Done():
			return control.BootstrapReply{}, err
		}
		a.e.freeze.Awake()
	}
}

// memoryTargetLocked finds what an offer of an endpoint for memory is for, or
// says why it is refused.
func (a *association) memoryTargetLocked(req control.BootstrapRequest) (*pluginhost.Instance, sdk.Target, error) {
	if a.dead != nil || a.successor != nil {
		return nil, sdk.Target{}, sdk.Errorf(sdk.SessionUnknown, "bootstrap: this association has ended: say hello")
	}
	local := a.e.local(req.Transport)
	switch {
	case local == nil || local.inst.Mover == nil:
		return nil, sdk.Target{}, sdk.Errorf(sdk.Refused, "bootstrap: transport %q does not move memory here now", req.Transport)
	case local.inst.ID != req.ToInstance:
		return nil, sdk.Target{}, sdk.Errorf(sdk.Refused, "bootstrap: transport %s is instance %d now, not %d", req.Transport, local.inst.ID, req.ToInstance)
	}
	for _, r := range a.remote.list {
		if r.Name == req.Transport && r.Instance == req.FromInstance {
			return local.inst, a.memoryTarget(laneKey{req.Transport, req.Path, req.Lane}, r.Attributes, req.Generation), nil
		}
	}
	return nil, sdk.Target{}, sdk.Errorf(sdk.Refused, "bootstrap: instance %d of transport %s is not known here yet", req.FromInstance, req.Transport)
}

func (a *association) memoryTarget(k laneKey, remote sdk.Attributes, generation uint64) sdk.Target {
	return sdk.Target{
		Local: a.e.incarnation, Peer: a.node.Load().Incarnation, PeerName: a.peer(), PeerIdentity: a.identity,
		Path: k.path, Remote: remote, Use: sdk.UseMemory, Lane: k.lane, Generation: generation,
	}
}
