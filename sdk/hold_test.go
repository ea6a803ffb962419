//go:build linux

package sdk_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// holder is a recorder that can hold its endpoint.
type holder struct {
	*recorder
	mu      sync.Mutex
	held    bool
	kept    [][]byte
	bytes   int // as sdk.HoldBytes counts
	most    int
	dropped int
	resume  func()
}

func newHolder() *holder { return &holder{recorder: newRecorder(), held: true} }

func (h *holder) MayHold() bool { return true }

func (h *holder) Offer(frames [][]byte, resume func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.held {
		h.Received(frames)
		return false
	}
	for _, f := range frames {
		h.kept = append(h.kept, bytes.Clone(f))
		h.bytes += len(f) + sdk.HoldOverhead
	}
	h.most = max(h.most, h.bytes)
	h.resume = resume
	return true
}

func (h *holder) Dropped(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropped += n
}

func (h *holder) keeps() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bytes
}

// release takes what was kept and lets the endpoint go on.
func (h *holder) release() {
	h.mu.Lock()
	h.held = false
	h.recorder.mu.Lock()
	h.frames = append(h.frames, h.kept...)
	h.recorder.mu.Unlock()
	resume := h.resume
	h.kept, h.bytes, h.resume = nil, 0, nil
	h.mu.Unlock()
	if resume != nil {
		resume()
	}
}

// holding connects an endpoint whose handler holds, and has the echo fill it.
func (b *boundary) holding(t *testing.T, path string, frames, size int) (sdk.Endpoint, *holder) {
	t.Helper()
	h := newHolder()
	ep, err := b.Connect(testContext(t), sdk.Target{Path: path}, answering("hello"), h)
	if err != nil {
		t.Fatal(err)
	}
	for id := uint64(1); id <= uint64(frames); {
		data := binary.LittleEndian.AppendUint64(make([]byte, 0, size), id)[:size]
		switch n, err := ep.Send([]sdk.Frame{{ID: id, Data: data}}, false); {
		case n == 1:
			id++
		case errors.Is(err, sdk.Backpressure):
			time.Sleep(time.Millisecond)
		default:
			t.Fatal(err)
		}
	}
	return ep, h
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// One endpoint is held while far more comes than its window: the others of the
// plugin carry on, what is kept is bounded, and when it is released everything
// comes, in order.
func TestOneEndpointIsHeld(t *testing.T) {
	for _, size := range []int{8, 1000, 200_000} {
		bothCarriers(t, func(t *testing.T, socket bool) {
			b := newBoundary(t, newEcho(), socket)
			ctx := testContext(t)
			frames := 4 * sdk.HoldBytes / (size + sdk.HoldOverhead)
			_, held := b.holding(t, "main", frames, size)
			until(t, "a full hold", func() bool { return held.keeps() >= sdk.HoldBytes })
			ep, free := b.dial(t, "main")
			for id := uint64(1); id <= 50; id++ {
				if _, err := ep.Send([]sdk.Frame{{ID: id, Data: []byte("free")}}, false); err != nil {
					t.Fatal(err)
				}
				if err := free.await(ctx, func(r *recorder) bool { return len(r.frames) == int(id)+1 }); err != nil {
					t.Fatal(err)
				}
			}
			if err := b.Health(ctx); err != nil {
				t.Error(err)
			}
			if most := held.keeps(); most >= sdk.HoldBytes+size+sdk.HoldOverhead {
				t.Errorf("%d bytes are kept", most)
			}
			held.release()
			if err := held.await(ctx, func(r *recorder) bool { return len(r.frames) == frames+1 && len(r.results) == frames }); err != nil {
				t.Fatal(err)
			}
			for i, f := range held.frames[1:] {
				if id := binary.LittleEndian.Uint64(f); id != uint64(i+1) {
					t.Fatalf("frame %d came as number %d", id, i+1)
				}
			}
			if held.dropped != 0 || b.Dropped() != 0 {
				t.Errorf("%d and %d dropped", held.dropped, b.Dropped())
			}
		})
	}
}

// Whatever ends a held endpoint ends it soon. TestMain looks for goroutines.
func TestEndsWhileHeld(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, b *boundary, ep sdk.Endpoint){
		"endpoint": func(_ *testing.T, _ *boundary, ep sdk.Endpoint) { ep.Close() },
		"transport": func(t *testing.T, b *boundary, _ sdk.Endpoint) {
			if err := b.Close(testContext(t)); err != nil {
				t.Error(err)
			}
		},
		"plugin": func(_ *testing.T, b *boundary, _ sdk.Endpoint) { b.Abort(errors.New("gone")) },
	} {
		t.Run(name, func(t *testing.T) {
			bothCarriers(t, func(t *testing.T, socket bool) {
				tr := newEcho()
				b := newBoundary(t, tr, socket)
				ep, h := b.holding(t, "main", 4096, 1000)
				until(t, "a full hold", func() bool { return h.keeps() >= sdk.HoldBytes && tr.taken() == 4096 })
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				defer cancel()
				end(t, b, ep)
				if err := h.await(ctx, func(r *recorder) bool { return r.ends == 1 }); err != nil {
					t.Error(err)
				}
				h.release() // after the end it changes nothing
				h.check(t)
			})
		})
	}
}

