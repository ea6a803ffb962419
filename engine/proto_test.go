package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/frame"
	"github.com/hawser-transport/hawser/sdk"
)

// offer makes a node offer a protocol.
func (w *world) offer(node string, proto int) {
	c := w.configs[node]
	c.Notification.Proto = new(proto)
	w.configs[node] = c
}

// tapped makes the node's transports keep what is given to them.
func (w *world) tapped(node string) (frames func() [][]byte) {
	var mu sync.Mutex
	var seen [][]byte
	tap := func(t sdk.Transport) sdk.Transport {
		h := hook(t)
		h.send = func(ep sdk.Endpoint, fs []sdk.Frame) (int, error) {
			mu.Lock()
			for _, f := range fs {
				seen = append(seen, bytes.Clone(f.Data))
			}
			mu.Unlock()
			return ep.Send(fs, false)
		}
		return h
	}
	c := w.configs[node]
	c.Transports = []TransportConfig{
		{Name: "fast", InProcess: func() sdk.Transport { return tap(w.fast.New(node)) }},
		{Name: rpcFallbackName, InProcess: func() sdk.Transport { return tap(w.slow.New(node)) }},
	}
	w.configs[node] = c
	return func() [][]byte {
		mu.Lock()
		defer mu.Unlock()
		return seen
	}
}

// Scenario 4: the lower of both protocols is used, whoever offers it; a peer at
// protocol 0 sees exactly the raw bytes, one at 1 no floor, epoch or request.
func TestNegotiation(t *testing.T) {
	for _, c := range []struct{ here, there, used int }{{2, 0, 0}, {0, 2, 0}, {0, 0, 0}, {1, 0, 0}, {2, 1, 1}, {1, 2, 1}, {1, 1, 1}, {2, 2, 2}} {
		t.Run(fmt.Sprintf("%d and %d", c.here, c.there), func(t *testing.T) {
			run(t, func(w *world) {
				w.offer("a:1", c.here)
				w.offer("b:1", c.there)
				sent := w.tapped("a:1")
				a, b := w.open("a:1"), w.open("b:1")
				defer w.shut(a, b)
				for _, d := range []*Delivery{w.notify(a, "b:1", "x"), w.notify(b, "a:1", "y")} {
					want := HandedOver
					if c.used == 2 {
						want = Acknowledged
					}
					if err := w.wait(d); err != nil || d.Ended() != want {
						t.Fatalf("%v, %v", err, d.Ended())
					}
				}
				r, err := w.receive(b, time.Minute)
				if err != nil || r.Name != "x" || (r.Stamp == Stamp{}) != (c.used == 0) {
					t.Fatalf("%+v, %v", r, err)
				}
				raw := frame.AppendRaw(nil, "x", []byte("payload of x"))
				switch f := sent()[0]; c.used {
				case 0:
					if len(sent()) != 1 || !bytes.Equal(f, raw) {
						t.Errorf("sent % x", sent())
					}
				case 1:
					h := frame.Header{Type: frame.NotifyCompat, Session: r.Stamp.Session, Seq: 1}
					if len(sent()) != 1 || !bytes.Equal(f, h.Append(nil, raw)) {
						t.Errorf("sent % x", sent())
					}
				}
				w.expect(a, "y")
				w.expect(b)
			})
		})
	}
}

// Scenario 37: at protocol 0 nothing is ever sent twice once it was posted;
// what never left goes another way.
func TestAtProtocol0NothingIsSentTwice(t *testing.T) {
	run(t, func(w *world) {
		w.offer("b:1", 0)
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		if err := w.wait(w.notify(a, "b:1", "first")); err != nil {
			t.Fatal(err)
		}
		w.fast.Cut("a:1", "b:1", "")
		posted := w.notify(a, "b:1", "posted")
		time.Sleep(5 * time.Second)
		if posted.Ended() != Pending {
			t.Fatalf("ended as %v", posted.Ended())
		}
		if w.fast.End("a:1", "b:1", "") == 0 {
			t.Fatal("nothing ended")
		}
		if err := w.wait(posted); !errors.Is(err, DeliveryUnknown) || !strings.Contains(err.Error(), "fast") {
			t.Errorf("the posted one: %v", err)
		}
		w.within(w.notify(a, "b:1", "next"), 2*time.Second)
		w.expect(b, "first", "next")
		if n := a.Stats().Resent; n != 0 {
			t.Errorf("%d copies were sent again", n)
		}
		w.fast.Heal("a:1", "b:1", "")
	})
}

