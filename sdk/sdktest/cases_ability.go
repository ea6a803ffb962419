package sdktest

import (
	"context"
	"errors"

	"github.com/hawser-transport/hawser/sdk"
)

func (r *rig) probe(p *peer, t sdk.Target) (err error) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.ctx(), r.h.Timeout/4)
	defer cancel()
	r.within("Probe", func() { err = p.tr.(sdk.Prober).Probe(ctx, t) })
	return err
}

func probeUp(r *rig) {
	t := r.target(r.a, r.b)
	for range 3 {
		if err := r.probe(r.a, t); err != nil {
			r.Errorf("Probe of a living peer: %v", err)
		}
	}
	if err := r.probe(r.b, r.target(r.b, r.a)); err != nil {
		r.Errorf("Probe of a living peer: %v", err)
	}
	if r.desc.Has(sdk.FeatureNotify) {
		r.works()
	}
	if err := r.probe(r.a, t); err != nil {
		r.Errorf("Probe of a living peer: %v", err)
	}
}

// probeDown: the instance is gone. Its listener may still be open, held by
// the engine, so that connecting works and nobody answers.
func probeDown(r *rig) {
	t := r.target(r.a, r.b)
	r.close(r.b)
	if err := r.probe(r.a, t); err == nil {
		r.Error("Probe of a closed peer succeeded")
	}
	for _, l := range r.b.listeners {
		l.Close() //nolint:errcheck // test
	}
	if err := r.probe(r.a, t); err == nil {
		r.Error("Probe of a peer without a listener succeeded")
	}
}

func probeCancelled(r *rig) {
	t := r.target(r.a, r.b)
	r.close(r.b)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r.within("Probe with an ended context", func() {
		if r.a.tr.(sdk.Prober).Probe(ctx, t) == nil {
			r.Error("Probe of a closed peer succeeded")
		}
	})
}

func drainRefuses(r *rig) {
	notifies := r.desc.Has(sdk.FeatureNotify)
	var a, b *witness
	if notifies {
		a, b = r.connect(r.a, r.b)
		r.talk(a, b, 5)
	}
	for range 2 {
		if err := r.b.tr.(sdk.Drainer).Drain(r.ctx()); err != nil {
			r.Fatalf("Drain: %v", err)
		}
	}
	if !notifies {
		return
	}
	r.talk(a, b, 20)
	in := r.attempt(r.a, r.b)
	if err := in.run(r.ctx()); err == nil || !errors.Is(in.acceptErr, sdk.Closed) {
		r.Errorf("Accept after Drain: %v, want %v", in.acceptErr, sdk.Closed)
	}
	out := r.attempt(r.b, r.a)
	if err := out.run(r.ctx()); !errors.Is(err, sdk.Closed) {
		r.Errorf("Connect after Drain: %v, want %v", err, sdk.Closed)
	}
	if out.exchanges != 0 {
		r.Error("Connect after Drain called exchange")
	}
	r.talk(a, b, 20)
}

// drainSparesListener: old and new instance share the listener; the old one
// accepts nothing any more, its endpoints go on, and its Close does not end
// the socket.
func drainSparesListener(r *rig) {
	a, b := r.connect(r.a, r.b)
	r.talk(a, b, 5)
	old := r.b
	r.b = r.successor(old)
	if err := old.tr.(sdk.Drainer).Drain(r.ctx()); err != nil {
		r.Fatalf("Drain: %v", err)
	}
	for range 5 {
		x, y := r.connect(r.a, r.b)
		r.talk(x, y, 3)
	}
	r.talk(a, b, 5)
	r.close(old)
	a.waitEnded()
	for range 3 {
		r.works()
	}
}