// offering is an echo that cannot stop: it offers what comes.
type offering struct {
	*echo
	made chan *offeringHandler
}

type offeringHandler struct {
	sdk.Offerer
	resumed chan struct{}
	resume  func() // closes it, once
}

func (o *offeringHandler) Received(frames [][]byte) {
	o.Offer(frames, o.resume)
}

func (o offering) Connect(ctx context.Context, t sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	resumed := make(chan struct{})
	made := &offeringHandler{h.(sdk.Offerer), resumed, sync.OnceFunc(func() { close(resumed) })}
	o.made <- made
	return o.echo.Connect(ctx, t, x, made)
}

// orderly offers as much at a time as is kept whole, and waits while it is held.
type orderly struct{ sdk.Offerer }

func (o orderly) Received(frames [][]byte) {
	for n := 0; len(frames) > 0; frames = frames[n:] {
		n = max(1, min(len(frames), sdk.OfferBytes/(len(frames[0])+sdk.HoldOverhead)))
		resumed := make(chan struct{})
		if o.Offer(frames[:n], func() { close(resumed) }) {
			<-resumed
		}
	}
}

type orderlyEcho struct{ *echo }

func (o orderlyEcho) Connect(ctx context.Context, t sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	return o.echo.Connect(ctx, t, x, orderly{h.(sdk.Offerer)})
}

// A transport that waits while it is held loses nothing of what it offers.
func TestOffersThatAreKeptWhole(t *testing.T) {
	for _, size := range []int{8, 1000, 200_000} {
		bothCarriers(t, func(t *testing.T, socket bool) {
			b := newBoundary(t, orderlyEcho{newEcho()}, socket)
			frames := 4 * sdk.HoldBytes / (size + sdk.HoldOverhead)
			_, h := b.holding(t, "main", frames, size)
			until(t, "a full hold", func() bool { return h.keeps() > sdk.HoldBytes-sdk.OfferBytes })
			h.release()
			if err := h.await(testContext(t), func(r *recorder) bool { return len(r.frames) == frames+1 }); err != nil {
				t.Fatal(err)
			}
			for i, f := range h.frames[1:] {
				if id := binary.LittleEndian.Uint64(f); id != uint64(i+1) {
					t.Fatalf("frame %d came as number %d", id, i+1)
				}
			}
			if h.dropped != 0 || b.Dropped() != 0 {
				t.Errorf("%d and %d dropped", h.dropped, b.Dropped())
			}
		})
	}
}

// A transport that offers never waits: what a held endpoint's window does not
// admit is dropped in the plugin, and the host counts it.
func TestOffersToAHeldEndpoint(t *testing.T) {
	bothCarriers(t, func(t *testing.T, socket bool) {
		made := make(chan *offeringHandler, 1)
		b := newBoundary(t, offering{newEcho(), made}, socket)
		const frames = 4096
		ep, h := b.holding(t, "main", frames, 1000)
		// All outcomes have come, so nothing waits.
		if err := h.await(testContext(t), func(r *recorder) bool { return len(r.results) == frames }); err != nil {
			t.Fatal(err)
		}
		resumed := (<-made).resumed
		select {
		case <-resumed:
			t.Error("resumed while it is held")
		default:
		}
		h.release()
		select {
		case <-resumed:
		case <-testContext(t).Done():
			t.Fatal("not resumed")
		}
		var id uint64 = frames
		until(t, "frames to be taken again", func() bool {
			id++
			if _, err := ep.Send([]sdk.Frame{{ID: id, Data: []byte("again")}}, false); err != nil {
				t.Fatal(err)
			}
			h.recorder.mu.Lock()
			defer h.recorder.mu.Unlock()
			return bytes.Equal(h.frames[len(h.frames)-1], []byte("again"))
		})
		h.mu.Lock()
		told := h.dropped
		h.mu.Unlock()
		if told == 0 {
			t.Error("frames came before it was told that some had been dropped")
		}
		ep.Close()
		if err := h.await(testContext(t), func(r *recorder) bool { return r.ends == 1 }); err != nil {
			t.Fatal(err)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if got := len(h.frames) - 1; h.dropped == 0 || got+h.dropped != int(id) {
			t.Errorf("%d came and %d were dropped of %d", got, h.dropped, id)
		}
	})
}
