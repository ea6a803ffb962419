package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/frame"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// typed is a notification's frame as a's association towards e's peer gets it.
func typed(e *Engine, session, seq, floor uint64, n Notification) []byte {
	f := encode(n)
	frame.Header{
		Type: frame.NotifyCompat, Flags: frame.NeedsAck, Session: session,
		Epoch: e.incarnation.Epoch(), Seq: seq, Ack: floor,
	}.Put(f, len(f)-frame.HeaderSize)
	return f
}

// connected returns b's endpoints from a, by transport, with a's session.
func (w *world) connected(a, b *Engine) (eps map[string]*endpoint, session uint64) {
	w.t.Helper()
	if err := w.wait(w.notify(a, b.address, "hello")); err != nil {
		w.t.Fatal(err)
	}
	w.expect(b, "hello")
	synctest.Wait()
	eps = map[string]*endpoint{}
	for _, x := range b.directory.all() {
		x.mu.Lock()
		for _, p := range x.paths {
			if p.ep != nil {
				eps[p.transport] = p.ep
			}
		}
		session = x.in.ID()
		x.mu.Unlock()
	}
	if len(eps) != 2 {
		w.t.Fatalf("%d transports are connected, want 2", len(eps))
	}
	return eps, session
}

// Scenario 7.
func TestTheSameStampOverTwoTransportsArrivesOnce(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		eps, session := w.connected(a, b)
		f := typed(b, session, 2, 1, Notification{Name: "twice", Payload: []byte("payload of twice")})
		g := typed(b, session, 3, 1, Notification{Name: "again", Payload: []byte("payload of again")})
		eps["fast"].Received([][]byte{f})
		eps[rpcFallbackName].Received([][]byte{f, g})
		eps["fast"].Received([][]byte{g, f})
		w.expect(b, "twice", "again")
		if n := b.Stats().Duplicates; n != 3 {
			t.Errorf("%d duplicates, want 3", n)
		}
	})
}

// Scenario 10.
func TestUnstampedMessagesAlwaysPass(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		eps, _ := w.connected(a, b)
		raw := frame.AppendRaw(nil, "raw", []byte("payload of raw"))
		eps["fast"].Received([][]byte{raw, raw, append(bytes.Clone(raw), "trailing bytes are tolerated"...)})
		w.expect(b, "raw", "raw", "raw")
	})
}

// Frames that are not this pair's count for nothing.
func TestForeignStampsAreNotDelivered(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		eps, session := w.connected(a, b)
		n := Notification{Name: "forged"}
		wrongLife := typed(a, session, 2, 1, n)
		wrongSession := typed(b, session+1, 2, 1, n)
		tooFar := typed(b, session, 5000, 1, n)
		belowFloor := typed(b, session, 1, 2, n)
		eps["fast"].Received([][]byte{wrongLife, wrongSession, tooFar, belowFloor, {0x4D, 0x43, 0x4B, 0x43}, {}, nil, {1, 2, 3}})
		w.expect(b)
		s := b.Stats()
		if s.WrongLife != 1 || s.UnknownSession != 1 || s.OutOfRange != 2 || s.Malformed != 4 {
			t.Errorf("%+v", s)
		}
	})
}

// Scenario 9: two senders with equal numbers, and a restarted sender.
func TestEqualNumbersOfDifferentSendersAreDifferent(t *testing.T) {
	run(t, func(w *world) {
		a, b, c := w.open("a:1"), w.open("b:1"), w.open("c:1")
		for _, e := range []*Engine{a, c} {
			if err := w.wait(w.notify(e, "b:1", "from "+e.address)); err != nil {
				t.Fatal(err)
			}
		}
		w.shut(a)
		a = w.open("a:1")
		if err := w.wait(w.notify(a, "b:1", "from the next life")); err != nil {
			t.Fatal(err)
		}
		defer w.shut(a, b, c)
		w.expect(b, "from a:1", "from c:1", "from the next life")
		if n := b.Stats().Sessions; n != 2 {
			t.Errorf("%d sessions are held, want 2", n)
		}
	})
}

