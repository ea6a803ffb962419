package sdktest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// pathsChange: a path that is lost is not listed, one that is back is, as
// before, and the engine is told once Paths answers that way.
func pathsChange(r *rig) {
	before := r.paths(r.a, r.b)
	r.works()
	t := r.target(r.a, r.b)
	for _, lost := range []bool{true, false} {
		r.h.Lose(r, r.a.tr, t.Path, lost)
		ctx := r.ctx()
		for right := false; !right; {
			select {
			case <-r.a.changed:
			case <-ctx.Done():
				r.Fatalf("path %s is lost: %v, and nobody was told when Paths had it: %q", t.Path, lost, r.paths(r.a, r.b))
			}
			now := r.paths(r.a, r.b)
			right = lost && !slices.Contains(now, t.Path) || !lost && slices.Equal(now, before)
		}
		if lost {
			in := r.attempt(r.a, r.b)
			in.target = t
			if in.run(r.ctx()) == nil {
				r.Error("Connect over a path that is not listed succeeded")
			}
		}
	}
	r.works()
}

func (r *rig) paths(from, to *peer) []string {
	r.Helper()
	paths, err := from.no.Paths(to.setup.Attributes)
	if err != nil {
		r.Errorf("Paths from %s to %s: %v", from.name, to.name, err)
	}
	return paths
}

func pathsStable(r *rig) {
	for _, p := range [][2]*peer{{r.a, r.b}, {r.b, r.a}} {
		first, err := p[0].no.Paths(p[1].setup.Attributes)
		if err != nil || len(first) == 0 || len(first) > 64 {
			r.Fatalf("Paths: %q, %v", first, err)
		}
		again, err := p[0].no.Paths(p[1].setup.Attributes)
		if err != nil || !slices.Equal(first, again) {
			r.Errorf("Paths changed from %q to %q, %v", first, again, err)
		}
		seen := map[string]bool{}
		for _, name := range first {
			if name == "" || seen[name] {
				r.Errorf("the path %q is empty or listed twice", name)
			}
			seen[name] = true
		}
	}
}

func pathsUseless(r *rig) {
	for _, attrs := range []sdk.Attributes{nil, {}, {"": ""}, {"nonsense": "\x00\xff"}} {
		if paths, err := r.a.no.Paths(attrs); err == nil && len(paths) > 0 {
			r.Errorf("Paths of %q are %q", attrs, paths)
		}
	}
	for key := range r.b.setup.Attributes {
		attrs := sdk.Attributes{}
		for k, v := range r.b.setup.Attributes {
			attrs[k] = v
		}
		attrs[key] = "\x00 nonsense \xff"
		_, err := r.a.no.Paths(attrs) // must return; what, is the transport's
		_ = err
	}
	r.works()
}

func connectBothDirections(r *rig) {
	a, b := r.connect(r.a, r.b)
	r.talk(a, b, 20)
	b2, a2 := r.connect(r.b, r.a)
	r.talk(b2, a2, 20)
	r.talk(a, b, 20)
}

func connectEveryPath(r *rig) {
	paths, err := r.a.no.Paths(r.b.setup.Attributes)
	if err != nil {
		r.Fatal(err)
	}
	for _, path := range paths {
		at := r.attempt(r.a, r.b)
		at.target.Path = path
		a, b := r.mustRun(at)
		r.talk(a, b, 5)
	}
}

func connectUnknownPath(r *rig) {
	at := r.attempt(r.a, r.b)
	at.target.Path = "no such path"
	ctx, cancel := context.WithTimeout(r.ctx(), r.h.Timeout/2)
	defer cancel()
	if err := at.run(ctx); err == nil {
		r.Error("Connect over a path that does not exist succeeded")
	}
	r.works()
}

func connectExchangeError(r *rig) {
	for _, code := range []sdk.Code{sdk.Refused, sdk.Busy, sdk.Unavailable} {
		at := r.attempt(r.a, r.b)
		at.instead = func(context.Context) ([]byte, error) {
			return nil, sdk.Errorf(code, "the peer said: %v", code)
		}
		if err := at.run(r.ctx()); !errors.Is(err, code) {
			r.Errorf("exchange failed with %v, Connect with %v", code, err)
		}
		if at.exchanges != 1 {
			r.Errorf("exchange was called %d times", at.exchanges)
		}
	}
	r.works()
}

// connectExchangeLost: the peer has accepted, and its answer got lost.
func connectExchangeLost(r *rig) {
	at := r.attempt(r.a, r.b)
	at.accepted = func(b *witness) {
		if err := b.push(payload(1, 10)); err != nil {
			r.Errorf("Send before the peer's arrival: %v", err)
		}
	}
	at.answered = func([]byte, error) ([]byte, error) {
		return nil, sdk.Errorf(sdk.Unavailable, "lost")
	}
	if err := at.run(r.ctx()); !errors.Is(err, sdk.Unavailable) {
		r.Errorf("exchange failed with %v, Connect with %v", sdk.Unavailable, err)
	}
	if at.b == nil {
		r.Fatalf("Accept: %v", at.acceptErr)
	}
	r.works()
	if n := at.b.done(); n != 0 {
		r.Errorf("%d frames are done, without a peer", n)
	}
	at.b.ep.Close()
	at.b.waitEnded()
}

