package engine

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// late sends a notification that may take so long, and returns how it ended.
func (w *world) late(e *Engine, peer string, limit time.Duration) error {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	d, err := e.Notify(ctx, peer, Notification{Name: "x"})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.wait(d)
}

func says(t *testing.T, err error, codes []Code, has, hasNot []string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, c := range codes {
		if !errors.Is(err, c) {
			t.Errorf("%v is not %v", err, c)
		}
	}
	for _, s := range has {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q is not in %v", s, err)
		}
	}
	for _, s := range hasNot {
		if strings.Contains(err.Error(), s) {
			t.Errorf("%q is in %v", s, err)
		}
	}
}

func TestAFullPeerIsTheReason(t *testing.T) {
	run(t, func(w *world) {
		w.configs["b:1"] = Config{Receive: ReceiveConfig{Frames: 16}}
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		for _, n := range names("f", 16) {
			if err := w.wait(w.notify(a, "b:1", n)); err != nil {
				t.Fatal(err)
			}
		}
		says(t, w.late(a, "b:1", 2*time.Second), []Code{DeadlineExceeded, NotSent},
			[]string{"the peer had no room, its queue is full", "no copy left"}, nil)
		w.expect(b, names("f", 16)...)
	})
}

func TestAnUnansweredHelloIsTheReason(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.network.Silence("a:1", "b:1", true)
		for _, limit := range []time.Duration{time.Millisecond, time.Second} {
			says(t, w.late(a, "b:1", limit), []Code{DeadlineExceeded, NotSent},
				[]string{"its deadline was over before hello was answered", "hello to b:1: no answer in time"},
				[]string{"not up at the peer"})
		}
		w.network.Silence("a:1", "b:1", false)
	})
}

func TestAnUnconnectedWayIsTheReason(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.fast.Cut("", "", "")
		w.slow.Cut("", "", "")
		says(t, w.late(a, "b:1", time.Second), []Code{DeadlineExceeded, NotSent},
			[]string{"its deadline was over before it could be sent", "fast/p0: "}, []string{"hello"})
		w.fast.Heal("", "", "")
		w.slow.Heal("", "", "")
	})
}

func TestNotifyWithAnEndedContext(t *testing.T) {
	run(t, func(w *world) {
		a := w.open("a:1")
		defer w.shut(a)
		expired, cancel := context.WithDeadline(context.Background(), time.Now())
		defer cancel()
		_, err := a.Notify(expired, "b:1", Notification{})
		says(t, err, []Code{DeadlineExceeded}, []string{"notification to b:1: its deadline was over before it was sent"}, nil)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		why := errors.New("the user left")
		cancelled, give := context.WithCancelCause(context.Background())
		give(why)
		_, err = a.Notify(cancelled, "b:1", Notification{})
		says(t, err, []Code{NotSent}, []string{"notification to b:1: cancelled before it was sent", "the user left"}, nil)
		if !errors.Is(err, context.Canceled) || !errors.Is(err, why) {
			t.Error(err)
		}
	})
}

func TestNilArguments(t *testing.T) {
	var ctx context.Context // nil
	var never *Engine
	for _, e := range []*Engine{never, {}} {
		_, err := e.Notify(ctx, "b:1", Notification{})
		says(t, err, []Code{InvalidArgument}, nil, nil)
		_, err = e.Receive(ctx)
		says(t, err, []Code{InvalidArgument}, nil, nil)
		says(t, e.Close(ctx), []Code{InvalidArgument}, nil, nil)
		says(t, e.Reload(ctx, Config{}), []Code{InvalidArgument}, nil, nil)
	}
	_, err := Open(ctx, Config{}, nil)
	says(t, err, []Code{InvalidArgument}, []string{"option 1 is nil"}, nil)
	run(t, func(w *world) {
		e, err := Open(ctx, Config{
			Node:       NodeConfig{Name: "a"},
			Transports: []TransportConfig{{Name: "fast", InProcess: func() sdk.Transport { return w.fast.New("a:1") }}},
		}, withCarrier(w.network.Carrier("a:1")))
		if err != nil {
			t.Fatal(err)
		}
		d, err := e.Notify(ctx, "a:1", Notification{Name: "x"})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Receive(ctx); err != nil {
			t.Fatal(err)
		}
		if err := e.Close(ctx); err != nil {
			t.Fatal(err)
		}
	})
}

// errorsLogged opens an engine with one transport that works and one that does
// not, and returns what it logs at ERROR.
func (w *world) errorsLogged(ctx context.Context, bad sdk.Transport) string {
	w.t.Helper()
	var log bytes.Buffer
	e, err := Open(ctx, Config{
		Node: NodeConfig{Name: "a"},
		Transports: []TransportConfig{
			{Name: "bad", InProcess: func() sdk.Transport { return bad }},
			{Name: rpcFallbackName, InProcess: func() sdk.Transport { return w.slow.New("a:1") }},
		},
	}, withCarrier(w.network.Carrier("a:1")), WithLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))))
	if err == nil {
		w.shut(e)
	}
	return log.String()
}

// wrongSetting is a transport that a person has to change something about.
type wrongSetting struct{ sdk.Transport }

func (wrongSetting) Configure(context.Context, sdk.Config) (sdk.Setup, error) {
	return sdk.Setup{}, sdk.Errorf(sdk.InvalidArgument, "no such address")
}

func TestAQuarantineIsLoggedOnce(t *testing.T) {
	run(t, func(w *world) {
		log := w.errorsLogged(context.Background(), wrongSetting{w.fast.New("b:1")})
		if n := strings.Count(log, "\n"); n != 1 || !strings.Contains(log, "transport=bad") || !strings.Contains(log, "retry=") {
			t.Errorf("%d lines: %s", n, log)
		}
	})
}

// stuckStart takes until it is told to stop.
type stuckStart struct{ sdk.Transport }

func (stuckStart) Configure(ctx context.Context, _ sdk.Config) (sdk.Setup, error) {
	<-ctx.Done()
	return sdk.Setup{}, ctx.Err()
}

func TestAnInterruptedOpenIsNoTransportsFault(t *testing.T) {
	run(t, func(w *world) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		if log := w.errorsLogged(ctx, stuckStart{w.fast.New("b:1")}); log != "" {
			t.Error(log)
		}
	})
}

// What answers there is no engine: each notification says so, not only the
// first.
func TestAForeignAddressIsTheReason(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	address := web.Listener.Addr().String()
	fabric := sdktest.NewFabric(sdktest.FabricOptions{Name: "fast"})
	e, err := Open(t.Context(), Config{
		Node:       NodeConfig{Name: "a"},
		Transports: []TransportConfig{{Name: "fast", InProcess: func() sdk.Transport { return fabric.New("a") }}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close(context.Background())
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		d, err := e.Notify(ctx, address, Notification{Name: "x"})
		if err != nil {
			t.Fatal(err)
		}
		<-d.Done()
		cancel()
		says(t, d.Err(), []Code{NotSent, DeadlineExceeded},
			[]string{"no Hawser engine answers at " + address + " (it speaks something else): check the address"},
			[]string{"not up at the peer", "rpc error", "silent"})
	}
}
