package memory

import (
	"context"
	"encoding/hex"
	"errors"
	"maps"
	"sync"

	"github.com/hawser-transport/hawser/sdk"
)

// Attribute is what Register publishes of a region: its capability, in
// hexadecimal. Peers name it by that alone, also those whose descriptors leave
// capabilities out: a base is no secret, and may be another region's tomorrow.
const Attribute = "capability"

// maxRegions bounds a table. Each is a mapping, of which a process may have
// 65,530.
const maxRegions = 1 << 15

// Pin is what a transport holds of a mapping for as long as it is mapped: its
// registration with devices.
type Pin interface {
	// Attributes are what peers need of it.
	Attributes() sdk.Attributes
	// Release lets go of the mapping. After an error it is called again.
	Release() error
}

// Regions are those of the application here. Its zero value is ready.
type Regions struct {
	// Pin, unless it is nil, is called for every region once it is mapped. Set
	// it before the first Register.
	Pin func(r *sdk.Region, bytes []byte) (Pin, error)

	mu     sync.Mutex
	closed bool
	table  map[sdk.Capability]*region
}

type region struct {
	sdk.Region        // without its file
	Uses              // under the table's lock
	bytes      []byte // the region, within the mapping
	pin        Pin    // or nil

	unmapping sync.Mutex
	mapping   []byte // nil once it is unmapped
}

// Register implements [sdk.Mover]: it maps the region, read-only unless it is
// writable.
func (t *Regions) Register(_ context.Context, r sdk.Region) (sdk.Attributes, error) {
	if r.File != nil {
		defer r.File.Close() //nolint:errcheck // the mapping stays
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	if r.Kind != sdk.HostMemory {
		return nil, sdk.Errorf(sdk.Unsupported, "region %v is %v memory; this transport reaches host memory only", r.Capability, r.Kind)
	}
	mapping, bytes, err := mapRegion(&r)
	if err != nil {
		return nil, err
	}
	r.File = nil
	attributes := sdk.Attributes{Attribute: hex.EncodeToString(r.Capability[:])}
	g := &region{Region: r, mapping: mapping, bytes: bytes}
	if t.Pin != nil {
		if g.pin, err = t.Pin(&r, bytes); err != nil {
			_ = unmap(mapping)
			return nil, err
		}
		maps.Copy(attributes, g.pin.Attributes())
	}
	if err := t.add(g); err != nil {
		return nil, errors.Join(err, g.letGo())
	}
	return attributes, nil
}

// letGo releases and unmaps the region, which nobody uses. After an error it is
// called again.
func (r *region) letGo() error {
	if r.pin != nil {
		if err := r.pin.Release(); err != nil {
			return err
		}
		r.pin = nil
	}
	if err := unmap(r.mapping); err != nil {
		return err
	}
	r.mapping, r.bytes = nil, nil
	return nil
}

func (t *Regions) add(r *region) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return sdk.Errorf(sdk.Closed, "the transport is closed")
	case t.table[r.Capability] != nil:
		return sdk.Errorf(sdk.Busy, "region %v is registered", r.Capability)
	case len(t.table) >= maxRegions:
		return sdk.Errorf(sdk.Busy, "%d regions are registered, which is the most", maxRegions)
	}
	if t.table == nil {
		t.table = make(map[sdk.Capability]*region)
	}
	t.table[r.Capability] = r
	return nil
}

// Use is the use of a range of a region. Its bytes may be touched until End,
// which must be called once.
type Use struct {
	Bytes  []byte
	Pin    Pin // the region's, or nil
	t      *Regions
	region *region
}

// Use begins one: to write to the range, or only to read it. The error has code
// [sdk.StaleCapability] if there is no such region any more, and otherwise that
// of [sdk.Region.Admit].
func (t *Regions) Use(c sdk.Capability, write bool, offset, length uint64) (Use, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.table[c]
	if r == nil {
		return Use{}, stale(c)
	}
	if err := r.Admit(write, offset, length); err != nil {
		return Use{}, err
	}
	if !r.Begin() {
		return Use{}, stale(c)
	}
	return Use{Bytes: r.bytes[offset : offset+length : offset+length], Pin: r.pin, t: t, region: r}, nil
}

// End ends the use.
func (u Use) End() {
	u.t.mu.Lock()
	defer u.t.mu.Unlock()
	u.region.End()
}

func stale(c sdk.Capability) error {
	return sdk.Errorf(sdk.StaleCapability, "there is no region %v", c)
}

// Deregister implements [sdk.Mover].
func (t *Regions) Deregister(ctx context.Context, c sdk.Capability) error {
	t.mu.Lock()
	r := t.table[c]
	var idle <-chan struct{}
	if r != nil {
		idle = r.Leave()
	}
	t.mu.Unlock()
	if r == nil {
		return nil
	}
	if !Over(ctx, idle) {
		t.mu.Lock()
		defer t.mu.Unlock()
		return sdk.Errorf(sdk.Busy, "region %v: %d ops are under way", c, r.Count())
	}
	return t.drop(r)
}

// drop unmaps a region that nobody uses, once, whoever comes first.
func (t *Regions) drop(r *region) error {
	r.unmapping.Lock()
	defer r.unmapping.Unlock()
	if r.mapping == nil {
		return nil
	}
	if err := r.letGo(); err != nil {
		return sdk.Errorf(sdk.Busy, "region %v cannot be unmapped: %w", r.Capability, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.table, r.Capability)
	return nil
}

// Close forgets all regions, as Deregister does, and takes no more.
func (t *Regions) Close(ctx context.Context) error {
	t.mu.Lock()
	t.closed = true
	var all []sdk.Capability
	for c := range t.table {
		all = append(all, c)
	}
	t.mu.Unlock()
	for _, c := range all {
		if err := t.Deregister(ctx, c); err != nil {
			return err
		}
	}
	return nil
}