func connectCancelled(r *rig) {
	at := r.attempt(r.a, r.b)
	ctx, cancel := context.WithCancel(r.ctx())
	at.instead = func(ctx context.Context) ([]byte, error) {
		cancel()
		<-ctx.Done()
		return nil, sdk.Errorf(sdk.Unavailable, "no answer: %w", ctx.Err())
	}
	if err := at.run(ctx); err == nil {
		r.Error("a cancelled Connect succeeded")
	}
	r.works()
}

func connectCancelledBefore(r *rig) {
	at := r.attempt(r.a, r.b)
	ctx, cancel := context.WithCancel(r.ctx())
	cancel()
	if err := at.run(ctx); err == nil {
		// It came before the transport looked: the endpoint is good, then.
		r.talk(at.a, at.b, 2)
	}
	r.works()
}

// connectPeerGone: the peer's instance closes before the answer arrives.
func connectPeerGone(r *rig) {
	at := r.attempt(r.a, r.b)
	at.accepted = func(*witness) { r.close(r.b) }
	ctx, cancel := context.WithTimeout(r.ctx(), r.h.Timeout/2)
	defer cancel()
	if err := at.run(ctx); err == nil {
		pushed := at.a.push(payload(1, 10)) // any outcome but Done
		_ = pushed
		at.a.waitEnded()
		if n := at.a.done(); n != 0 {
			r.Errorf("%d frames are done, without a peer", n)
		}
	}
}

// connectBlocksNobody: one Connect hangs, and everything else goes on.
func connectBlocksNobody(r *rig) {
	a, b := r.connect(r.a, r.b)
	hang := r.attempt(r.a, r.b)
	in, out := make(chan struct{}), make(chan struct{})
	let := sync.OnceFunc(func() { close(out) })
	defer let()
	hang.instead = func(context.Context) ([]byte, error) {
		close(in)
		<-out
		return nil, sdk.Errorf(sdk.Busy, "in the end")
	}
	finished := make(chan error, 1)
	go func() { finished <- hang.run(r.ctx()) }()
	select {
	case <-in:
	case <-time.After(r.h.Timeout):
		r.Error("Connect did not call exchange")
	}
	if !r.Failed() {
		r.talk(a, b, 20)
		a2, b2 := r.connect(r.a, r.b)
		r.talk(a2, b2, 5)
		b3, a3 := r.connect(r.b, r.a)
		r.talk(b3, a3, 5)
	}
	let()
	if err := <-finished; !errors.Is(err, sdk.Busy) {
		r.Errorf("exchange failed with %v, Connect with %v", sdk.Busy, err)
	}
}

func connectTwoAtOnce(r *rig) {
	a1, b1 := r.connect(r.a, r.b)
	a2, b2 := r.connect(r.a, r.b)
	r.talk(a1, b1, 20)
	r.talk(a2, b2, 20)
	a1.ep.Close()
	a1.wantEnd(sdk.Closed)
	b1.waitEnded()
	r.talk(a2, b2, 20)
}

