package bootstrap

import (
	"sync"

	"github.com/hawser-transport/hawser/sdk"
)

// maxGenerations bounds the memory of generations: peers restart, and each of
// their incarnations is a new key.
const maxGenerations = 8192

// Side says who began the bootstrap. Generations are counted apart, since both
// sides may begin at once and the engine settles which one stays.
type Side bool

const (
	// Connecting: this side dials.
	Connecting Side = false
	// Accepting: the peer dials.
	Accepting Side = true
)

// Generations remembers the newest generation per peer, path, use, lane and
// side, and refuses older ones. Its zero value is ready. The engine's own check is the
// authority; this one catches messages that overtook each other on the way to
// the transport, so forgetting the odd entry at the bound is harmless.
type Generations struct {
	mu     sync.Mutex
	newest map[generationKey]uint64
}

type generationKey struct {
	peer sdk.Incarnation
	path string
	use  sdk.Use
	lane int
	side Side
}

// Admit notes the target's generation, or refuses it as older than one seen.
func (g *Generations) Admit(t sdk.Target, side Side) error {
	key := generationKey{t.Peer, t.Path, t.Use, t.Lane, side}
	g.mu.Lock()
	defer g.mu.Unlock()
	newest, seen := g.newest[key]
	if seen && t.Generation < newest {
		return sdk.Errorf(sdk.Refused, "generation %d of %v to %s, lane %d, is older than %d", t.Generation, t.Use, t.Path, t.Lane, newest)
	}
	if g.newest == nil {
		g.newest = make(map[generationKey]uint64)
	}
	if !seen && len(g.newest) >= maxGenerations {
		for k := range g.newest {
			delete(g.newest, k)
			break
		}
	}
	g.newest[key] = t.Generation
	return nil
}
