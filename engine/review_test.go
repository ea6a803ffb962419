package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// hooked is a transport of which a test replaces some calls.
type hooked struct {
	sdk.Transport
	sdk.Notifier
	connect func(ctx context.Context, t sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error)
	accept  func(ctx context.Context, t sdk.Target, offer []byte, h sdk.Handler) (sdk.Endpoint, []byte, error)
	send    func(ep sdk.Endpoint, frames []sdk.Frame) (int, error)
	close   func(ep sdk.Endpoint)
}

func hook(t sdk.Transport) *hooked { return &hooked{Transport: t, Notifier: t.(sdk.Notifier)} }

func (h *hooked) Connect(ctx context.Context, t sdk.Target, x sdk.Exchange, eh sdk.Handler) (sdk.Endpoint, error) {
	connect := h.connect
	if connect == nil {
		connect = h.Notifier.Connect
	}
	ep, err := connect(ctx, t, x, eh)
	if err != nil {
		return nil, err
	}
	return &hookedEndpoint{ep, h}, nil
}

func (h *hooked) Accept(ctx context.Context, t sdk.Target, offer []byte, eh sdk.Handler) (sdk.Endpoint, []byte, error) {
	accept := h.accept
	if accept == nil {
		accept = h.Notifier.Accept
	}
	ep, answer, err := accept(ctx, t, offer, eh)
	if err != nil {
		return nil, nil, err
	}
	return &hookedEndpoint{ep, h}, answer, nil
}

type hookedEndpoint struct {
	sdk.Endpoint
	h *hooked
}

func (e *hookedEndpoint) Send(frames []sdk.Frame, more bool) (int, error) {
	if e.h.send != nil {
		return e.h.send(e.Endpoint, frames)
	}
	return e.Endpoint.Send(frames, more)
}

func (e *hookedEndpoint) Close() {
	if e.h.close != nil {
		e.h.close(e.Endpoint)
		return
	}
	e.Endpoint.Close()
}

// only makes the node run one transport, "fast", made by f.
func (w *world) only(node string, f func(sdk.Transport) sdk.Transport) {
	w.configs[node] = Config{Transports: []TransportConfig{
		{Name: "fast", InProcess: func() sdk.Transport { return f(w.fast.New(node)) }},
	}}
}

func plain(t sdk.Transport) sdk.Transport { return t }

// within checks that a delivery is acknowledged soon.
func (w *world) within(d *Delivery, limit time.Duration) {
	w.t.Helper()
	start := time.Now()
	if err := w.wait(d); err != nil {
		w.t.Errorf("not delivered: %v", err)
	} else if took := time.Since(start); took > limit {
		w.t.Errorf("took %v, want %v at most", took, limit)
	}
}

// An endpoint may end before the call that makes it has returned: what waits
// for it must not wait for its deadline.
func TestAnEndpointThatEndsWhileItIsMade(t *testing.T) {
	for _, side := range []string{"connect", "accept"} {
		t.Run(side, func(t *testing.T) {
			run(t, func(w *world) {
				var once sync.Once
				early := func(ep sdk.Endpoint) {
					once.Do(func() {
						ep.Close()
						time.Sleep(10 * time.Millisecond) // until Ended was called
					})
				}
				w.only("a:1", func(t sdk.Transport) sdk.Transport {
					h := hook(t)
					h.connect = func(ctx context.Context, t sdk.Target, x sdk.Exchange, eh sdk.Handler) (sdk.Endpoint, error) {
						ep, err := h.Notifier.Connect(ctx, t, x, eh)
						if err == nil && side == "connect" {
							early(ep)
						}
						return ep, err
					}
					return h
				})
				w.only("b:1", func(t sdk.Transport) sdk.Transport {
					h := hook(t)
					h.accept = func(ctx context.Context, t sdk.Target, offer []byte, eh sdk.Handler) (sdk.Endpoint, []byte, error) {
						ep, answer, err := h.Notifier.Accept(ctx, t, offer, eh)
						if err == nil && side == "accept" {
							early(ep)
						}
						return ep, answer, err
					}
					return h
				})
				a, b := w.open("a:1"), w.open("b:1")
				defer w.shut(a, b)
				w.within(w.notify(a, "b:1", "x"), 2*time.Second)
				w.within(w.notify(b, "a:1", "y"), 2*time.Second)
			})
		})
	}
}