func TestAtProtocol0NotPostedGoesOn(t *testing.T) {
	run(t, func(w *world) {
		w.offer("b:1", 0)
		refuse := true
		w.configs["a:1"] = Config{Transports: []TransportConfig{
			{Name: "fast", InProcess: func() sdk.Transport {
				h := hook(w.fast.New("a:1"))
				h.send = func(ep sdk.Endpoint, fs []sdk.Frame) (int, error) {
					if refuse {
						return 0, sdk.Errorf(sdk.Closed, "refused")
					}
					return ep.Send(fs, false)
				}
				return h
			}},
			{Name: rpcFallbackName, InProcess: func() sdk.Transport { return w.slow.New("a:1") }},
		}}
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		d := w.notify(a, "b:1", "x")
		if err := w.wait(d); err != nil || d.Report().Transport != rpcFallbackName || a.Stats().NotPosted == 0 {
			t.Errorf("%v, %+v", err, d.Report())
		}
		w.expect(b, "x")
	})
}

// At protocol 1 what has no completion when its path fails is sent again, and
// recognised.
func TestAtProtocol1CopiesAreRecognised(t *testing.T) {
	run(t, func(w *world) {
		w.offer("b:1", 1)
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		if err := w.wait(w.notify(a, "b:1", "first")); err != nil {
			t.Fatal(err)
		}
		w.fast.Cut("b:1", "a:1", "") // receipts are held: it arrives, and a does not know
		sent := names("n", 50)
		var ds []*Delivery
		for _, n := range sent {
			ds = append(ds, w.notify(a, "b:1", n))
		}
		time.Sleep(time.Second)
		if w.fast.End("a:1", "b:1", "") == 0 {
			t.Fatal("nothing ended")
		}
		for _, d := range ds {
			w.within(d, 2*time.Second)
			if d.Ended() != HandedOver {
				t.Errorf("ended as %v", d.Ended())
			}
		}
		w.fast.Heal("b:1", "a:1", "")
		w.expect(b, append(sent, "first")...)
		if n := b.Stats().Duplicates; n == 0 || a.Stats().Resent < 50 || b.Stats().AcksSent != 0 {
			t.Errorf("%d duplicates, %d sent again, %d acks", n, a.Stats().Resent, b.Stats().AcksSent)
		}
	})
}

