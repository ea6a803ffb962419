package engine

import (
	"slices"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
)

// What is told of memory: each at most once for a region, a life of a peer or an
// instance of a transport until it has ended, so that no load makes a flood.

// heldFor is how long a region's Close may wait before that is told.
const heldFor = 10 * time.Second

// watchHeld has it told if a region's Close waits for long. The result ends
// that.
func (m *memory) watchHeld(r *Region) (stop func() bool) {
	return time.AfterFunc(heldFor, func() {
		if by := m.heldBy(r); len(by) > 0 { // its Close is not just returning
			m.tellHeld(r, busy(r, by))
		}
	}).Stop
}

// heldBy names all that a region's Close waits for.
func (m *memory) heldBy(r *Region) []string {
	users := m.usersOf(r)
	m.mu.Lock()
	defer m.mu.Unlock()
	by := m.holdersLocked(r, time.Now())
	if len(by) == 0 {
		by = users
	}
	if len(by) == 0 {
		for inst := range r.at {
			by = append(by, "transport "+inst.Name)
		}
		for _, inst := range r.abandoned {
			by = append(by, "transport "+inst.Name+", of which an instance does not die")
		}
		slices.Sort(by)
	}
	return by
}

// tellHeld tells that a region's Close waits, or has given up, once.
func (m *memory) tellHeld(r *Region, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !r.held && !r.released && m.e.ctx.Err() == nil {
		r.held = true
		m.e.hub.tell(Event{Kind: RegionHeld, Region: r.capability.Short(), Err: err})
	}
}

// refusedLocked takes in that an instance did not register a region, although it
// moves such memory: that is told once for each instance.
func (m *memory) refusedLocked(r *Region, inst *pluginhost.Instance, err error) {
	switch code := sdk.CodeOf(err); {
	case code == sdk.Unsupported, code == sdk.Closed, code == sdk.PluginExited, isClosed(inst.Gone), m.e.ctx.Err() != nil:
		return // not its kind of memory, or there is nobody
	case slices.Contains(m.refusers, inst) || !slices.Contains(m.movers, inst):
		return
	}
	m.refusers = append(m.refusers, inst)
	m.e.log.Warn("region refused", "transport", inst.Name, "instance", inst.ID, "region", r.capability, "error", err)
	m.e.hub.tell(Event{Kind: RegionRefused, Transport: inst.Name, Region: r.capability.Short(), Err: err})
}

// unresolvedLocked takes in that one more op was reported, or is over that was,
// although it is not known whether something may still touch memory for it.
func (m *mover) unresolvedLocked(n int, err error) {
	e := m.s.e
	was := m.reported
	m.reported += n
	if e.ctx.Err() != nil || was > 0 && m.reported > 0 {
		return
	}
	kind := TransfersUnresolved
	if m.reported == 0 {
		kind = TransfersResolved
	}
	e.hub.tell(Event{Kind: kind, Address: m.s.a.address, Peer: m.s.a.node.Load(), Err: err})
}
