package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/sdk"
)

// Guards of bootstraps: which attempt counts, and between whom.

// silentEndpoint takes nothing and counts how often it is closed.
type silentEndpoint struct{ closed int }

func (s *silentEndpoint) Send([]sdk.Frame, bool) (int, error) { return 0, sdk.Backpressure }
func (s *silentEndpoint) Close()                              { s.closed++ }

// pathOf returns the path of e's only peer over a transport.
func pathOf(t *testing.T, e *Engine, transport string) (*association, *path) {
	t.Helper()
	x := theOnly(t, e)
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.paths[pathKey{transport, "p0"}]
	if p == nil {
		t.Fatalf("no path over %s", transport)
	}
	return x, p
}

func carries(x *association, p *path, ep *endpoint) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return p.ep == ep
}

func TestABootstrapServesAllCallers(t *testing.T) {
	run(t, func(w *world) {
		var attempts atomic.Int64
		w.only("a:1", func(t sdk.Transport) sdk.Transport {
			h := hook(t)
			h.connect = func(ctx context.Context, t sdk.Target, x sdk.Exchange, eh sdk.Handler) (sdk.Endpoint, error) {
				attempts.Add(1)
				time.Sleep(50 * time.Millisecond)
				return h.Notifier.Connect(ctx, t, x, eh)
			}
			return h
		})
		w.only("b:1", plain)
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		for _, n := range names("n", 16) {
			w.notify(a, "b:1", n)
			time.Sleep(time.Millisecond)
		}
		w.expect(b, names("n", 16)...)
		if n := attempts.Load(); n != 1 {
			t.Errorf("%d attempts for 16 callers, want 1", n)
		}
	})
}

// An attempt that ends after a newer one took its place changes nothing, and
// what it made is closed.
func TestALateAnswerIsIgnored(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		x, p := pathOf(t, a, "fast")
		x.mu.Lock()
		current, late := p.ep, x.newEndpointLocked(p)
		x.mu.Unlock()
		se := &silentEndpoint{}
		x.connected(p, late, se)
		if !carries(x, p, current) || se.closed != 1 {
			t.Errorf("it was installed, or not closed (%d)", se.closed)
		}
		w.within(w.notify(a, "b:1", "x"), time.Second)
	})
}

func TestALateAcceptIsRefused(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		x, p := pathOf(t, a, "fast")
		x.mu.Lock()
		current, late := p.ep, x.newEndpointLocked(p)
		x.mu.Unlock()
		se := &silentEndpoint{}
		if err := x.accepted(p, late, se); !errors.Is(err, Busy) {
			t.Errorf("%v", err)
		}
		if !carries(x, p, current) || se.closed != 1 {
			t.Errorf("it was installed, or not closed (%d)", se.closed)
		}
	})
}

func TestALateFailureIsIgnored(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		x, p := pathOf(t, a, "fast")
		x.mu.Lock()
		late, newer := x.newEndpointLocked(p), x.newEndpointLocked(p)
		p.connecting = newer
		x.mu.Unlock()
		x.notConnected(p, late, sdk.Errorf(sdk.Refused, "not you"))
		x.mu.Lock()
		defer x.mu.Unlock()
		if p.connecting != newer || p.failures != 0 || a.watch.troubled.Load() {
			t.Errorf("the attempt under way was given up, %d failures", p.failures)
		}
		p.connecting = nil
	})
}

// counted makes b's transports count the offers that reach them.
func (w *world) counted(node string) *atomic.Int64 {
	var offers atomic.Int64
	w.configs[node] = Config{Transports: []TransportConfig{
		{Name: "fast", InProcess: func() sdk.Transport {
			h := hook(w.fast.New(node))
			h.accept = func(ctx context.Context, t sdk.Target, offer []byte, eh sdk.Handler) (sdk.Endpoint, []byte, error) {
				offers.Add(1)
				return h.Notifier.Accept(ctx, t, offer, eh)
			}
			return h
		}},
		{Name: rpcFallbackName, InProcess: func() sdk.Transport { return w.slow.New(node) }},
	}}
	return &offers
}

// offer is a bootstrap from a to b over the fast transport, as it would be right.
func offerTo(t *testing.T, a, b *Engine) control.BootstrapRequest {
	t.Helper()
	x, p := pathOf(t, b, "fast")
	x.mu.Lock()
	defer x.mu.Unlock()
	return control.BootstrapRequest{
		From: a.incarnation, To: b.incarnation, Transport: "fast", FromInstance: p.remote,
		ToInstance: p.inst.ID, Path: "p0", Generation: p.generation + 1, Offer: []byte("offer"),
	}
}

