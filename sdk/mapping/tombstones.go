package mapping

import (
	"math"

	"github.com/hawser-transport/hawser/sdk"
)

// What is remembered of publications that are no more is bounded: of each
// provider, so that one that publishes and withdraws without end pushes out only
// its own, and in all. A descriptor that is late by more is not recognised.
const (
	maxTombstones         = 64 << 10
	maxProviderTombstones = 8 << 10
)

// never is the floor of a key that nothing may announce again.
const never = math.MaxUint64

// tombstones remember, per key, the lowest version of a descriptor that may
// announce it again. The zero value is empty.
type tombstones struct {
	providers map[sdk.Incarnation]*graves
	n         int
}

// graves are one provider's, never none.
type graves struct {
	floors map[Key]uint64
	order  []Key // the oldest first
}

// bury notes that the source is no more. A capability never comes back. A key
// without one may, with a newer descriptor than floor - 1. If there are too many
// the oldest one is forgotten of the provider, or of the one that has most.
func (t *tombstones) bury(k Key, floor uint64) {
	g := t.providers[k.Provider]
	if g == nil {
		g = &graves{floors: map[Key]uint64{}}
	}
	if old, ok := g.floors[k]; ok {
		g.floors[k] = max(old, floor)
		return
	}
	if len(g.order) >= maxProviderTombstones {
		t.forget(g)
	} else if t.n >= maxTombstones {
		t.forget(t.most())
	}
	if t.providers == nil {
		t.providers = map[sdk.Incarnation]*graves{}
	}
	t.providers[k.Provider] = g
	g.floors[k], g.order = floor, append(g.order, k)
	t.n++
}

// most are those of the provider that has most.
func (t *tombstones) most() (g *graves) {
	for _, o := range t.providers {
		if g == nil || len(o.order) > len(g.order) {
			g = o
		}
	}
	return g
}

// forget forgets a provider's oldest.
func (t *tombstones) forget(g *graves) {
	k := g.order[0]
	delete(g.floors, k)
	g.order = g.order[1:]
	t.n--
	if len(g.order) == 0 {
		delete(t.providers, k.Provider)
	}
}

// forbid reports whether a descriptor of this version may not announce the key.
func (t *tombstones) forbid(k Key, version uint64) bool {
	g := t.providers[k.Provider]
	if g == nil {
		return false
	}
	floor, ok := g.floors[k]
	return ok && (floor == never || version < floor)
}
