package engine

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/sdk"
)

// liar is a control plane that a test writes.
type liar struct {
	control.Handler
	hello func(control.HelloRequest) control.HelloReply
}

func (l *liar) Hello(_ context.Context, q control.HelloRequest) (control.HelloReply, error) {
	return l.hello(q), nil
}

// named opens two engines under certificates of their own that have exchanged a
// notification each way, and a third party that the authority has signed too.
func (w *world) named() (a, b *Engine, mallory control.Carrier) {
	w.t.Helper()
	w.network.Identify("a:1", `"alice"`)
	w.network.Identify("b:1", `"bob"`)
	w.network.Identify("m:1", `"mallory"`)
	a, b = w.open("a:1"), w.open("b:1")
	w.both(a, b, "first")
	return a, b, w.network.Carrier("m:1")
}

// both sends a notification each way, which must arrive from whom it is.
func (w *world) both(a, b *Engine, name string) {
	w.t.Helper()
	for _, way := range []struct {
		from, to *Engine
		identity string
	}{{a, b, `"alice"`}, {b, a, `"bob"`}} {
		d := w.notify(way.from, way.to.address, name)
		if err := w.wait(d); err != nil {
			w.t.Fatalf("%s: %v", name, err)
		}
		r, err := w.receive(way.to, time.Minute)
		if err != nil || r.Name != name || r.From.Identity != way.identity || r.From.Incarnation != way.from.incarnation {
			w.t.Fatalf("%s: %+v, %v", name, r, err)
		}
	}
}

// refusedAs checks what somebody was answered who spoke in another's name.
func (w *world) refusedAs(e *Engine, count uint64, err error, owner string) {
	w.t.Helper()
	if !errors.Is(err, sdk.Refused) || !strings.Contains(err.Error(), `known under the certificate of `+owner+`, this is that of "mallory"`) {
		w.t.Errorf("got %v", err)
	}
	if n := e.Stats().Impostors; n != count {
		w.t.Errorf("%d impostors counted, want %d", n, count)
	}
}

// What somebody else whom the authority has signed says in b's name, a does not
// believe.
func TestCallsInAnothersName(t *testing.T) {
	run(t, func(w *world) {
		a, b, m := w.named()
		defer w.shut(a, b)
		defer m.Close(context.Background()) //nolint:errcheck // the test's own
		events := a.Events(context.Background())
		defer events.Close()
		client, ctx := m.Dial("a:1"), context.Background()

		w.refusedAs(a, 1, client.Goodbye(ctx, control.GoodbyeRequest{From: b.incarnation}), `"bob"`)
		w.refusedAs(a, 2, client.Changed(ctx, control.ChangeRequest{From: b.incarnation, Version: 1 << 40}), `"bob"`)
		_, err := client.Bootstrap(ctx, control.BootstrapRequest{
			From: b.incarnation, To: a.incarnation, Transport: "fast", FromInstance: 1, ToInstance: 1, Path: sdk.MainPath, Generation: 1 << 40,
		})
		w.refusedAs(a, 3, err, `"bob"`)
		_, err = client.Hello(ctx, b.helloFor())
		w.refusedAs(a, 4, err, `"bob"`)

		w.both(a, b, "then")
		select {
		case ev := <-events.C():
			t.Errorf("a took it for news: %+v", ev)
		default:
		}
		// Of an incarnation that nobody is known under nothing can be said.
		if err := client.Goodbye(ctx, control.GoodbyeRequest{From: sdk.Incarnation{1, 8: 1}}); err != nil {
			t.Error(err)
		}
	})
}

// Somebody else's word that he is at b's address now ends nothing of b's.
func TestAnothersAddress(t *testing.T) {
	run(t, func(w *world) {
		a, b, m := w.named()
		defer w.shut(a, b)
		defer m.Close(context.Background()) //nolint:errcheck // the test's own
		events := a.Events(context.Background())
		defer events.Close()
		time.Sleep(time.Second) // he started later
		q := b.helloFor()
		q.From.Incarnation, q.From.Started = sdk.Incarnation{7, 8: 7}, time.Now()
		if _, err := m.Dial("a:1").Hello(context.Background(), q); err != nil {
			t.Fatal(err)
		}
		for {
			synctest.Wait()
			select {
			case ev := <-events.C():
				if ev.Kind != PeerUp {
					t.Errorf("a took it for news of b: %+v", ev)
				}
				continue
			default:
			}
			break
		}
		w.both(a, b, "then")
	})
}

// Who answers hello with another's incarnation gets nothing, and the error says
// so; nor does who answers with the caller's own.
func TestAnswersInAnothersName(t *testing.T) {
	for _, c := range []struct {
		name  string
		as    func(a, b *Engine) *Engine
		owner string
	}{
		{"the peer's", func(_, b *Engine) *Engine { return b }, `"bob"`},
		{"the caller's own", func(a, _ *Engine) *Engine { return a }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, func(w *world) {
				a, b, m := w.named()
				defer w.shut(a, b)
				defer m.Close(context.Background()) //nolint:errcheck // the test's own
				as := c.as(a, b)
				if _, err := m.Listen(&liar{hello: func(q control.HelloRequest) control.HelloReply {
					return control.HelloReply{Node: as.self(), Proto: q.Proto, Session: q.Session, Room: selfRoom, Version: 1 << 40}
				}}); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
				defer cancel()
				d, err := a.Notify(ctx, "m:1", Notification{Name: "secret"})
				if err != nil {
					t.Fatal(err)
				}
				err = w.wait(d)
				if !errors.Is(err, NotSent) || !strings.Contains(err.Error(), `is known under the certificate of `+c.owner) ||
					!strings.Contains(err.Error(), `this is that of "mallory"`) || !strings.Contains(err.Error(), "the peer still refused hello") {
					t.Errorf("got %v", err)
				}
				if n := a.Stats().Impostors; n == 0 {
					t.Error("nothing was counted")
				}
				w.both(a, b, "then")
			})
		})
	}
}

