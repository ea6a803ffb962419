package sdktest

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// handlerSerial: while Received runs, completions and the end have to wait.
func handlerSerial(r *rig) {
	a, b := r.connect(r.a, r.b)
	gate := make(chan struct{})
	b.setup(func() { b.gate = gate })
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	a.send(payload(1, 10))
	b.wait("Received", func() bool { return b.inside > 0 })
	for k := range 10 {
		b.send(payload(k, 10))
	}
	b.mu.Lock()
	sent := b.sent
	b.mu.Unlock()
	a.expect(sent) // so the receipts are under way
	time.Sleep(grace)
	b.ep.Close()
	time.Sleep(grace)
	open()
	b.wantEnd(sdk.Closed)
	b.verifyFaults()
}

// handlerCallsBack: a handler sends and closes.
func handlerCallsBack(r *rig) {
	a, b := r.connect(r.a, r.b)
	var failed atomic.Int32
	b.setup(func() {
		b.onReceived = func(frames [][]byte) {
			for _, f := range frames {
				if b.push(bytes.Clone(f)) != nil {
					failed.Add(1)
				}
			}
		}
	})
	const n = 50
	for k := range n {
		a.send(payload(k, 100))
	}
	a.mu.Lock()
	sent := a.sent
	a.mu.Unlock()
	a.expect(sent) // the echo
	b.expect(sent)
	if failed.Load() > 0 {
		r.Errorf("%d echoes failed", failed.Load())
	}

	a, b = r.connect(r.a, r.b)
	b.setup(func() { b.onReceived = func([][]byte) { b.ep.Close(); b.ep.Close() } })
	a.send(payload(1, 10))
	b.wantEnd(sdk.Closed)
	a.waitEnded()

	a, b = r.connect(r.a, r.b)
	a.setup(func() { a.onCompleted = func([]sdk.Completion) { a.ep.Close() } })
	a.send(payload(1, 10))
	a.wantEnd(sdk.Closed)
	b.waitEnded()
}

// handlerSlow: nobody reads for a while, and then everything is there.
func handlerSlow(r *rig) {
	a, b := r.connect(r.a, r.b)
	gate := make(chan struct{})
	b.setup(func() { b.gate = gate })
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	a.send(payload(0, 10))
	b.wait("Received", func() bool { return b.inside > 0 })
	refused := 0
	for k := 1; k < 2*r.limits.InflightFrames && refused < 3; k++ {
		data := payload(k, min(r.limits.MaxFrame, 2048))
		if !a.fits(data) {
			break
		}
		if err := a.try(data, false); err != nil {
			refused++
			a.pause()
		}
	}
	open()
	a.settle(b)
	r.talk(a, b, 5)
}

func endOnceAndLast(r *rig) {
	for _, fromB := range []bool{false, true} {
		a, b := r.connect(r.a, r.b)
		var wg sync.WaitGroup
		for i, w := range []*witness{a, b} {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(5, uint64(i)))
				for k := 0; ; k++ {
					if w.push(payload(k, rng.IntN(r.smallFrame()))) != nil {
						return
					}
				}
			})
		}
		b.wait("frames", func() bool { return len(b.received) > 100 || b.ended > 0 })
		w, other := a, b
		if fromB {
			w, other = b, a
		}
		w.ep.Close()
		w.wantEnd(sdk.Closed)
		other.waitEnded()
		wg.Wait()
		time.Sleep(grace) // later calls would be faults
		w.verifyFaults()
		other.verifyFaults()
	}
}

func endCloseIdempotent(r *rig) {
	a, b := r.connect(r.a, r.b)
	r.talk(a, b, 3)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(a.ep.Close)
	}
	r.within("Close of an endpoint", wg.Wait)
	a.wantEnd(sdk.Closed)
	r.within("Close of an ended endpoint", a.ep.Close)
	b.waitEnded()
	r.within("Close of an ended endpoint", b.ep.Close)
	time.Sleep(grace)
	a.verifyFaults()
	b.verifyFaults()
}

func endPeerCloses(r *rig) {
	a, b := r.connect(r.a, r.b)
	a2, b2 := r.connect(r.a, r.b)
	r.talk(a, b, 5)
	a.ep.Close()
	b.waitEnded()
	b2.ep.Close()
	a2.waitEnded()
	r.works()
}

func (r *rig) wantAllEnded(ws ...*witness) {
	r.Helper()
	for _, w := range ws {
		w.mu.Lock()
		if w.ended != 1 {
			r.Errorf("%s: the transport is closed, Ended was called %d times", w.name, w.ended)
		}
		w.mu.Unlock()
	}
}

func endTransportCloses(r *rig) {
	var as, bs []*witness
	for i := range 5 {
		from, to := r.a, r.b
		if i%2 == 0 {
			from, to = to, from
		}
		x, y := r.connect(from, to)
		if from != r.a {
			x, y = y, x
		}
		r.talk(x, y, 3)
		as, bs = append(as, x), append(bs, y)
	}
	r.close(r.a)
	r.wantAllEnded(as...)
	for _, b := range bs {
		b.waitEnded()
	}
	for _, a := range as {
		if err := a.try(payload(1, 1), false); sdk.CodeOf(err) != sdk.Closed {
			r.Errorf("Send after the transport's Close: %v, want %v", err, sdk.Closed)
		}
	}
}

func endTransportClosesLoaded(r *rig) {
	a, b := r.connect(r.a, r.b)
	var wg sync.WaitGroup
	for _, w := range []*witness{a, b} {
		wg.Go(func() {
			for k := 0; w.push(payload(k, 300)) == nil; k++ {
			}
		})
	}
	a.wait("frames", func() bool { return len(a.received) > 100 || a.ended > 0 })
	r.close(r.a)
	r.wantAllEnded(a)
	a.mu.Lock()
	calls := a.calls
	a.mu.Unlock()
	wg.Wait()
	b.waitEnded()
	time.Sleep(grace)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.calls != calls {
		r.Errorf("%d handler calls after the transport's Close", a.calls-calls)
	}
}

// endConnectUnderWay: a Connect that hangs does not outlive the transport.
func endConnectUnderWay(r *rig) {
	at := r.attempt(r.a, r.b)
	in := make(chan struct{})
	at.instead = func(ctx context.Context) ([]byte, error) {
		close(in)
		<-ctx.Done()
		return nil, sdk.Errorf(sdk.Unavailable, "no answer: %w", ctx.Err())
	}
	ctx, cancel := context.WithCancel(r.ctx())
	defer cancel()
	finished := make(chan error, 1)
	go func() { finished <- at.run(ctx) }()
	select {
	case <-in:
	case <-time.After(r.h.Timeout):
		r.Fatal("Connect did not call exchange")
	}
	r.close(r.a)
	// The engine cancels what it waits for; the transport may have done so.
	cancel()
	if err := <-finished; err == nil {
		r.Error("Connect succeeded after the transport's Close")
	}
}

// successorTakesOver: the instance is replaced by one with the same
// listeners.
func successorTakesOver(r *rig) {
	a, b := r.connect(r.a, r.b)
	r.talk(a, b, 3)
	stale := r.attempt(r.a, r.b)
	r.close(r.b)
	a.waitEnded()
	r.b = r.successor(r.b)
	// What the predecessor published leads nowhere, or is refused.
	ctx, cancel := context.WithTimeout(r.ctx(), r.h.Timeout/2)
	defer cancel()
	stale.to = r.b
	if err := stale.run(ctx); err == nil {
		stale.a.ep.Close()
		stale.a.waitEnded()
	}
	r.works()
	b, a = r.connect(r.b, r.a)
	r.talk(b, a, 5)
}