// Scenario 6.
func TestAnyBytesOnEveryPath(t *testing.T) {
	values := []string{"", "\x00", "\xff\xfe", "a\x00b", "\xc3\x28 invalid UTF-8", strings.Repeat("\x00\xff", 300)}
	for _, transport := range []string{"fast", rpcFallbackName, localTransport} {
		t.Run(transport, func(t *testing.T) {
			run(t, func(w *world) {
				w.configs["a:1"] = Config{Transports: []TransportConfig{
					{Name: transport, InProcess: func() sdk.Transport { return w.fast.New("a:1") }},
				}}
				a, b := w.open("a:1"), w.open("b:1")
				defer w.shut(a, b)
				to, e := "b:1", b
				if transport == localTransport {
					to, e = "a:1", a
				}
				for _, name := range values {
					for _, payload := range values {
						d, err := a.Notify(context.Background(), to, Notification{name, []byte(payload)})
						if err != nil {
							t.Fatal(err)
						}
						r, err := w.receive(e, time.Minute)
						if err != nil || r.Name != name || string(r.Payload) != payload {
							t.Fatalf("sent %q %q, got %+v, %v", name, payload, r, err)
						}
						if err := w.wait(d); err != nil {
							t.Fatal(err)
						}
					}
				}
			})
		})
	}
}

// Scenario 22: a transport that refuses, or is missing at the peer, or here.
func TestFallsBackWithTheReason(t *testing.T) {
	t.Run("refused", func(t *testing.T) {
		run(t, func(w *world) {
			a, b := w.open("a:1"), w.open("b:1")
			defer w.shut(a, b)
			w.fast.CutBoth("a:1", "b:1", "")
			d := w.notify(a, "b:1", "x")
			if err := w.wait(d); err != nil || d.Report().Transport != rpcFallbackName {
				t.Fatalf("%v, %+v", err, d.Report())
			}
			w.expect(b, "x") // and a minute more
			if a.Stats().ConnectFailures == 0 {
				t.Error("the refusal is not counted")
			}
		})
	})
	t.Run("not at the peer", func(t *testing.T) {
		run(t, func(w *world) {
			w.configs["b:1"] = Config{Transports: []TransportConfig{
				{Name: rpcFallbackName, InProcess: func() sdk.Transport { return w.slow.New("b:1") }},
			}}
			a, b := w.open("a:1"), w.open("b:1")
			defer w.shut(a, b)
			d := w.notify(a, "b:1", "x")
			if err := w.wait(d); err != nil || d.Report().Transport != rpcFallbackName {
				t.Fatalf("%v, %+v", err, d.Report())
			}
			w.expect(b, "x")
		})
	})
	t.Run("no device here", func(t *testing.T) {
		run(t, func(w *world) {
			w.configs["a:1"] = Config{Transports: []TransportConfig{
				{Name: "fast", InProcess: func() sdk.Transport { return noDevice{w.fast.New("a:1")} }},
				{Name: rpcFallbackName, InProcess: func() sdk.Transport { return w.slow.New("a:1") }},
			}}
			a, b := w.open("a:1"), w.open("b:1")
			defer w.shut(a, b)
			d := w.notify(a, "b:1", "x")
			if err := w.wait(d); err != nil || d.Report().Transport != rpcFallbackName {
				t.Fatalf("%v, %+v", err, d.Report())
			}
			w.expect(b, "x")
			if s := a.Transports()[0]; s.LastError == nil || !strings.Contains(s.LastError.Error(), "no such device") {
				t.Errorf("status %+v does not say why", s)
			}
		})
	})
}

// noDevice is a transport without its hardware.
type noDevice struct{ sdk.Transport }

func (noDevice) Configure(context.Context, sdk.Config) (sdk.Setup, error) {
	return sdk.Setup{}, sdk.Errorf(sdk.Unsupported, "no such device")
}

// Scenario 11, in one process: a flood without a reader.
func TestFloodWithoutAReader(t *testing.T) {
	run(t, func(w *world) {
		w.configs["b:1"] = Config{Receive: ReceiveConfig{Frames: 64}}
		w.configs["a:1"] = Config{Outbox: OutboxConfig{Bytes: 100 << 10}, Notification: NotificationConfig{MaxPayloadBytes: 64 << 10}}
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		sent := 0
		for {
			_, err := a.Notify(context.Background(), "b:1", Notification{fmt.Sprintf("f-%d", sent), []byte(fmt.Sprintf("payload of f-%d", sent))})
			if errors.Is(err, Backpressure) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			sent++
		}
		if s := b.Stats(); s.Queued > 64 || sent < 100 || sent > 1000 {
			t.Errorf("%d sent before backpressure, %d queued", sent, s.Queued)
		}
		w.expect(b, names("f", sent)...)
	})
}