// When another certificate answers at the peer's address the peer is not there
// any more: whoever is gets what was not sent yet, after a hello of its own.
func TestAnotherCertificateAtTheAddress(t *testing.T) {
	run(t, func(w *world) {
		a, b, m := w.named()
		defer w.shut(a, b)
		defer m.Close(context.Background()) //nolint:errcheck // the test's own
		events := a.Events(context.Background())
		defer events.Close()
		w.network.Identify("b:1", `"bella"`)
		time.Sleep(11 * time.Minute) // the session rests: hello comes first
		if err := w.wait(w.notify(a, "b:1", "x")); err != nil {
			t.Fatal(err)
		}
		select {
		case ev := <-events.C():
			if ev.Kind != PeerRestartedEvent || !strings.Contains(ev.Err.Error(), `"bella" is there now, not that of "bob"`) {
				t.Errorf("got %+v", ev)
			}
		default:
			t.Error("a did not notice")
		}
		if r, err := w.receive(b, time.Minute); err != nil || r.Name != "x" {
			t.Errorf("got %v, %v", r, err)
		}
	})
}

// targets notes what a transport's endpoints are for.
type targets struct {
	*keyed
	mu   sync.Mutex
	seen []sdk.Target
}

func (s *targets) note(t sdk.Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, t)
}

func (s *targets) Connect(ctx context.Context, t sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	s.note(t)
	return s.keyed.Connect(ctx, t, x, h)
}

func (s *targets) Accept(ctx context.Context, t sdk.Target, offer []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
	s.note(t)
	return s.keyed.Accept(ctx, t, offer, h)
}

// Transports are told whose certificate an endpoint's connection must bear.
func TestEndpointsAreForOneCertificate(t *testing.T) {
	run(t, func(w *world) {
		var all []*targets
		for _, at := range []string{"a:1", "b:1"} {
			w.network.Identify(at, at+"'s")
			tr := w.fast.New(at)
			s := &targets{keyed: &keyed{Transport: tr, Notifier: tr.(sdk.Notifier), quiet: true}}
			all = append(all, s)
			cfg := w.configs[at]
			cfg.Notification.RPCFallback = new(false)
			cfg.Transports = []TransportConfig{{Name: "fast", InProcess: func() sdk.Transport { return s }}}
			w.configs[at] = cfg
		}
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		if err := w.wait(w.notify(a, "b:1", "x")); err != nil {
			t.Fatal(err)
		}
		for i, other := range []string{"b:1's", "a:1's"} {
			all[i].mu.Lock()
			if len(all[i].seen) == 0 {
				t.Error("no endpoint was made")
			}
			for _, target := range all[i].seen {
				if target.PeerIdentity != other {
					t.Errorf("an endpoint for %q, want %q", target.PeerIdentity, other)
				}
			}
			all[i].mu.Unlock()
		}
	})
}

// All nodes of a fleet may have one certificate: then all are the same one.
func TestASharedCertificate(t *testing.T) {
	run(t, func(w *world) {
		for _, at := range []string{"a:1", "b:1"} {
			w.network.Identify(at, `"fleet"`)
		}
		a, b := w.open("a:1"), w.open("b:1")
		defer func() { w.shut(a, b) }()
		for _, name := range []string{"first", "second life"} {
			if err := w.wait(w.notify(a, "b:1", name)); err != nil {
				t.Fatal(err)
			}
			w.expect(b, name)
			w.shut(b)
			b = w.open("b:1")
		}
		if n := a.Stats().Impostors + b.Stats().Impostors; n != 0 {
			t.Errorf("%d impostors counted", n)
		}
	})
}

// A refusal of hello shows at once, in the log and among the peers, once, and
// in the error of what waited for it.
func TestARefusalOfHelloIsSaid(t *testing.T) {
	run(t, func(w *world) {
		m, log := w.network.Carrier("m:1"), &lines{}
		defer m.Close(context.Background()) //nolint:errcheck // the test's own
		if _, err := m.Listen(&refusing{}); err != nil {
			t.Fatal(err)
		}
		w.logs = map[string]*lines{"a:1": log}
		a := w.open("a:1")
		defer w.shut(a)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		d, err := a.Notify(ctx, "m:1", Notification{Name: "x"})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if p := a.Peers(); len(p) != 1 || p[0].HelloError == nil || !strings.Contains(p[0].HelloError.Error(), "sessions.max") {
			t.Errorf("peers: %+v", p)
		}
		if !log.has("level=WARN msg=\"hello refused") {
			t.Error("it is not in the log")
		}
		start := time.Now()
		err = w.wait(d)
		if took := time.Since(start); took != 10*time.Second {
			t.Errorf("ended after %v", took)
		}
		if !errors.Is(err, NotSent) || !errors.Is(err, DeadlineExceeded) || !strings.Contains(err.Error(), "the peer still refused hello") ||
			!strings.Contains(err.Error(), "control plane: ") || !strings.Contains(err.Error(), "sessions.max") {
			t.Errorf("got %v", err)
		}
		if n := log.count("hello refused"); n != 1 {
			t.Errorf("it is in the log %d times", n)
		}
	})
}

// refusing has no room for anybody.
type refusing struct{ control.Handler }

func (*refusing) Hello(context.Context, control.HelloRequest) (control.HelloReply, error) {
	return control.HelloReply{}, sdk.Errorf(sdk.Busy, "this engine holds sessions.max = 1 sessions")
}
