package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// forHolds runs a test at protocols 0 and 1: a and c send to b, whose queue has
// 16 places, over one transport.
func forHolds(t *testing.T, f func(w *world, a, b, c *Engine)) {
	for proto := range 2 {
		t.Run(fmt.Sprint(proto), func(t *testing.T) {
			run(t, func(w *world) {
				for _, node := range []string{"a:1", "b:1", "c:1"} {
					w.configs[node] = Config{
						Receive:      ReceiveConfig{Frames: 16},
						Notification: NotificationConfig{Proto: new(proto), DeadlineMS: 600000},
						Transports:   []TransportConfig{{Name: "fast", InProcess: func() sdk.Transport { return w.fast.New(node) }}},
					}
				}
				f(w, w.open("a:1"), w.open("b:1"), w.open("c:1"))
			})
		})
	}
}

// A reader is away for minutes: nothing is lost, nothing is sent again, memory
// stays bounded, and everything goes on at once when it is back.
func TestAReaderIsAway(t *testing.T) {
	forHolds(t, func(w *world, a, b, c *Engine) {
		defer w.shut(a, b, c)
		sent := names("n", 3000)
		var ds []*Delivery
		for _, n := range sent {
			ds = append(ds, w.notify(a, "b:1", n))
		}
		time.Sleep(5 * time.Minute)
		if s := b.Stats(); s.Queued != 16 || s.DroppedFull != 0 {
			t.Fatalf("%d queued, %d dropped", s.Queued, s.DroppedFull)
		}
		start := time.Now()
		seen := map[string]int{}
		for range sent {
			r, err := w.receive(b, time.Second)
			if err != nil {
				t.Fatalf("after %d: %v", len(seen), err)
			}
			seen[r.Name]++
		}
		if took := time.Since(start); len(seen) != len(sent) || took > time.Second {
			t.Errorf("%d different ones came, within %v", len(seen), took)
		}
		for _, d := range ds {
			if err := w.wait(d); err != nil || d.Ended() != HandedOver {
				t.Fatalf("%v, %v", d.Ended(), err)
			}
		}
		if s := a.Stats(); s.Resent != 0 || b.Stats().DroppedFull != 0 || b.Stats().Duplicates != 0 {
			t.Errorf("%d sent again, %d dropped, %d doubled", s.Resent, b.Stats().DroppedFull, b.Stats().Duplicates)
		}
	})
}