func connectMany(r *rig) {
	const many = 50
	attempts := make([]*attempt, many)
	for i := range attempts {
		from, to := r.a, r.b
		if i%3 == 0 {
			from, to = to, from
		}
		attempts[i] = r.attempt(from, to)
		// Attempts of one direction overtake each other, which makes some
		// of them older: give each its own order by running in turns.
	}
	for _, at := range attempts {
		r.mustRun(at)
	}
	var wg sync.WaitGroup
	for _, at := range attempts {
		for _, w := range []*witness{at.a, at.b} {
			wg.Go(func() {
				for k := range 20 {
					if err := w.push(payload(k, 100)); err != nil {
						r.Errorf("%s: Send: %v", w.name, err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	for _, at := range attempts {
		at.a.settle(at.b)
		at.b.settle(at.a)
	}
	for _, at := range attempts[:many/2] {
		at.a.ep.Close()
	}
	for _, at := range attempts[:many/2] {
		at.b.waitEnded()
	}
	for _, at := range attempts[many/2:] {
		r.talk(at.a, at.b, 1)
	}
}

// connectContextEnds: the context is the call's, not the endpoint's.
func connectContextEnds(r *rig) {
	at := r.attempt(r.a, r.b)
	ctx, cancel := context.WithCancel(context.Background())
	if err := at.run(ctx); err != nil {
		cancel()
		r.Fatalf("Connect: %v", err)
	}
	cancel()
	r.talk(at.a, at.b, 20)
}

func acceptHoldsFrames(r *rig) {
	const n = 10
	at := r.attempt(r.a, r.b)
	at.accepted = func(b *witness) {
		for k := range n {
			if err := b.push(payload(k, 100*k)); err != nil {
				r.Errorf("Send before the peer's arrival: %v", err)
			}
		}
		time.Sleep(grace)
		if d := b.done(); d != 0 {
			r.Errorf("%d frames are done before the peer has arrived", d)
		}
	}
	a, b := r.mustRun(at)
	b.settle(a)
	r.talk(a, b, 5)
}

func acceptNobodyArrives(r *rig) {
	at := r.attempt(r.a, r.b)
	at.answered = func([]byte, error) ([]byte, error) {
		return nil, sdk.Errorf(sdk.Unavailable, "lost")
	}
	if err := at.run(r.ctx()); err == nil || at.b == nil {
		r.Fatalf("Connect: %v, Accept: %v", err, at.acceptErr)
	}
	timer := time.NewTimer(r.h.Arrive)
	defer timer.Stop()
	<-timer.C
	at.b.wantEnd(sdk.Unavailable)
}

// realOffer returns an offer that B has not seen, and B's target for it.
func (r *rig) realOffer() ([]byte, sdk.Target) {
	r.Helper()
	at := r.attempt(r.a, r.b)
	at.instead = func(context.Context) ([]byte, error) { return nil, sdk.Errorf(sdk.Refused, "only looking") }
	if err := at.run(r.ctx()); !errors.Is(err, sdk.Refused) {
		r.Fatalf("Connect: %v", err)
	}
	t := at.target
	t.Local, t.Peer, t.PeerName, t.Remote = r.b.inc, r.a.inc, r.a.name, r.a.setup.Attributes
	return at.offer, t
}

func acceptGarbage(r *rig) {
	a, b := r.connect(r.a, r.b)
	offer, _ := r.realOffer()
	bad := [][]byte{
		payload(7, 1), payload(8, 100), payload(9, maxOffer),
		bytes.Repeat([]byte{0}, 64), bytes.Repeat([]byte{0xFF}, 64),
	}
	if len(offer) > 0 {
		bad = append(bad, nil, offer[:len(offer)/2])
	}
	for _, junk := range bad {
		_, t := r.realOffer()
		r.within("Accept", func() {
			if w, _, err := r.accept(r.b, r.a, t, junk); err == nil {
				r.Errorf("Accept took garbage as an offer: %s", brief(junk))
				w.ep.Close()
			}
		})
	}
	for k := 0; k < len(offer); k += 1 + len(offer)/16 {
		flipped, t := r.realOffer()
		if k >= len(flipped) {
			break
		}
		flipped[k] ^= 0xFF
		r.within("Accept", func() {
			// One byte may not matter. It must do no harm.
			if w, _, err := r.accept(r.b, r.a, t, flipped); err == nil {
				w.ep.Close()
			}
		})
	}
	r.talk(a, b, 10)
	r.works()
}

// acceptOlder: an offer that was overtaken by a newer one.
func acceptOlder(r *rig) {
	old := r.attempt(r.a, r.b)
	a, b := r.connect(r.a, r.b)
	if err := old.run(r.ctx()); err == nil {
		r.Errorf("generation %d was connected after %d", old.target.Generation, old.target.Generation+1)
	}
	if old.b != nil {
		r.Errorf("Accept took generation %d after %d", old.target.Generation, old.target.Generation+1)
	}
	r.talk(a, b, 10)
	r.works()
}

// acceptWrongGeneration: the two ends must not disagree and carry frames.
func acceptWrongGeneration(r *rig) {
	at := r.attempt(r.a, r.b)
	at.offered = func(offer []byte, t *sdk.Target) []byte {
		t.Generation += 1000
		return offer
	}
	ctx, cancel := context.WithTimeout(r.ctx(), r.h.Timeout/2)
	defer cancel()
	if err := at.run(ctx); err == nil {
		pushed := at.a.push(payload(1, 10))
		_ = pushed
		at.a.waitEnded()
		if n := at.a.done(); n != 0 {
			r.Errorf("%d frames are done between ends of different generations", n)
		}
	}
	r.mu.Lock()
	r.generation += 2000
	r.mu.Unlock()
	r.works()
}

// connectGarbageAnswer: an answer that is not one must not do harm. A
// transport that needs nothing from the answer may ignore it.
func connectGarbageAnswer(r *rig) {
	a, b := r.connect(r.a, r.b)
	for _, junk := range [][]byte{nil, payload(3, 5), payload(4, maxOffer), bytes.Repeat([]byte{0xFF}, 32)} {
		at := r.attempt(r.a, r.b)
		at.answered = func([]byte, error) ([]byte, error) { return junk, nil }
		ctx, cancel := context.WithTimeout(r.ctx(), r.h.Timeout/2)
		err := at.run(ctx)
		cancel()
		switch {
		case err == nil && len(at.answer) > 0 && !bytes.Equal(at.answer, junk):
			pushed := at.a.push(payload(1, 10))
			_ = pushed
			at.a.wait("an outcome or the end", func() bool { return len(at.a.open) == 0 || at.a.ended > 0 })
			at.a.ep.Close()
		case err == nil && at.b != nil:
			r.talk(at.a, at.b, 2)
		}
		if at.b != nil {
			at.b.ep.Close()
		}
	}
	r.talk(a, b, 10)
	r.works()
}
