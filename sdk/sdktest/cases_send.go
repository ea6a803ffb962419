package sdktest

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

func sendSizes(r *rig) {
	a, b := r.connect(r.a, r.b)
	most := r.limits.MaxFrame
	sizes := []int{
		0, 1, 2, 3, 127, 128, 255, 256, 1023, 4095, 4096, 4097, 16384, 32767, 32768, 65535, 65536, 65537,
		most - 1, most, 0, most, 1,
	}
	for i, size := range sizes {
		if size < 0 || size > most {
			continue
		}
		a.send(payload(i, size))
		b.send(payload(100+i, size))
	}
	a.settle(b)
	b.settle(a)
}

// sendTooLarge: the frame before it is taken, the ones from it on are not,
// and the endpoint goes on.
func sendTooLarge(r *rig) {
	a, b := r.connect(r.a, r.b)
	ok := payload(1, 10)
	id := a.reserve(ok)
	n, err := a.ep.Send([]sdk.Frame{
		{ID: id, Data: bytes.Clone(ok)},
		{ID: id + 1, Data: make([]byte, r.limits.MaxFrame+1)},
		{ID: id + 2, Data: bytes.Clone(ok)},
	}, false)
	if n != 1 || sdk.CodeOf(err) != sdk.TooLarge {
		r.Errorf("Send of a good and a large frame returned %d, %v; want 1, %v", n, err, sdk.TooLarge)
	}
	if err := a.try(make([]byte, r.limits.MaxFrame+1), false); sdk.CodeOf(err) != sdk.TooLarge {
		r.Errorf("Send of MaxFrame+1 bytes: %v, want %v", err, sdk.TooLarge)
	}
	a.send(payload(2, r.limits.MaxFrame))
	a.settle(b)
}

func sendArbitraryBytes(r *rig) {
	a, b := r.connect(r.a, r.b)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	frames := [][]byte{
		{0}, {0xFF}, {0, 0, 0, 0}, bytes.Repeat([]byte{0xFF}, 1000), bytes.Repeat([]byte{0}, 4096),
		[]byte("\r\n\r\n"), []byte("\x00\xff\xfe{\"@message\": 1}\n"), all, slices.Repeat(all, 16),
	}
	for _, f := range frames {
		if len(f) <= r.limits.MaxFrame {
			a.send(f)
			b.send(f)
		}
	}
	a.settle(b)
	b.settle(a)
}

// sendBatches sends n frames in batches of 1 to 64, and goes on where Send
// stopped.
func (w *witness) sendBatches(rng *rand.Rand, n, maxSize int) {
	w.r.Helper()
	deadline := time.Now().Add(w.r.h.Timeout)
	var batch []sdk.Frame
	for k := 0; k < n || len(batch) > 0; {
		for want := 1 + rng.IntN(64); k < n && len(batch) < want; k++ {
			data := payload(k, rng.IntN(maxSize+1))
			if len(batch) > 0 && !w.fits(data) {
				break
			}
			batch = append(batch, sdk.Frame{ID: w.reserve(data), Data: data})
		}
		took, err := w.ep.Send(batch, rng.IntN(2) == 0)
		if took < 0 || took > len(batch) || took < len(batch) && err == nil {
			w.r.Errorf("%s: Send of %d frames returned %d, %v", w.name, len(batch), took, err)
			return
		}
		for _, f := range batch[:took] {
			for i := range f.Data {
				f.Data[i] = 0xCC
			}
		}
		batch = slices.Clone(batch[took:])
		if err != nil {
			if sdk.CodeOf(err) != sdk.Backpressure || time.Now().After(deadline) {
				w.r.Errorf("%s: Send: %v", w.name, err)
				return
			}
			w.pause()
		}
	}
}

// fits says whether another frame is within the limits now.
func (w *witness) fits(data []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.open) < w.r.limits.InflightFrames && w.openSize+len(data) <= w.r.limits.InflightBytes
}

func (r *rig) smallFrame() int { return min(r.limits.MaxFrame, 1500) }

func sendOrder(r *rig) {
	a, b := r.connect(r.a, r.b)
	a.sendBatches(rand.New(rand.NewPCG(1, 1)), 1000, r.smallFrame())
	a.settle(b)
}