func TestAnOfferThatIsNotNewerIsRefused(t *testing.T) {
	run(t, func(w *world) {
		offers := w.counted("b:1")
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		before := offers.Load()
		req := offerTo(t, a, b)
		req.Generation--
		reply, err := (&answers{b, closedChan}).Bootstrap(context.Background(), req)
		if err != nil || reply.Newest != req.Generation || offers.Load() != before {
			t.Errorf("%+v, %v, %d offers reached the transport", reply, err, offers.Load()-before)
		}
	})
}

// Whoever hears that its generation is not new goes on above the newest one.
func TestGenerationsCatchUp(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		x, p := pathOf(t, a, "fast")
		if err := x.outdated(p, 3, 99); !errors.Is(err, Busy) {
			t.Errorf("%v", err)
		}
		if w.fast.End("a:1", "b:1", "") == 0 {
			t.Fatal("nothing ended")
		}
		w.notify(a, "b:1", "x")
		time.Sleep(time.Second)
		x.mu.Lock()
		defer x.mu.Unlock()
		if !p.up() || p.generation <= 99 {
			t.Errorf("generation %d after 99 was seen", p.generation)
		}
	})
}

// Nothing of an instance, or of a life, is used with its successor.
func TestABootstrapNamesWhomItIsFor(t *testing.T) {
	run(t, func(w *world) {
		offers := w.counted("b:1")
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		before := offers.Load()
		for _, c := range []struct {
			name   string
			change func(*control.BootstrapRequest)
			want   error
		}{
			{"another life here", func(r *control.BootstrapRequest) { r.To[0]++ }, PeerRestarted},
			{"another life there", func(r *control.BootstrapRequest) { r.From[0]++ }, SessionUnknown},
			{"another instance here", func(r *control.BootstrapRequest) { r.ToInstance++ }, Refused},
			{"another instance there", func(r *control.BootstrapRequest) { r.FromInstance++ }, Refused},
			{"another path", func(r *control.BootstrapRequest) { r.Path = "p9" }, Refused},
			{"another transport", func(r *control.BootstrapRequest) { r.Transport = "rdma" }, Refused},
		} {
			req := offerTo(t, a, b)
			c.change(&req)
			if _, err := (&answers{b, closedChan}).Bootstrap(context.Background(), req); !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", c.name, err, c.want)
			}
			if n := offers.Load() - before; n != 0 {
				t.Fatalf("%s: the offer reached the transport", c.name)
			}
		}
	})
}

// A newer life at an address ends the older one's association, and news of an
// older life is refused.
func TestNewsOfAnOlderLifeIsRefused(t *testing.T) {
	run(t, func(w *world) {
		a := w.open("a:1")
		defer w.shut(a)
		h := &answers{a, closedChan}
		life := func(n byte, started time.Time) error {
			req := greeting(1, 7, 0)
			req.From.Incarnation, req.From.Started = Incarnation{n, 15: 1}, started
			_, err := h.Hello(context.Background(), req)
			return err
		}
		now := time.Now()
		if err := life(1, now); err != nil {
			t.Fatal(err)
		}
		if err := life(2, now.Add(-time.Hour)); !errors.Is(err, PeerRestarted) {
			t.Errorf("an older life: %v", err)
		}
		older := theOnly(t, a)
		if err := life(3, now.Add(time.Hour)); err != nil {
			t.Errorf("a newer life: %v", err)
		}
		synctest.Wait()
		if x := theOnly(t, a); x == older || x.node.Load().Incarnation[0] != 3 || !errors.Is(older.dead, PeerRestarted) {
			t.Errorf("the older life goes on: %v", older.dead)
		}
	})
}

// The end of an endpoint that was replaced is not its successor's.
func TestTheEndOfAReplacedEndpoint(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		x, p := pathOf(t, a, "fast")
		x.mu.Lock()
		old, successor := p.ep, x.newEndpointLocked(p)
		successor.se = &silentEndpoint{}
		x.installLocked(p, successor, time.Now())
		x.mu.Unlock()
		old.Ended(errors.New("late"))
		if !carries(x, p, successor) {
			t.Error("the successor was taken off with it")
		}
		old.se.Close()
		successor.Ended(errors.New("done"))
	})
}

// An endpoint belongs to an instance at either end; once one has a successor
// another endpoint is to be connected.
func TestAnEndpointBelongsToTwoInstances(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		x, p := pathOf(t, a, "fast")
		x.mu.Lock()
		defer x.mu.Unlock()
		here, there := *p, *p
		here.inst, there.remote = nil, p.remote+1
		if p.stale() || !here.stale() || !there.stale() {
			t.Errorf("stale: %v, with another instance here %v, there %v", p.stale(), here.stale(), there.stale())
		}
	})
}