// The better path's first connect is waited for, but not when it hangs: the
// fallback is connected.
func TestAHangingFirstConnectIsNotWaitedFor(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.fast.CutBoth("a:1", "b:1", "")
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		d, err := a.Notify(ctx, "b:1", Notification{Name: "x"})
		if err != nil {
			t.Fatal(err)
		}
		w.within(d, 2*time.Second)
		w.fast.HealBoth("a:1", "b:1", "")
	})
}

// A transport without room for a moment is tried again in a moment.
func TestNoRoomForAMoment(t *testing.T) {
	run(t, func(w *world) {
		var full atomic.Bool
		w.only("a:1", func(t sdk.Transport) sdk.Transport {
			h := hook(t)
			h.send = func(ep sdk.Endpoint, frames []sdk.Frame) (int, error) {
				if full.Swap(false) {
					return 0, sdk.Backpressure
				}
				return ep.Send(frames, false)
			}
			return h
		})
		w.only("b:1", plain)
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.within(w.notify(a, "b:1", "x"), time.Second)
		full.Store(true)
		w.within(w.notify(a, "b:1", "y"), 50*time.Millisecond)
	})
}

// A transport that ends every frame as Unknown, and does not end itself, must
// not make the engine send copies as fast as it can.
func TestUnknownOutcomesAreNoStorm(t *testing.T) {
	run(t, func(w *world) {
		var broken atomic.Bool
		var copies atomic.Int64
		var handlers sync.Map // of endpoints
		w.only("a:1", func(t sdk.Transport) sdk.Transport {
			h := hook(t)
			h.connect = func(ctx context.Context, t sdk.Target, x sdk.Exchange, eh sdk.Handler) (sdk.Endpoint, error) {
				ep, err := h.Notifier.Connect(ctx, t, x, eh)
				handlers.Store(ep, eh)
				return ep, err
			}
			h.send = func(ep sdk.Endpoint, frames []sdk.Frame) (int, error) {
				if !broken.Load() || copies.Load() > 5000 {
					return ep.Send(frames, false)
				}
				eh, _ := handlers.Load(ep)
				for _, f := range frames {
					copies.Add(1)
					go eh.(sdk.Handler).Completed([]sdk.Completion{{ID: f.ID, Outcome: sdk.Unknown, Code: sdk.Unavailable}})
				}
				return len(frames), nil
			}
			return h
		})
		w.only("b:1", plain)
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.within(w.notify(a, "b:1", "x"), time.Second)
		broken.Store(true)
		d := w.notify(a, "b:1", "y")
		time.Sleep(10 * time.Second)
		broken.Store(false)
		if n := copies.Load(); n > 200 {
			t.Errorf("%d copies in 10 s", n)
		}
		w.within(d, 5*time.Second)
	})
}

// What is added while an association ends goes on with the next one.
func TestNotifyWhileTheAssociationEnds(t *testing.T) {
	run(t, func(w *world) {
		var ending atomic.Pointer[func()]
		w.only("a:1", func(t sdk.Transport) sdk.Transport {
			h := hook(t)
			h.close = func(ep sdk.Endpoint) {
				if f := ending.Swap(nil); f != nil {
					(*f)()
				}
				ep.Close()
			}
			return h
		})
		w.only("b:1", plain)
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.within(w.notify(a, "b:1", "x"), time.Second)
		var during atomic.Pointer[Delivery]
		f := func() { during.Store(w.notify(a, "b:1", "y")) }
		ending.Store(&f)
		for _, x := range a.directory.all() {
			x.die(errors.New("a test's wish"))
		}
		d := during.Load()
		if d == nil {
			t.Fatal("the fault did not fire")
		}
		w.within(d, 2*time.Second)
		w.expect(b, "x", "y")
	})
}