func TestUnderLossEverythingArrivesOnce(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			run(t, func(w *world) {
				var mu sync.Mutex
				var faults []*sdktest.FaultyTransport
				lossy := func(f *sdktest.Fabric, node string) func() sdk.Transport {
					return func() sdk.Transport {
						mu.Lock()
						defer mu.Unlock()
						ft := sdktest.Faulty(f.New(node), seed)
						frames := sdktest.FrameFaults{Drop: 0.03, Double: 0.03, Delay: 0.03, Reorder: 0.03}
						ft.Set(sdktest.Faults{Send: frames, Receive: frames, NotPosted: 0.01, Unknown: 0.01, MaxDelay: 3 * time.Second})
						faults = append(faults, ft)
						return ft
					}
				}
				for _, node := range []string{"a:1", "b:1"} {
					// Refused frames pause both paths, and one alone is slow.
					w.configs[node] = Config{Notification: NotificationConfig{DeadlineMS: 600000}, Transports: []TransportConfig{
						{Name: "fast", InProcess: lossy(w.fast, node)},
						{Name: rpcFallbackName, InProcess: lossy(w.slow, node)},
					}}
				}
				a, b := w.open("a:1"), w.open("b:1")
				defer w.shut(a, b)
				r := rand.New(rand.NewPCG(seed, 1))
				sent := names("l", 1000)
				go func() {
					for _, n := range sent {
						w.notify(a, "b:1", n)
						if r.IntN(10) == 0 {
							time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
						}
					}
				}()
				w.expect(b, sent...)
				var dropped, doubled uint64
				for _, f := range faults {
					c := f.Counts()
					dropped += c.Send.Dropped + c.Receive.Dropped
					doubled += c.Send.Doubled + c.Receive.Doubled
				}
				if dropped < 20 || doubled < 20 || b.Stats().Duplicates == 0 {
					t.Errorf("the faults did not fire: %d dropped, %d doubled, %+v", dropped, doubled, b.Stats())
				}
			})
		})
	}
}

func TestCloseIsBoundedAndEndsEverything(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(b)
		w.connected(a, b)
		w.fast.Cut("", "", "")
		w.slow.Cut("", "", "")
		var ds []*Delivery
		for _, n := range names("c", 10) {
			ds = append(ds, w.notify(a, "b:1", n))
		}
		ds = append(ds, w.notify(a, "nobody:1", "never"))
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		start := time.Now()
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { _ = a.Close(ctx) })
		}
		all.Wait()
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("close took %v", took)
		}
		for i, d := range ds {
			want := DeliveryUnknown
			if i == 10 {
				want = NotSent
			}
			if err := d.Err(); !errors.Is(err, want) || !errors.Is(err, Closed) {
				t.Errorf("%d ended with %v", i, err)
			}
		}
		if _, err := a.Notify(context.Background(), "b:1", Notification{}); !errors.Is(err, Closed) {
			t.Errorf("notify after close: %v", err)
		}
		if _, err := a.Receive(context.Background()); !errors.Is(err, Closed) {
			t.Errorf("receive after close: %v", err)
		}
		w.fast.Heal("", "", "")
		w.slow.Heal("", "", "")
	})
}

func TestTooLargeNamesTheLimit(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		_, err := a.Notify(context.Background(), "b:1", Notification{Payload: make([]byte, 16<<20+1)})
		if !errors.Is(err, TooLarge) || !strings.Contains(err.Error(), "16777216") {
			t.Errorf("over max_payload_bytes: %v", err)
		}
		d, err := a.Notify(context.Background(), "b:1", Notification{Payload: make([]byte, 65485)})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.wait(d); !errors.Is(err, TooLarge) || !errors.Is(err, NotSent) || !strings.Contains(err.Error(), "65484") {
			t.Errorf("over the transports' limit: %v", err)
		}
		d, err = a.Notify(context.Background(), "b:1", Notification{Payload: make([]byte, 65484)})
		if err != nil || w.wait(d) != nil {
			t.Errorf("at the limit: %v, %v", err, d.Err())
		}
	})
}

