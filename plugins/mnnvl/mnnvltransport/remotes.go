//go:build linux

package mnnvltransport

import (
	"context"
	"errors"
	"sync"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mapping"
)

// remote is a peer's region, as announced last.
type remote struct {
	sdk.RemoteRegion
	export export
	key    mapping.Key
}

// source is what a device has to import.
func (r *remote) source() mapping.Source {
	return r.export.source(r.key, r.Length, r.Writable, r.Version)
}

// remotes are the peers' regions. The lock is also held while the devices'
// caches are told, so that both know the same.
type remotes struct {
	mu        sync.RWMutex
	providers map[sdk.Incarnation]*published
	n         int
}

// published is what one provider has: at each base one region, and those with a
// capability by it, too.
type published struct {
	byBase map[uint64]*remote
	byCap  map[sdk.Capability]*remote
}

func (rs *remotes) init() { rs.providers = map[sdk.Incarnation]*published{} }

// find finds the region that an op names.
func (rs *remotes) find(provider sdk.Incarnation, o *sdk.Op) *remote {
	rs.mu.RLock()
	defer rs.mu.RUnlock()
	p := rs.providers[provider]
	if p == nil {
		return nil
	}
	if !o.Remote.IsZero() {
		return p.byCap[o.Remote]
	}
	if r := p.byBase[o.RemoteBase]; r != nil && r.Capability.IsZero() {
		return r
	}
	return nil
}

// again tells a cache once more of what it may have dropped, if it is current.
func (rs *remotes) again(r *remote, c *mapping.Cache[cuda.Ptr]) error {
	rs.mu.RLock()
	defer rs.mu.RUnlock()
	if p := rs.providers[r.Provider]; p == nil || p.byBase[r.Base] != r {
		return sdk.Errorf(sdk.StaleCapability, "mnnvl: region %v was replaced or withdrawn", r.Capability)
	}
	return c.Announce(r.source())
}

// at finds what a provider has at a base. The lock is held.
func (rs *remotes) at(provider sdk.Incarnation, base uint64) *remote {
	if p := rs.providers[provider]; p != nil {
		return p.byBase[base]
	}
	return nil
}

// anyAt finds what any provider, also one that is gone, had at a base.
func (rs *remotes) anyAt(base uint64) *remote {
	for provider := range rs.providers {
		if r := rs.at(provider, base); r != nil {
			return r
		}
	}
	return nil
}

// put takes the place of what had the base. The lock is held.
func (rs *remotes) put(r *remote) {
	p := rs.providers[r.Provider]
	if p == nil {
		p = &published{map[uint64]*remote{}, map[sdk.Capability]*remote{}}
		rs.providers[r.Provider] = p
	}
	if old := p.byBase[r.Base]; old != nil {
		rs.drop(p, old)
	}
	if moved := p.byCap[r.Capability]; moved != nil { // a capability is of one place
		rs.drop(p, moved)
	}
	p.byBase[r.Base] = r
	if !r.Capability.IsZero() {
		p.byCap[r.Capability] = r
	}
	rs.n++
}

func (rs *remotes) drop(p *published, r *remote) {
	delete(p.byBase, r.Base)
	delete(p.byCap, r.Capability)
	rs.n--
}

// withdraw forgets one region of a provider or, with no capability, all.
func (rs *remotes) withdraw(provider sdk.Incarnation, c sdk.Capability) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	p := rs.providers[provider]
	if p == nil {
		return
	}
	for _, r := range p.byBase {
		if c.IsZero() || r.Capability == c {
			rs.drop(p, r)
		}
	}
	if len(p.byBase) == 0 {
		delete(rs.providers, provider)
	}
}

// Announce implements [sdk.Mover].
func (t *Transport) Announce(_ context.Context, from sdk.RemoteRegion) error {
	if err := t.Life.Running(); err != nil {
		return err
	}
	if err := from.Check(); err != nil {
		return err
	}
	if from.Kind != sdk.DeviceMemory {
		return sdk.Errorf(sdk.Unsupported, "mnnvl: region %v is %v memory, and only device memory can be reached", from.Capability, from.Kind)
	}
	r := &remote{RemoteRegion: from, key: mapping.Key{Provider: from.Provider, Base: from.Base, Capability: from.Capability}}
	var err error
	if r.export, err = parseExport(from.Attributes, from.Length); err != nil {
		return err
	}
	r.Attributes = nil // they are in export
	reached := false
	for _, d := range t.devices {
		reached = reached || d.place.reaches(&r.export)
	}
	if !reached {
		return sdk.Errorf(sdk.Unsupported, "mnnvl: region %v cannot be reached: its handle is %v's, it is on another machine, and in no NVLink fabric with a GPU of this one",
			from.Capability, r.export.kind)
	}
	rs := &t.remotes
	rs.mu.Lock()
	defer rs.mu.Unlock()
	old := rs.at(from.Provider, from.Base)
	if t.addressOnly {
		old = rs.anyAt(from.Base)
	}
	if old == nil && rs.n >= maxRegions {
		return sdk.Errorf(sdk.Busy, "mnnvl: %d regions of peers are known, the limit", maxRegions)
	}
	if old != nil && t.addressOnly {
		r.key, r.export = old.key, old.export
	} else {
		for _, d := range t.devices {
			if err := d.cache.Announce(r.source()); err != nil {
				return err
			}
		}
	}
	rs.put(r)
	return nil
}

// Withdraw implements [sdk.Mover].
func (t *Transport) Withdraw(ctx context.Context, provider sdk.Incarnation, c sdk.Capability) error {
	if err := t.Life.Running(); err != nil {
		return err
	}
	if t.addressOnly {
		return nil
	}
	t.remotes.withdraw(provider, c)
	var errs []error
	for _, d := range t.devices { // each begins, whatever becomes of the others
		if err := d.cache.Forget(ctx, provider, c); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
