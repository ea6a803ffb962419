package sdktest

import (
	"crypto/x509"
	"errors"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// keyed makes and configures an instance with these keys; nil means none.
func (r *rig) keyed(name string, k *sdk.Keys) *peer {
	r.Helper()
	p := r.make(name)
	p.keys, p.keysSet = k, true
	r.configure(p)
	return p
}

// authority is the one of every instance of a case that is secured.
func (r *rig) authority() *Authority {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ca == nil {
		r.ca = NewAuthority(r, "the suite's authority")
	}
	return r.ca
}

func allow(k sdk.Keys, names ...string) *sdk.Keys {
	k.Allow = names
	return &k
}

// keysCarry: with keys everything goes as without.
func keysCarry(r *rig) {
	ca := r.authority()
	a, b := ca.Issue("alice", nil), ca.Issue("bob", nil)
	r.a, r.b = r.keyed("a", allow(a, "BOB", "carol")), r.keyed("b", allow(b, "alice"))
	if r.desc.Has(sdk.FeatureProbe) {
		if err := r.probe(r.a, r.target(r.a, r.b)); err != nil {
			r.Errorf("Probe: %v", err)
		}
	}
	r.works()
	y, x := r.connect(r.b, r.a)
	r.talk(y, x, 20)
}

// keysRefuse: each pair that must not talk is refused, with a reason, by
// whoever connects.
func keysRefuse(r *rig) {
	ca, other := r.authority(), NewAuthority(r, "another authority")
	own := ca.Issue("alice", nil)
	foreign, bob := other.Issue("bob", nil), ca.Issue("bob", nil)
	for _, c := range []struct {
		what string
		a, b *sdk.Keys
	}{
		{"a peer of another authority", &own, &foreign},
		{"a peer without keys", &own, nil},
		{"a peer that is not allowed", allow(own, "carol"), &bob},
	} {
		a, b := r.keyed("a", c.a), r.keyed("b", c.b)
		for _, way := range [][2]*peer{{a, b}, {b, a}} {
			at := r.attempt(way[0], way[1])
			start := time.Now()
			err := at.run(r.ctx())
			switch {
			case err == nil:
				r.Errorf("%s: connected from %s to %s", c.what, way[0].name, way[1].name)
			case !errors.Is(err, sdk.Refused):
				r.Errorf("%s: from %s to %s: %v, want %v", c.what, way[0].name, way[1].name, err, sdk.Refused)
			case time.Since(start) > r.h.Timeout/4:
				r.Errorf("%s: from %s to %s: refused after %v", c.what, way[0].name, way[1].name, time.Since(start))
			}
			if r.desc.Has(sdk.FeatureProbe) {
				if err := r.probe(way[0], r.target(way[0], way[1])); err == nil {
					r.Errorf("%s: Probe from %s to %s succeeded", c.what, way[0].name, way[1].name)
				}
			}
			if at.b != nil {
				at.b.ep.Close()
			}
		}
		r.close(a)
		r.close(b)
	}
}

// keysBad: Configure fails with keys that are no good, and says which.
func keysBad(r *rig) {
	ca := r.authority()
	good, other := ca.Issue("alice", nil), ca.Issue("bob", nil)
	expired := ca.Issue("alice", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	foreign := NewAuthority(r, "another authority").Issue("alice", nil)
	for what, k := range map[string]sdk.Keys{
		"nothing":                      {},
		"another's key":                {CA: good.CA, Cert: good.Cert, Key: other.Key},
		"an expired certificate":       expired,
		"another's authority":          {CA: foreign.CA, Cert: good.Cert, Key: good.Key},
		"no key":                       {CA: good.CA, Cert: good.Cert, Key: []byte("nonsense")},
		"a certificate as the CA":      {CA: good.Cert, Cert: good.Cert, Key: good.Key},
		"a server's certificate alone": ca.Issue("alice", func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] }),
	} {
		p := r.make("x")
		cfg := r.config(p, r.h.Settings)
		cfg.Keys = &k
		if _, err := p.tr.Configure(r.ctx(), cfg); !errors.Is(err, sdk.InvalidArgument) {
			r.Errorf("Configure with %s: %v, want %v", what, err, sdk.InvalidArgument)
		}
		r.close(p)
	}
}

// keysChange: new keys count for new connections, those that exist go on.
func keysChange(r *rig) {
	ca, next := r.authority(), NewAuthority(r, "the next authority")
	first, second := ca.Issue("alice", nil), ca.Issue("bob", nil)
	r.a, r.b = r.keyed("a", &first), r.keyed("b", &second)
	a, b := r.connect(r.a, r.b)
	r.talk(a, b, 5)
	set := func(p *peer, k sdk.Keys) error {
		var err error
		r.within("SetKeys", func() { err = p.tr.(sdk.Keyed).SetKeys(r.ctx(), k) })
		return err
	}
	if err := set(r.a, sdk.Keys{CA: first.CA, Cert: first.Cert}); !errors.Is(err, sdk.InvalidArgument) {
		r.Errorf("SetKeys without a key: %v, want %v", err, sdk.InvalidArgument)
	}
	r.works() // with the old ones
	if err := set(r.a, next.Issue("alice", nil)); err != nil {
		r.Fatalf("SetKeys: %v", err)
	}
	at := r.attempt(r.a, r.b)
	if err := at.run(r.ctx()); !errors.Is(err, sdk.Refused) {
		r.Errorf("Connect while only one end has the next authority's keys: %v, want %v", err, sdk.Refused)
	}
	if at.b != nil {
		at.b.ep.Close()
	}
	r.talk(a, b, 5)
	if err := set(r.b, next.Issue("bob", nil)); err != nil {
		r.Fatalf("SetKeys: %v", err)
	}
	r.works()
	r.talk(a, b, 5)
}

// keysNotTurnedOn: an instance without keys gets none later.
func keysNotTurnedOn(r *rig) {
	p := r.keyed("x", nil)
	if err := p.tr.(sdk.Keyed).SetKeys(r.ctx(), r.authority().Issue("x", nil)); err == nil {
		r.Error("SetKeys turned TLS on")
	}
}
