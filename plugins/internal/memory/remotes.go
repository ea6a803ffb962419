package memory

import (
	"context"
	"maps"
	"sync"

	"github.com/hawser-transport/hawser/sdk"
)

// maxRemotes bounds what peers' descriptors can make a table hold.
const maxRemotes = 1 << 17

// Remotes are peers' regions, as announced. Its zero value is ready.
type Remotes struct {
	// Read, unless it is nil, reads what the peer's transport says of a region,
	// which ops over it then get: regions whose attributes or instance differ
	// are different ones. Set it before the first Announce.
	Read func(said *sdk.RemoteRegion) (any, error)

	mu           sync.Mutex
	byBase       map[place]*remote
	byCapability map[title]*remote // those whose descriptor names one
	leaving      map[*remote]struct{}
}

type place struct {
	provider sdk.Incarnation
	base     uint64
}

type title struct {
	provider   sdk.Incarnation
	capability sdk.Capability
}

type remote struct {
	sdk.RemoteRegion
	// name is what its provider calls it: its capability, if not in the
	// descriptor then in the attributes.
	name sdk.Capability
	read any
	Uses // under the table's lock
}

func (r *remote) place() place { return place{r.Provider, r.Base} }
func (r *remote) title() title { return title{r.Provider, r.Capability} }

// Announce implements [sdk.Mover]. What is older than what is known of the same
// base or capability says nothing.
func (t *Remotes) Announce(_ context.Context, said sdk.RemoteRegion) error {
	if err := said.Check(); err != nil {
		return err
	}
	if said.Kind != sdk.HostMemory {
		return sdk.Errorf(sdk.Unsupported, "region %v is %v memory; this transport reaches host memory only", said.Capability, said.Kind)
	}
	r := &remote{RemoteRegion: said, name: said.Capability}
	if r.name.IsZero() {
		if err := r.name.UnmarshalText([]byte(said.Attributes[Attribute])); err != nil || r.name.IsZero() {
			return sdk.Errorf(sdk.InvalidArgument, "the region of %v at base %#x has a capability neither in its descriptor nor in the transport's attributes", said.Provider.Short(), said.Base)
		}
	}
	if t.Read == nil {
		r.Attributes, r.Instance = nil, 0
	} else if read, err := t.Read(&said); err != nil {
		return err
	} else {
		r.read = read
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.addLocked(r)
}

func (t *Remotes) addLocked(r *remote) error {
	if t.byBase == nil {
		t.byBase, t.byCapability = make(map[place]*remote), make(map[title]*remote)
		t.leaving = make(map[*remote]struct{})
	}
	for _, old := range []*remote{t.byBase[r.place()], t.byCapability[r.title()]} {
		switch {
		case old == nil:
		case old.Version > r.Version:
			return nil
		case old.same(r):
			old.Version = r.Version
			return nil
		default:
			t.leaveLocked(old)
		}
	}
	if len(t.byBase)+len(t.leaving) >= maxRemotes {
		return sdk.Errorf(sdk.Busy, "%d regions of peers are known, which is the most", maxRemotes)
	}
	t.byBase[r.place()] = r
	if !r.Capability.IsZero() {
		t.byCapability[r.title()] = r
	}
	return nil
}

// same says whether ops cannot tell the two apart.
func (r *remote) same(o *remote) bool {
	return r.Base == o.Base && r.Length == o.Length && r.Writable == o.Writable && r.Capability == o.Capability && r.name == o.name &&
		r.Instance == o.Instance && maps.Equal(r.Attributes, o.Attributes)
}

func (t *Remotes) leaveLocked(r *remote) <-chan struct{} {
	idle := r.Leave()
	if t.byBase[r.place()] == r {
		delete(t.byBase, r.place())
	}
	if t.byCapability[r.title()] == r {
		delete(t.byCapability, r.title())
	}
	if r.Count() > 0 {
		t.leaving[r] = struct{}{}
	}
	return idle
}

// RemoteUse is the use of a peer's region. End must be called once.
type RemoteUse struct {
	// Name is what the provider calls the region.
	Name sdk.Capability
	// Instance is the provider's instance of the transport whose attributes
	// Read are. Both are zero for tables that do not read them.
	Instance uint64
	Read     any

	t      *Remotes
	remote *remote
}

// Use begins one for an op: of the region of that provider that it names. The
// error's code is as with [Regions.Use].
func (t *Remotes) Use(provider sdk.Incarnation, o *sdk.Op) (RemoteUse, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byCapability[title{provider, o.Remote}]
	if o.Remote.IsZero() {
		r = t.byBase[place{provider, o.RemoteBase}]
	}
	if r == nil || r.Capability != o.Remote {
		return RemoteUse{}, stale(o.Remote)
	}
	if err := r.Admit(o.Kind == sdk.Write, o.RemoteOffset, o.Length); err != nil {
		return RemoteUse{}, err
	}
	if !r.Begin() {
		return RemoteUse{}, stale(o.Remote)
	}
	return RemoteUse{Name: r.name, Instance: r.Instance, Read: r.read, t: t, remote: r}, nil
}

// End ends the use.
func (u RemoteUse) End() {
	u.t.mu.Lock()
	defer u.t.mu.Unlock()
	if u.remote.End() {
		delete(u.t.leaving, u.remote)
	}
}

// Withdraw implements [sdk.Mover].
func (t *Remotes) Withdraw(ctx context.Context, provider sdk.Incarnation, c sdk.Capability) error {
	for _, r := range t.withdraw(provider, c) {
		if !Over(ctx, r.idle) {
			t.mu.Lock()
			defer t.mu.Unlock()
			return sdk.Errorf(sdk.Busy, "region %v of %v: %d ops are under way", r.name, provider.Short(), r.Count())
		}
	}
	return nil
}

// withdraw makes what is meant leave, and returns what has not yet.
func (t *Remotes) withdraw(provider sdk.Incarnation, c sdk.Capability) (left []*remote) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.IsZero() {
		for _, r := range t.byBase {
			if r.Provider == provider {
				t.leaveLocked(r)
			}
		}
	} else if r := t.byCapability[title{provider, c}]; r != nil {
		t.leaveLocked(r)
	}
	for r := range t.leaving {
		if r.Provider == provider && (c.IsZero() || r.Capability == c) {
			left = append(left, r)
		}
	}
	return left
}