// At protocols 0 and 1 a full queue stops reading; nothing is dropped, and
// Close does not wait for a reader. Scenario 11 at these protocols.
func TestAFullQueueStopsReading(t *testing.T) {
	for proto := range 2 {
		t.Run(fmt.Sprint(proto), func(t *testing.T) {
			run(t, func(w *world) {
				w.offer("b:1", proto)
				w.configs["b:1"] = Config{Receive: ReceiveConfig{Frames: 16}, Notification: w.configs["b:1"].Notification}
				w.configs["a:1"] = Config{Notification: NotificationConfig{DeadlineMS: 600000}}
				a, b := w.open("a:1"), w.open("b:1")
				sent := names("n", 200)
				for _, n := range sent {
					w.notify(a, "b:1", n)
				}
				time.Sleep(30 * time.Second)
				if s := b.Stats(); s.Queued > 16 || s.DroppedFull != 0 {
					t.Errorf("%d queued, %d dropped", s.Queued, s.DroppedFull)
				}
				w.expect(b, sent...)
				for _, n := range sent {
					w.notify(a, "b:1", n)
				}
				time.Sleep(time.Second)
				start := time.Now()
				w.shut(b)
				if took := time.Since(start); took > 5*time.Second {
					t.Errorf("Close took %v", took)
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				_ = a.Close(ctx)
			})
		})
	}
}

// rpc.notify_timeout_ms: over the RPC fallback, where no ack can tell, a
// receipt is waited for so long.
func TestNotifyTimeout(t *testing.T) {
	run(t, func(w *world) {
		w.offer("b:1", 0)
		w.configs["a:1"] = Config{RPC: RPCConfig{NotifyTimeoutMS: 3000}, Transports: []TransportConfig{
			{Name: rpcFallbackName, InProcess: func() sdk.Transport { return w.slow.New("a:1") }},
		}}
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		if err := w.wait(w.notify(a, "b:1", "x")); err != nil {
			t.Fatal(err)
		}
		w.slow.Cut("a:1", "b:1", "")
		start := time.Now()
		err := w.wait(w.notify(a, "b:1", "y"))
		if took := time.Since(start); !errors.Is(err, DeliveryUnknown) || took < 3*time.Second || took > 3100*time.Millisecond {
			t.Errorf("%v after %v", err, took)
		}
		w.slow.Heal("a:1", "b:1", "")
		w.expect(b, "x", "y") // it arrives all the same, which Unknown allows
	})
}

// Scenario 5, at protocol 0: the raw frame has room for 44 bytes more.
func TestSizesAtProtocol0(t *testing.T) {
	run(t, func(w *world) {
		w.offer("b:1", 0)
		w.only("a:1", plain)
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		for _, c := range []struct {
			size int
			fits bool
		}{{65527, true}, {65528, true}, {65529, false}} {
			d, err := a.Notify(context.Background(), "b:1", Notification{Payload: make([]byte, c.size)})
			if err != nil {
				t.Fatal(err)
			}
			if err := w.wait(d); c.fits != (err == nil) || !c.fits && (!errors.Is(err, TooLarge) || !strings.Contains(err.Error(), "65528")) {
				t.Errorf("%d bytes: %v", c.size, err)
			}
			synctest.Wait()
		}
		if n := len(drain(b)); n != 2 {
			t.Errorf("%d arrived", n)
		}
	})
}

// At protocols 0 and 1 no ack, request or room ever goes out, not even when a
// session was told of little room.
func TestNoAcksBelowProtocol2(t *testing.T) {
	for proto := range 2 {
		run(t, func(w *world) {
			w.offer("b:1", proto)
			w.configs["b:1"] = Config{Receive: ReceiveConfig{Frames: 4}, Notification: w.configs["b:1"].Notification}
			sent := w.tapped("b:1")
			a, b := w.open("a:1"), w.open("b:1")
			w.connectedAt(a, "b:1")
			for _, n := range names("n", 20) {
				w.notify(a, "b:1", n)
			}
			time.Sleep(time.Second)
			w.expect(b, append(names("n", 20), "hello")...)
			w.shut(a, b)
			if len(sent()) != 0 {
				t.Errorf("protocol %d: % x", proto, sent())
			}
		})
	}
}

// connectedAt sends a first notification.
func (w *world) connectedAt(a *Engine, peer string) {
	w.t.Helper()
	if err := w.wait(w.notify(a, peer, "hello")); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait() // its transport has it, and so has its engine
}

// SESSION_CLOSE at protocol 1: the session is replaced, what follows arrives.
func TestASessionIsReplacedAtProtocol1(t *testing.T) {
	run(t, func(w *world) {
		w.offer("b:1", 1)
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connectedAt(a, "b:1")
		x := b.directory.all()[0]
		x.mu.Lock()
		in := x.in
		x.in = nil
		x.mu.Unlock()
		b.endSession(in, endSilent)
		_ = w.wait(w.notify(a, "b:1", "into the void")) // its transport took it
		time.Sleep(time.Second)
		w.connectedAt(a, "b:1")
		w.expect(b, "hello", "hello")
		if b.Stats().UnknownSession == 0 {
			t.Error("no session was missing")
		}
	})
}

// A peer cannot change its protocol within a life.
func TestTheProtocolIsSettledOnce(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connectedAt(a, "b:1")
		req := a.helloFor()
		req.Proto = 0
		if _, err := a.at("b:1")[0].client.Hello(context.Background(), req); !errors.Is(err, InvalidArgument) {
			t.Errorf("%v", err)
		}
		w.connectedAt(a, "b:1")
		w.expect(b, "hello", "hello")
	})
}
