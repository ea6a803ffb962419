package sdktest

import (
	"sync"

	"github.com/hawser-transport/hawser/sdk"
)

// hold makes a pair of ends of which b's is held, and has a send until no more
// is taken. open ends the hold.
func (r *rig) hold() (a, b *witness, open func()) {
	r.Helper()
	r.holds = true
	a, b = r.connect(r.a, r.b)
	return a, b, r.fill(a, b)
}

// fill holds b's end, and has a send until no more is taken.
func (r *rig) fill(a, b *witness) (open func()) {
	r.Helper()
	gate := make(chan struct{})
	b.setup(func() { b.gate = gate; b.inside = 0 })
	open = sync.OnceFunc(func() { close(gate) })
	r.Cleanup(open)
	a.send(payload(0, 10))
	b.wait("the hold", func() bool { return b.inside > 0 })
	size := min(r.limits.MaxFrame, 4096)
	for k, refused := 1, 0; k < 4*r.limits.InflightFrames && refused < 3; k++ {
		data := payload(k, size)
		if !a.fits(data) || a.try(data, false) != nil {
			refused++
			a.pause()
		}
	}
	return open
}

// holdDelaysNoOther: while one endpoint is held, the others of both instances
// carry, and new ones are made.
func holdDelaysNoOther(r *rig) {
	a, b, open := r.hold()
	a2, b2 := r.connect(r.a, r.b)
	for range 5 {
		r.talk(a2, b2, 20)
	}
	b3, a3 := r.connect(r.b, r.a)
	r.talk(b3, a3, 20)
	r.works()
	b.mu.Lock()
	if b.ended > 0 {
		r.Error("the held endpoint has ended")
	}
	b.mu.Unlock()
	open()
	a.settle(b)
	r.talk(a, b, 5)
}

// holdLosesNothing: an endpoint is held again and again.
func holdLosesNothing(r *rig) {
	r.holds = true
	a, b := r.connect(r.a, r.b)
	for range 3 {
		open := r.fill(a, b)
		open()
		a.settle(b)
		b.setup(func() { b.gate = nil })
	}
	r.talk(a, b, 5)
}

// holdAndEnd: either end, and the transport, can end during a hold; what was
// not handed over is not called done.
func holdAndEnd(r *rig) {
	a, b, open := r.hold()
	a.ep.Close()
	a.wantEnd(sdk.Closed)
	open()
	b.waitEnded()
	honest(a, b)

	for _, end := range []func(b *witness){
		func(b *witness) { b.ep.Close() },
		func(*witness) { r.close(r.b) },
	} {
		a, b, open = r.hold()
		b.setup(func() { b.mayDrop = r.h.Inbox })
		if r.h.External {
			// The process boundary knows that the handler holds.
			end(b)
			b.wantEnd(sdk.Closed)
			open()
		} else {
			// The engine's handler returns when it closes the endpoint.
			r.within("an end", func() {
				ended := make(chan struct{})
				go func() { defer close(ended); end(b) }()
				open()
				<-ended
			})
			b.wantEnd(sdk.Closed)
		}
		a.waitEnded()
		honest(a, b)
	}
}

// honest: no more is done than was handed over.
func honest(a, b *witness) {
	a.r.Helper()
	b.wait("what was kept", func() bool { return len(b.kept) == 0 })
	if a.r.h.Inbox {
		return
	}
	done := a.done()
	b.mu.Lock()
	defer b.mu.Unlock()
	if done > len(b.received) {
		a.r.Errorf("%d frames are done, %d were handed over", done, len(b.received))
	}
}
