package bootstrap

import (
	"sync"

	"github.com/hawser-transport/hawser/sdk"
)

// MaxPending bounds the endpoints that wait for their peer's connection: a
// peer that makes offers and never dials would otherwise grow them without
// end.
const MaxPending = 4096

// Pending holds the endpoints of one instance that were accepted and whose
// connection has not come yet.
type Pending[E any] struct {
	instance uint64

	mu      sync.Mutex
	waiting map[Token]waiting[E]
}

type waiting[E any] struct {
	kind       Kind
	offered    Token
	generation uint64
	identity   string // whose connection it must be; empty: anybody's
	endpoint   E
}

// NewPending makes an empty table for an instance.
func NewPending[E any](instance uint64) *Pending[E] {
	return &Pending[E]{instance: instance, waiting: make(map[Token]waiting[E])}
}

// Add expects a connection for the endpoint that answered the target's offer.
func (p *Pending[E]) Add(answered Token, o Offer, t sdk.Target, endpoint E) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) >= MaxPending {
		return sdk.Errorf(sdk.Busy, "%d accepted endpoints are waiting for their peers already", MaxPending)
	}
	p.waiting[answered] = waiting[E]{kindFor(t.Use), o.Token, o.Generation, t.PeerIdentity, endpoint}
	return nil
}

// Claim returns the endpoint that a connection of this identity belongs to and
// stops expecting it. Anything but Welcome leaves the table as it was: a stranger's guess must
// not cost the expected peer its place.
func (p *Pending[E]) Claim(j Join, identity string) (E, Verdict) {
	var none E
	if j.Instance != p.instance {
		return none, WrongInstance
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	w, ok := p.waiting[j.Answered]
	if !ok || !w.offered.equal(j.Offered) {
		return none, UnknownToken
	}
	if w.kind != j.Kind {
		return none, WrongKind
	}
	if w.generation != j.Generation {
		return none, WrongGeneration
	}
	if w.identity != "" && w.identity != identity {
		return none, WrongIdentity
	}
	delete(p.waiting, j.Answered)
	return w.endpoint, Welcome
}

// Remove stops expecting a connection. It says whether one was expected: if
// not it has been claimed.
func (p *Pending[E]) Remove(answered Token) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, expected := p.waiting[answered]
	delete(p.waiting, answered)
	return expected
}

// All returns the endpoints that are expected.
func (p *Pending[E]) All() []E {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]E, 0, len(p.waiting))
	for _, w := range p.waiting {
		all = append(all, w.endpoint)
	}
	return all
}