// A delivery that has ended is its reader's: a late outcome of one of its
// copies changes nothing.
func TestALateOutcomeLeavesAnEndedDeliveryAlone(t *testing.T) {
	for _, outcome := range []sdk.Outcome{sdk.Unknown, sdk.NotPosted} {
		run(t, func(w *world) {
			a, b := w.open("a:1"), w.open("b:1")
			defer w.shut(a, b)
			d := w.notify(a, "b:1", "x")
			w.within(d, time.Second)
			synctest.Wait()
			ep := d.via.ep
			ep.a.mu.Lock()
			id := ep.post(&d.entry, 1) // as if a copy had no outcome yet
			ep.a.mu.Unlock()
			ep.Completed([]sdk.Completion{{ID: id, Outcome: outcome, Code: sdk.Unavailable}})
			if r := d.Report(); len(r.Attempts) != 0 || d.tried != 0 {
				t.Errorf("%v: %+v", outcome, r)
			}
		})
	}
}

// Two reasons at once to open a new session must not lose the old one's name.
func TestReopeningTwiceReplacesTheOldSession(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		_, session := w.connected(a, b)
		x := a.directory.byAddress["b:1"]
		x.mu.Lock()
		x.reopenLocked()
		x.reopenLocked()
		replaces := x.hello.replaces
		x.mu.Unlock()
		if replaces != session {
			t.Errorf("replaces %x, want %x", replaces, session)
		}
		w.within(w.notify(a, "b:1", "x"), time.Second)
		w.expect(b, "x")
	})
}

// News that did not get through is told again: else the transport could not
// be used with that peer until the next change.
func TestNewsOfATransportGetsThroughLate(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		w.network.Silence("a:1", "b:1", true)
		if w.fast.Kill("a:1") == 0 {
			t.Fatal("the fault did not fire")
		}
		time.Sleep(2 * time.Minute) // longer than any call
		w.network.Silence("a:1", "b:1", false)
		time.Sleep(time.Minute)
		for i := range 3 {
			w.within(w.notify(a, "b:1", fmt.Sprint("a", i)), time.Second)
			time.Sleep(10 * time.Second)
		}
		if d := w.notify(a, "b:1", "x"); w.wait(d) != nil || d.Report().Transport != "fast" {
			t.Errorf("%+v", d.Report())
		}
	})
}

// While the transport with the larger limit restarts, large notifications wait
// for it, and small ones do not wait for them.
func TestALargeOneWaitsForItsTransport(t *testing.T) {
	run(t, func(w *world) {
		w.slow = sdktest.NewFabric(sdktest.FabricOptions{Name: rpcFallbackName, Limits: sdk.Limits{MaxFrame: 1 << 20}})
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		large := Notification{Name: "large", Payload: make([]byte, 100<<10)}
		for _, node := range []string{"a:1", "b:1"} {
			w.slow.Cut("a:1", "b:1", "") // so that it is away for a while
			if w.slow.Kill(node) == 0 {
				t.Fatal("the fault did not fire")
			}
			synctest.Wait()
			d, err := a.Notify(context.Background(), "b:1", large)
			if err != nil {
				t.Fatal(err)
			}
			w.within(w.notify(a, "b:1", "small"), 100*time.Millisecond)
			if d.Ended() != Pending {
				t.Errorf("the large one ended: %v", d.Err())
			}
			w.slow.Heal("a:1", "b:1", "")
			w.within(d, 40*time.Second)
		}
	})
}