// sendCopies: the caller's buffer is used for the next frame at once.
func sendCopies(r *rig) {
	a, b := r.connect(r.a, r.b)
	size := min(512, r.limits.MaxFrame)
	buf := make([]byte, size)
	frames := make([]sdk.Frame, 1)
	for k := range 201 {
		copy(buf, payload(k, size))
		frames[0] = sdk.Frame{ID: a.reserve(buf), Data: buf}
		for {
			n, err := a.ep.Send(frames, k%2 == 0)
			if n == 1 {
				break
			}
			if sdk.CodeOf(err) != sdk.Backpressure {
				r.Fatalf("Send: %d, %v", n, err)
			}
			a.pause()
		}
		frames[0] = sdk.Frame{}
	}
	for k := range buf {
		buf[k] = 0xCC
	}
	a.send(payload(201, size))
	a.settle(b)
}

func sendMore(r *rig) {
	a, b := r.connect(r.a, r.b)
	for k := range 5 {
		if err := a.try(payload(k, 50), true); err != nil {
			r.Fatalf("Send: %v", err)
		}
		a.settle(b) // nothing follows until this one has arrived
	}
}

func sendNothing(r *rig) {
	a, b := r.connect(r.a, r.b)
	if n, err := a.ep.Send(nil, false); n != 0 || err != nil {
		r.Errorf("Send of nothing: %d, %v", n, err)
	}
	r.talk(a, b, 2)
}

func sendAfterClose(r *rig) {
	a, b := r.connect(r.a, r.b)
	r.talk(a, b, 3)
	a.ep.Close()
	a.wantEnd(sdk.Closed)
	for range 3 {
		if err := a.try(payload(1, 10), false); sdk.CodeOf(err) != sdk.Closed {
			r.Errorf("Send after the end: %v, want %v", err, sdk.Closed)
		}
	}
	b.waitEnded()
	if err := b.try(payload(1, 10), false); sdk.CodeOf(err) != sdk.Closed {
		r.Errorf("Send after the peer's end: %v, want %v", err, sdk.Closed)
	}
}

// sendDoesNotBlock: the peer's handler hangs, and Send is called until it
// refuses or the limits are reached.
func sendDoesNotBlock(r *rig) {
	a, b := r.connect(r.a, r.b)
	gate := make(chan struct{})
	b.setup(func() { b.gate = gate })
	defer func() {
		close(gate)
		if !r.Failed() {
			a.settle(b)
		}
	}()
	size := min(r.limits.MaxFrame, 8192)
	r.within("Send", func() {
		for k := range r.limits.InflightFrames {
			data := payload(k, size)
			if !a.fits(data) || a.try(data, false) != nil {
				return
			}
		}
	})
}

func loadBothDirections(r *rig) {
	a, b := r.connect(r.a, r.b)
	var wg sync.WaitGroup
	for i, w := range []*witness{a, b} {
		wg.Go(func() {
			w.sendBatches(rand.New(rand.NewPCG(2, uint64(i))), 3000, r.smallFrame())
		})
	}
	wg.Wait()
	a.settle(b)
	b.settle(a)
}

func completeOnce(r *rig) {
	a, b := r.connect(r.a, r.b)
	for k := range 300 {
		a.send(payload(k, k))
	}
	a.settle(b)
	a.mu.Lock()
	for id := uint64(1); id <= 300; id++ {
		if a.outcomes[id].Outcome != sdk.Done {
			r.Errorf("frame %d: %v", id, a.outcomes[id].Outcome)
		}
	}
	a.mu.Unlock()
	time.Sleep(grace) // a second completion would be a fault
	a.verifyFaults()
}

// verifyFaults reports breaches so far.
func (w *witness) verifyFaults() {
	w.r.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.faults {
		w.r.Errorf("%s: %s", w.name, f)
	}
	w.faults = nil
}

// doneNeedsPeer: once the peer's endpoint has ended, nothing that is sent is
// done.
func doneNeedsPeer(r *rig) {
	a, b := r.connect(r.a, r.b)
	r.talk(a, b, 5)
	before := a.done()
	b.ep.Close()
	b.wantEnd(sdk.Closed)
	for k := range 20 {
		if a.push(payload(k, 100)) != nil {
			break
		}
	}
	a.waitEnded()
	if n := a.done() - before; n != 0 {
		r.Errorf("%d frames are done that were sent after the peer's end", n)
	}
}

// doneIsDelivered: what the peer's transport has taken reaches its handler,
// even if the sender ends right after.
func doneIsDelivered(r *rig) {
	for range 5 {
		a, b := r.connect(r.a, r.b)
		a.sendBatches(rand.New(rand.NewPCG(3, 3)), 200, r.smallFrame())
		a.wait("completions", func() bool { return len(a.open) == 0 || a.ended > 0 })
		done := a.done()
		a.ep.Close()
		b.waitEnded()
		b.mu.Lock()
		if len(b.received) < done {
			r.Errorf("%d frames are done, %d were received", done, len(b.received))
		}
		b.mu.Unlock()
	}
}