// A full prefix queue stops the endpoint that it is full for, and no other.
func TestAFullPrefixQueueStopsItsEndpoint(t *testing.T) {
	synctestQueues := func(w *world) *Queue {
		q := NewQueue("slow/", QueueBounds{Frames: 2})
		w.queues = map[string][]*Queue{"b:1": {q}}
		return q
	}
	for proto := range 2 {
		run(t, func(w *world) {
			for _, node := range []string{"a:1", "b:1", "c:1"} {
				w.offer(node, proto)
			}
			slow := synctestQueues(w)
			a, b, c := w.open("a:1"), w.open("b:1"), w.open("c:1")
			defer w.shut(a, b, c)
			for _, n := range names("slow/", 10) {
				w.notify(a, "b:1", n)
			}
			w.notify(a, "b:1", "behind")
			synctest.Wait()
			time.Sleep(time.Minute)
			start := time.Now()
			w.within(w.notify(c, "b:1", "other"), time.Second)
			if r, err := w.receive(b, time.Second); err != nil || r.Name != "other" || time.Since(start) > time.Second {
				t.Errorf("%v, %v: one endpoint's hold delays another", r, err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			for _, n := range names("slow/", 10) {
				if r, err := slow.Receive(ctx); err != nil || r.Name != n {
					t.Fatalf("%v, %v, want %s", r, err, n)
				}
			}
			if r, err := w.receive(b, time.Second); err != nil || r.Name != "behind" {
				t.Errorf("%v, %v", r, err)
			}
			if n := b.Stats().DroppedFull; n != 0 {
				t.Errorf("%d dropped", n)
			}
		})
	}
}

// What is held has been received: neither the end of its endpoint nor its
// peer's goodbye takes anything of it away, or doubles it. (What the in-memory
// transport has in its own inbox dies with the endpoint.)
func TestHeldOutlivesItsEndpoint(t *testing.T) {
	forHolds(t, func(w *world, a, b, c *Engine) {
		defer w.shut(b, c)
		for _, n := range names("n", 300) {
			w.notify(a, "b:1", n)
		}
		time.Sleep(10 * time.Second)
		x := b.directory.all()[0]
		kept := x.kept.Load()
		if w.fast.End("a:1", "b:1", "") == 0 || kept == 0 {
			t.Fatalf("nothing ended, or %d bytes are held", kept)
		}
		_ = a.Close(canceled())
		time.Sleep(time.Minute)
		if got := x.kept.Load(); got < kept {
			t.Errorf("%d bytes are held, there were %d", got, kept)
		}
		seen := map[string]int{}
		for _, n := range drain(b) {
			if seen[n]++; seen[n] > 1 {
				t.Errorf("%s came twice", n)
			}
		}
		if len(seen) <= 16 || x.kept.Load() != 0 || b.Stats().DroppedFull != 0 {
			t.Errorf("%d came, %d bytes are left, %d dropped", len(seen), x.kept.Load(), b.Stats().DroppedFull)
		}
	})
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// The sender's side: its transport completes nothing, so its outbox fills and
// Notify says Backpressure; deadlines end what may have left as DeliveryUnknown
// and what did not as NotSent, and at protocol 0 nothing is sent twice.
func TestASenderWhoseReceiverHolds(t *testing.T) {
	for proto := range 2 {
		t.Run(fmt.Sprint(proto), func(t *testing.T) {
			run(t, func(w *world) {
				w.offer("b:1", proto)
				w.configs["b:1"] = Config{Receive: ReceiveConfig{Frames: 4}, Notification: w.configs["b:1"].Notification}
				w.configs["a:1"] = Config{Outbox: OutboxConfig{Bytes: 4 << 20}, Notification: NotificationConfig{DeadlineMS: 120000, SlotWaitMS: 1000, MaxPayloadBytes: 1 << 16}}
				a, b := w.open("a:1"), w.open("b:1")
				defer w.shut(a, b)
				var ds []*Delivery
				var full error
				start := time.Now()
				for i := 0; full == nil; i++ {
					d, err := a.Notify(context.Background(), "b:1", Notification{Name: fmt.Sprint(i), Payload: make([]byte, 200)})
					if full = err; err == nil {
						ds = append(ds, d)
					}
				}
				if took := time.Since(start); !errors.Is(full, Backpressure) || took < time.Second || took > 10*time.Second {
					t.Fatalf("%v after %v", full, took)
				}
				ends := map[string]int{}
				for _, d := range ds {
					switch err := w.wait(d); {
					case err == nil:
						ends["handed over"]++
					case errors.Is(err, DeliveryUnknown):
						ends["unknown"]++
					case errors.Is(err, NotSent):
						ends["not sent"]++
					default:
						t.Fatalf("%v", err)
					}
				}
				if ends["unknown"] == 0 || ends["not sent"] == 0 {
					t.Errorf("%v", ends)
				}
				if proto == 0 && a.Stats().Resent != 0 {
					t.Errorf("%d sent again", a.Stats().Resent)
				}
				seen := map[string]int{}
				for _, n := range drain(b) {
					if seen[n]++; seen[n] > 1 {
						t.Errorf("%s came twice", n)
					}
				}
				if got := len(seen); got < ends["handed over"] || got > ends["handed over"]+ends["unknown"] {
					t.Errorf("%d came of %v", got, ends)
				}
			})
		})
	}
}

// Whatever ends while frames are held lets go of them: the engine's Close, the
// transport's end, a restart of it. The bubble proves that no goroutine stays.
func TestEndsDuringAHold(t *testing.T) {
	for name, end := range map[string]func(w *world, b *Engine, faulty *sdktest.FaultyTransport){
		"close": func(*world, *Engine, *sdktest.FaultyTransport) {},
		"crash": func(_ *world, _ *Engine, f *sdktest.FaultyTransport) { f.Crash() },
		"restart": func(w *world, b *Engine, _ *sdktest.FaultyTransport) {
			_ = b.RestartTransport(context.Background(), "fast")
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *world) {
				w.offer("a:1", 0)
				var first *sdktest.FaultyTransport
				w.configs["b:1"] = Config{Receive: ReceiveConfig{Frames: 4}, Transports: []TransportConfig{{Name: "fast", InProcess: func() sdk.Transport {
					f := sdktest.Faulty(w.fast.New("b:1"), 1)
					if first == nil {
						first = f
					}
					return f
				}}}}
				a, b := w.open("a:1"), w.open("b:1")
				for _, n := range names("n", 500) {
					w.notify(a, "b:1", n)
				}
				time.Sleep(time.Minute)
				start := time.Now()
				end(w, b, first)
				time.Sleep(2 * time.Second)
				if name != "close" {
					for _, s := range b.Transports() {
						if s.Name == "fast" && (s.Abandoned != 0 || !strings.Contains(fmt.Sprint(s.State), "up")) {
							t.Errorf("%+v", s)
						}
					}
				}
				_ = a.Close(canceled())
				if err := b.Close(canceled()); err != nil && !errors.Is(err, DeadlineExceeded) {
					t.Error(err)
				}
				if took := time.Since(start); took > 8*time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// A transport that cannot stop reading one endpoint offers: beyond what a hold
// keeps it is dropped and counted, and it is told when to go on.
func TestOfferDropsWhatAHoldCannotKeep(t *testing.T) {
	forHolds(t, func(w *world, a, b, c *Engine) {
		defer w.shut(a, b, c)
		w.connectedAt(a, "b:1")
		x := b.directory.all()[0]
		x.mu.Lock()
		ep := x.order[0].ep
		x.mu.Unlock()
		if !ep.MayHold() {
			t.Fatal("at this protocol it may hold")
		}
		raw := func(i int) []byte {
			return append([]byte{4, 0, 0, 0, byte(i), byte(i >> 8), byte(i >> 16), 1, 0, 4, 0, 0}, make([]byte, 1024)...)
		}
		resumed := make(chan struct{})
		const n = 2000
		for i := range n {
			ep.Offer([][]byte{raw(i)}, func() { close(resumed) })
		}
		kept := int(x.kept.Load())
		if limit := sdk.HoldBytes + 2048; kept < sdk.HoldBytes || kept > limit {
			t.Errorf("%d bytes are kept", kept)
		}
		dropped := int(b.Stats().DroppedFull)
		ep.Dropped(7)
		if got := len(drain(b)); dropped == 0 || got != n+1-dropped || b.Stats().DroppedFull != uint64(dropped+7) {
			t.Errorf("%d came, %d and then %d were dropped", got, dropped, b.Stats().DroppedFull)
		}
		select {
		case <-resumed:
		default:
			t.Error("not resumed")
		}
		if x.kept.Load() != 0 {
			t.Errorf("%d bytes are left", x.kept.Load())
		}
	})
}

// At protocol 2 nothing is ever held: acks and requests pass a full queue.
func TestProtocol2NeverHolds(t *testing.T) {
	run(t, func(w *world) {
		w.configs["b:1"] = Config{Receive: ReceiveConfig{Frames: 4}}
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connectedAt(a, "b:1")
		for _, n := range names("n", 50) {
			w.notify(a, "b:1", n)
		}
		time.Sleep(10 * time.Second)
		x := b.directory.all()[0]
		if x.kept.Load() != 0 || x.order[0].ep.MayHold() {
			t.Error("frames are held")
		}
		w.within(w.notify(b, "a:1", "back"), time.Second)
		w.expect(b, append(names("n", 50), "hello")...)
	})
}