// Frames may come before Connect has returned: their ack follows it.
func TestFramesBeforeConnectReturnsAreAcked(t *testing.T) {
	run(t, func(w *world) {
		w.only("a:1", func(t sdk.Transport) sdk.Transport {
			h := hook(t)
			h.connect = func(ctx context.Context, t sdk.Target, x sdk.Exchange, eh sdk.Handler) (sdk.Endpoint, error) {
				ep, err := h.Notifier.Connect(ctx, t, x, eh)
				time.Sleep(50 * time.Millisecond)
				return ep, err
			}
			return h
		})
		w.only("b:1", plain)
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.notify(a, "b:1", "x")
		time.Sleep(10 * time.Millisecond)
		w.within(w.notify(b, "a:1", "y"), 100*time.Millisecond)
		if n := a.Stats().Duplicates; n != 0 {
			t.Errorf("%d duplicates", n)
		}
	})
}

// Nothing is kept for ever of peers that went without a word, or never were.
func TestUselessAssociationsAreForgotten(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		w.connected(a, b)
		d := w.notify(a, "nobody:1", "x")
		w.network.Silence("a:1", "b:1", true)
		w.network.Silence("b:1", "a:1", true)
		w.shut(b)
		if err := w.wait(d); !errors.Is(err, NotSent) {
			t.Fatal(err)
		}
		time.Sleep(2*silence + time.Hour)
		if n := len(a.directory.all()); n != 0 {
			t.Errorf("%d associations are left", n)
		}
		w.network.Silence("a:1", "b:1", false)
		w.network.Silence("b:1", "a:1", false)
		b = w.open("b:1")
		defer w.shut(a, b)
		w.within(w.notify(a, "b:1", "again"), 2*time.Second)
	})
}

// eager is a carrier whose peers call before Listen has returned.
type eager struct {
	control.Carrier
	call func(control.Handler)
}

func (c eager) Listen(h control.Handler) (string, error) {
	address, err := c.Carrier.Listen(h)
	go c.call(h)
	time.Sleep(time.Millisecond)
	return address, err
}

func TestAPeerThatCallsWhileTheEngineOpens(t *testing.T) {
	run(t, func(w *world) {
		got := make(chan string, 1)
		c := eager{w.network.Carrier("a:1"), func(h control.Handler) {
			reply, _ := h.Probe(context.Background(), control.ProbeRequest{})
			got <- reply.Node.Address
		}}
		a, err := Open(context.Background(), Config{Transports: []TransportConfig{
			{Name: "fast", InProcess: func() sdk.Transport { return w.fast.New("a:1") }},
		}}, withCarrier(c))
		if err != nil {
			t.Fatal(err)
		}
		w.shut(a)
		if address := <-got; address != "a:1" {
			t.Errorf("the address told is %q", address)
		}
	})
}

// Both sides connect at once, and the one whose attempt counts takes longer to
// make its offer: the other one's is refused first, and must not have the
// better one refused after it.
func TestTheSlowerOfferOfTwoStillCounts(t *testing.T) {
	run(t, func(w *world) {
		var lower atomic.Pointer[Engine]
		slow := func(t sdk.Transport) sdk.Transport {
			h := hook(t)
			h.connect = func(ctx context.Context, t sdk.Target, x sdk.Exchange, eh sdk.Handler) (sdk.Endpoint, error) {
				if e := lower.Load(); e != nil && e.incarnation == t.Local {
					time.Sleep(5 * time.Millisecond)
				}
				return h.Notifier.Connect(ctx, t, x, eh)
			}
			return h
		}
		w.only("a:1", slow)
		w.only("b:1", slow)
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		lower.Store(a)
		if b.incarnation.Less(a.incarnation) {
			lower.Store(b)
		}
		w.network.Delay("a:1", "b:1", time.Millisecond)
		w.network.Delay("b:1", "a:1", time.Millisecond)
		d, f := w.notify(a, "b:1", "x"), w.notify(b, "a:1", "y")
		w.within(d, 40*time.Millisecond)
		w.within(f, 40*time.Millisecond)
	})
}