func TestHelloIsSharedByConcurrentCallers(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.network.Delay("a:1", "b:1", 50*time.Millisecond)
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				if err := w.wait(w.notify(a, "b:1", fmt.Sprintf("s-%d", i))); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		time.Sleep(time.Second) // the other transport's connect may end later
		if s := a.Stats(); s.Connects != 2 || b.Stats().Sessions != 1 {
			t.Errorf("%d connects, %d sessions", s.Connects, b.Stats().Sessions)
		}
	})
}

// A session that has rested for the longest deadline is replaced before its
// next frame: the receiver may have ended it.
func TestRestedSessionIsReplaced(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		_, before := w.connected(a, b)
		time.Sleep(silence + time.Hour)
		if n := b.Stats().Sessions; n != 0 {
			t.Fatalf("the receiver still holds %d sessions", n)
		}
		d := w.notify(a, "b:1", "late")
		if err := w.wait(d); err != nil {
			t.Fatal(err)
		}
		r, err := w.receive(b, time.Second)
		if err != nil || r.Name != "late" || r.Stamp.Session == before || r.Stamp.Seq != 1 {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// An endpoint that never lasts is connected at a bounded rate.
func TestNoReconnectStorm(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		ended := 0
		for start := time.Now(); time.Since(start) < 10*time.Second; time.Sleep(time.Millisecond) {
			ended += w.slow.End("a:1", "b:1", "")
		}
		if ended < 3 || ended > 20 {
			t.Errorf("the endpoint was made, and ended, %d times in 10 s", ended)
		}
	})
}

// A peer that seemed gone and is still the same life holds the old session:
// its numbers must not be used again, or new notifications would pass for
// copies of old ones.
func TestSessionOfAnEarlierAssociationIsNotUsedAgain(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		var before []string
		for _, n := range names("before", 20) {
			if err := w.wait(w.notify(a, "b:1", n)); err != nil {
				t.Fatal(err)
			}
			before = append(before, n)
		}
		w.expect(b, before...)
		// The port refuses for a moment, and every endpoint ends.
		w.network.Refuse("b:1", true)
		w.fast.End("", "", "")
		w.slow.End("", "", "")
		time.Sleep(10 * time.Second)
		if n := len(a.directory.all()); n != 0 {
			t.Fatalf("the fault did not fire: %d associations", n)
		}
		w.network.Refuse("b:1", false)
		after := names("after", 20)
		for _, n := range after {
			if err := w.wait(w.notify(a, "b:1", n)); err != nil {
				t.Fatal(err)
			}
		}
		w.expect(b, after...)
	})
}

// Scenario 20: all paths dead: the error lists them.
func TestAFailureListsEveryWay(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		w.fast.Cut("", "", "")
		w.slow.Cut("", "", "")
		w.network.Silence("a:1", "b:1", true)
		d := w.notify(a, "b:1", "x")
		synctest.Wait()
		w.fast.End("", "", "")
		time.Sleep(time.Second)
		w.slow.End("", "", "")
		err := w.wait(d)
		var de *DeliveryError
		if !errors.As(err, &de) || de.Code != DeliveryUnknown || de.Tried < 2 {
			t.Fatalf("%v", err)
		}
		for _, want := range []string{"fast/p0: ", rpcFallbackName + "/p0: ", "deadline"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q is not in %q", want, err)
			}
		}
		w.fast.Heal("", "", "")
		w.slow.Heal("", "", "")
		w.network.Silence("a:1", "b:1", false)
	})
}

// Whoever closes right after it received says so: the goodbye does not overtake
// the acks.
func TestGoodbyeAcknowledges(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a)
		w.connected(a, b)
		// Acks are on their way for long.
		w.fast.Delay("b:1", "a:1", "", time.Minute)
		w.slow.Delay("b:1", "a:1", "", time.Minute)
		var ds []*Delivery
		for _, n := range names("g", 50) {
			ds = append(ds, w.notify(a, "b:1", n))
		}
		synctest.Wait()
		w.shut(b)
		for _, d := range ds {
			if d.Ended() != Acknowledged {
				t.Fatalf("ended as %v: %v", d.Ended(), d.Err())
			}
		}
		for range 50 {
			if _, err := b.Receive(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	})
}