// Close does not wait for a reload that waits for a transport.
func TestCloseEndsAReload(t *testing.T) {
	run(t, func(w *world) {
		var hang atomic.Bool
		w.only("a:1", func(t sdk.Transport) sdk.Transport { return &slowStart{Transport: t, hang: &hang} })
		a := w.open("a:1")
		hang.Store(true)
		reloaded := make(chan error)
		go func() { reloaded <- a.RestartTransport(context.Background(), "fast") }()
		cfg := a.cfg
		cfg.Transports = append([]TransportConfig{{Name: rpcFallbackName, InProcess: func() sdk.Transport {
			return &slowStart{Transport: w.slow.New("a:1"), hang: &hang}
		}}}, cfg.Transports[:1]...)
		go func() { reloaded <- a.Reload(context.Background(), cfg) }()
		time.Sleep(time.Second)
		start := time.Now()
		w.shut(a)
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("close took %v", took)
		}
		if err := errors.Join(<-reloaded, <-reloaded); err == nil {
			t.Error("both reloads say that they succeeded")
		}
	})
}

// A session that hello opened and that nothing was sent under is as old as any:
// the receiver has ended it by the time of the first frame.
func TestASessionThatWasNeverUsedIsReplaced(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.network.Delay("b:1", "a:1", 2*time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		d, err := a.Notify(ctx, "b:1", Notification{Name: "x"})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.wait(d); !errors.Is(err, NotSent) {
			t.Fatal(err)
		}
		w.network.Delay("b:1", "a:1", 0)
		time.Sleep(silence + time.Hour)
		if n := b.Stats().Sessions; n != 0 {
			t.Fatalf("%d sessions are left", n)
		}
		if err := w.wait(w.notify(a, "b:1", "first")); err != nil {
			t.Fatal(err)
		}
		w.expect(b, "first")
	})
}

// A reload that waits for another one gives up when its context ends.
func TestAReloadWaitsNoLongerThanItsContext(t *testing.T) {
	run(t, func(w *world) {
		var hang atomic.Bool
		a := w.open("a:1")
		defer w.shut(a)
		hang.Store(true)
		cfg := a.cfg
		cfg.Transports = append(slices.Clone(cfg.Transports), TransportConfig{Name: "slow", InProcess: func() sdk.Transport {
			return &slowStart{Transport: w.fast.New("a:1"), hang: &hang}
		}})
		first := make(chan error)
		go func() { first <- a.Reload(context.Background(), cfg) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		start := time.Now()
		if err := a.Reload(ctx, a.cfg); !errors.Is(err, Busy) || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if err := <-first; err == nil {
			t.Error("the first one says that it succeeded")
		}
	})
}

// slowStart is a transport whose Configure takes all the time that it gets.
type slowStart struct {
	sdk.Transport
	hang *atomic.Bool
}

func (s *slowStart) Configure(ctx context.Context, cfg sdk.Config) (sdk.Setup, error) {
	if s.hang.Load() {
		<-ctx.Done()
		return sdk.Setup{}, ctx.Err()
	}
	return s.Transport.Configure(ctx, cfg)
}

// A peer that has a new name for its path with each of its changes is not
// remembered for ever.
func TestForgottenPathsAreBounded(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		for _, x := range a.directory.all() {
			x.mu.Lock()
			list := slices.Clone(x.remote.list)
			for i := range 3 * maxPaths {
				x.routeLocked([]route{{local: a.transports.up()[0], remote: list[0], paths: []string{fmt.Sprint("rotated ", i)}}})
			}
			if n := len(x.paths); n > maxPaths+2 {
				t.Errorf("%d paths are remembered", n)
			}
			x.matched = false
			x.rematchLocked()
			x.mu.Unlock()
		}
		if err := w.wait(w.notify(a, "b:1", "after")); err != nil {
			t.Fatal(err)
		}
		w.expect(b, "after")
	})
}
