//go:build linux

package sdk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/remote"
)

// boundary is a plugin's end and a host's end in one process.
type boundary struct {
	*remote.Transport
	server *grpc.Server
	gone   <-chan struct{} // the plugin's end of the link has ended
	log    *testWriter
}

// bothCarriers runs a test over each carrier.
func bothCarriers(t *testing.T, test func(t *testing.T, socket bool)) {
	t.Run("unix", func(t *testing.T) { test(t, true) })
	t.Run("grpc", func(t *testing.T) { test(t, false) })
}

func newBoundary(t testing.TB, tr sdk.Transport, socket bool) *boundary {
	t.Helper()
	b := &boundary{server: grpc.NewServer(sdk.MessageLimits(tr)...), log: &testWriter{}}
	log := slog.New(slog.NewTextHandler(b.log, nil))
	var host, theirs *net.UnixConn
	if socket {
		h, p, err := remote.SocketPair()
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.FileConn(p)
		_ = p.Close()
		if err != nil {
			t.Fatal(err)
		}
		host, theirs = h, c.(*net.UnixConn)
	}
	b.gone = sdk.ServeInProcess(b.server, tr, theirs, log)
	lis := bufconn.Listen(1 << 16)
	served := make(chan struct{})
	go func() { defer close(served); _ = b.server.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:boundary",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, exit := context.WithCancel(context.Background())
	raw, err := remote.Plugins("test")[remote.Name].(plugin.GRPCPlugin).GRPCClient(ctx, nil, conn)
	if err != nil {
		t.Fatal(err)
	}
	b.Transport = raw.(*remote.Transport)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = b.Close(ctx)
		exit()
		_ = conn.Close()
		b.server.Stop()
		<-served
		_ = tr.Close(ctx)
		<-b.gone
	})
	if err := b.Open(testContext(t), host, log); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *boundary) dial(t *testing.T, path string) (sdk.Endpoint, *recorder) {
	t.Helper()
	h := newRecorder()
	ep, err := b.Connect(testContext(t), sdk.Target{Path: path}, answering("hello"), h)
	if err != nil {
		t.Fatal(err)
	}
	return ep, h
}

func (r *recorder) check(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.breaches) > 0 {
		t.Error(r.breaches)
	}
	if r.ends > 1 {
		t.Errorf("%d ends", r.ends)
	}
}

func TestDescribeCrosses(t *testing.T) {
	bothCarriers(t, func(t *testing.T, socket bool) {
		e := newEcho()
		b := newBoundary(t, e, socket)
		want := e.Describe()
		want.Limits = want.Limits.WithDefaults()
		if got := b.Describe(); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v\nwant %+v", got, want)
		}
		if !socket && !strings.Contains(b.log.String(), "the link runs over gRPC") {
			t.Errorf("the lesser carrier is not in the log:\n%s", b.log)
		}
		if err := b.Open(testContext(t), nil, nil); !errors.Is(err, sdk.InvalidArgument) {
			t.Errorf("second Open: %v", err)
		}
	})
}

func TestConfigureCrosses(t *testing.T) {
	bothCarriers(t, func(t *testing.T, socket bool) {
		b := newBoundary(t, newEcho(), socket)
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		cfg := sdk.Config{
			Instance: 3, Incarnation: sdk.Incarnation{1, 2, 3}, Settings: []byte(`{"a":1}`),
			Listeners: map[string]net.Listener{"a": lis},
		}
		setup, err := b.Configure(testContext(t), cfg)
		if err != nil {
			t.Fatal(err)
		}
		want := sdk.Attributes{"settings": `{"a":1}`, "incarnation": cfg.Incarnation.String()}
		if socket {
			want["listener.a"] = lis.Addr().String()
		}
		if !reflect.DeepEqual(setup.Attributes, want) || !reflect.DeepEqual(setup.Paths, []sdk.LocalPath{{Name: "lo", Detail: "loop"}}) {
			t.Errorf("%+v", setup)
		}
		if _, err := lis.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("the host's copy of the listener is open: %v", err)
		}
		if socket {
			c, err := net.Dial("tcp", lis.Addr().String())
			if err != nil {
				t.Fatal(err) // the plugin's copy is not listening
			}
			_ = c.Close()
		}
		if _, err := b.Configure(testContext(t), sdk.Config{}); !errors.Is(err, sdk.InvalidArgument) {
			t.Errorf("second Configure: %v", err)
		}
	})
}

func TestConfigureErrors(t *testing.T) {
	big := make(sdk.Attributes)
	for i := range 65 {
		big[fmt.Sprint(i)] = ""
	}
	tests := []struct {
		name  string
		setup sdk.Setup
		err   error
		want  sdk.Code
		text  string
	}{
		{"coded", sdk.Setup{}, sdk.Errorf(sdk.Unsupported, "no device here"), sdk.Unsupported, "no device here"},
		{"plain", sdk.Setup{}, errors.New("plain"), sdk.Refused, "plain"},
		{"wrapped", sdk.Setup{}, fmt.Errorf("in: %w", sdk.Errorf(sdk.Busy, "busy")), sdk.Busy, "in: busy"},
		{"late", sdk.Setup{}, context.DeadlineExceeded, sdk.DeadlineExceeded, "deadline"},
		{"attributes", sdk.Setup{Attributes: big}, nil, sdk.InvalidArgument, "65 attributes"},
		{"long attribute", sdk.Setup{Attributes: sdk.Attributes{"a": strings.Repeat("x", 17<<10)}}, nil, sdk.InvalidArgument, "bytes of attributes"},
		{"local paths", sdk.Setup{Paths: make([]sdk.LocalPath, 300)}, nil, sdk.Refused, "local paths"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEcho()
			e.configure = func(sdk.Config) (sdk.Setup, error) { return tt.setup, tt.err }
			b := newBoundary(t, e, true)
			_, err := b.Configure(testContext(t), sdk.Config{})
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) || !strings.Contains(err.Error(), "plugin test") {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestFramesCross(t *testing.T) {
	bothCarriers(t, func(t *testing.T, socket bool) {
		b := newBoundary(t, newEcho(), socket)
		ctx := testContext(t)
		h := newRecorder()
		var offered []byte
		ep, err := b.Connect(ctx, sdk.Target{PeerName: "peer", PeerIdentity: " of identity"}, func(_ context.Context, offer []byte) ([]byte, error) {
			offered = offer
			return []byte("answer"), nil
		}, h)
		if err != nil {
			t.Fatal(err)
		}
		if string(offered) != "offer:peer of identity" {
			t.Errorf("offer %q", offered)
		}
		sent := [][]byte{[]byte("answer")} // the echo's first frame
		var frames []sdk.Frame
		for i := range 3000 {
			data := fmt.Appendf(nil, "frame %d", i)
			switch i {
			case 1000:
				data = nil
			case 2000:
				data = bytes.Repeat([]byte("x"), 200_000)
			}
			frames = append(frames, sdk.Frame{ID: uint64(i + 1), Data: data})
			sent = append(sent, data)
		}
		for rest, size := frames, 1; len(rest) > 0; size++ {
			n := min(size, len(rest))
			taken, err := ep.Send(rest[:n], size%3 == 0)
			if err != nil {
				t.Fatal(err)
			}
			rest = rest[taken:]
		}
		err = h.await(ctx, func(r *recorder) bool { return len(r.frames) == len(sent) && len(r.results) == len(frames) })
		if err != nil {
			t.Fatal(err)
		}
		for i := range sent {
			if !bytes.Equal(h.frames[i], sent[i]) {
				t.Fatalf("frame %d is %.20q", i, h.frames[i])
			}
		}
		seen := map[uint64]bool{}
		for _, c := range h.results {
			if c.Outcome != sdk.Done || c.Code != 0 || seen[c.ID] {
				t.Fatalf("%+v", c)
			}
			seen[c.ID] = true
		}
		if b.Progress() == 0 || b.Dropped() != 0 {
			t.Errorf("progress %d, dropped %d", b.Progress(), b.Dropped())
		}
		if err := b.Health(ctx); err != nil {
			t.Error(err)
		}
		ep.Close()
		ep.Close()
		if err := h.await(ctx, func(r *recorder) bool { return r.ends == 1 }); err != nil {
			t.Fatal(err)
		}
		if n, err := ep.Send([]sdk.Frame{{ID: 5000}}, false); n != 0 || !errors.Is(err, sdk.Closed) {
			t.Errorf("Send after the end: %d, %v", n, err)
		}
		h.check(t)
	})
}

func TestSendRefuses(t *testing.T) {
	bothCarriers(t, func(t *testing.T, socket bool) {
		b := newBoundary(t, newEcho(), socket)
		ctx := testContext(t)
		ep, h := b.dial(t, "main")
		n, err := ep.Send([]sdk.Frame{{ID: 1}, {ID: 2, Data: make([]byte, 200_001)}, {ID: 3}}, false)
		if n != 1 || !errors.Is(err, sdk.TooLarge) || !strings.Contains(err.Error(), "200000") {
			t.Errorf("%d, %v", n, err)
		}
		if n, err := ep.Send([]sdk.Frame{{ID: 1}}, false); n != 0 || !errors.Is(err, sdk.InvalidArgument) {
			t.Errorf("%d, %v", n, err)
		}
		if n, err := ep.Send([]sdk.Frame{{ID: 2}, {ID: 3}}, false); n != 2 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		if n, err := ep.Send(nil, false); n != 0 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		if err := h.await(ctx, func(r *recorder) bool { return len(r.results) == 3 }); err != nil {
			t.Error(err)
		}
	})
}

// TestLargestFrame: on either carrier the largest frame that the contract knows
// passes both ways among small ones, and one byte more does not.
func TestLargestFrame(t *testing.T) {
	bothCarriers(t, func(t *testing.T, socket bool) {
		e := newEcho()
		e.maxFrame = sdk.MaxFrameLimit
		b := newBoundary(t, e, socket)
		ctx := testContext(t)
		ep, h := b.dial(t, "main")
		large := make([]byte, sdk.MaxFrameLimit)
		for i := range large {
			large[i] = byte(i ^ i>>8 ^ i>>16)
		}
		if n, err := ep.Send([]sdk.Frame{{ID: 1, Data: make([]byte, sdk.MaxFrameLimit+1)}}, false); n != 0 || !errors.Is(err, sdk.TooLarge) {
			t.Errorf("one byte more: %d, %v", n, err)
		}
		frames := []sdk.Frame{{ID: 1, Data: []byte("before")}, {ID: 2, Data: large}, {ID: 3, Data: []byte("after")}}
		for len(frames) > 0 {
			n, err := ep.Send(frames, false)
			if err != nil && !errors.Is(err, sdk.Backpressure) {
				t.Fatal(err)
			}
			if frames = frames[n:]; n == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		if err := h.await(ctx, func(r *recorder) bool { return len(r.results) == 3 && len(r.frames) == 4 }); err != nil {
			t.Fatal(err)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if !slices.ContainsFunc(h.frames, func(f []byte) bool { return bytes.Equal(f, large) }) {
			t.Error("the largest frame did not come back as it was")
		}
	})
}

func TestNotPosted(t *testing.T) {
	bothCarriers(t, func(t *testing.T, socket bool) {
		b := newBoundary(t, newEcho(), socket)
		ep, h := b.dial(t, pathTwo)
		frames := make([]sdk.Frame, 5)
		for i := range frames {
			frames[i].ID = uint64(i + 1)
		}
		if _, err := ep.Send(frames, false); err != nil {
			t.Fatal(err)
		}
		if err := h.await(testContext(t), func(r *recorder) bool { return len(r.results) == 5 }); err != nil {
			t.Fatal(err)
		}
		for _, c := range h.results {
			want := sdk.Completion{ID: c.ID, Outcome: sdk.Done}
			if c.ID > 2 {
				want = sdk.Completion{ID: c.ID, Outcome: sdk.NotPosted, Code: sdk.Busy}
			}
			if c != want {
				t.Errorf("%+v", c)
			}
		}
	})
}

func TestConnectFails(t *testing.T) {
	mine := errors.New("mine")
	tests := []struct {
		path     string
		exchange sdk.Exchange
		want     sdk.Code
		text     string
		cause    error
	}{
		{pathRefuse, answering(""), sdk.Refused, "plugin test: connect: no", nil},
		{pathPlain, answering(""), sdk.Refused, "plain", nil},
		{pathTooLong, answering(""), sdk.TooLarge, "offer of 70000 bytes", nil},
		{pathTwice, answering(""), sdk.InvalidArgument, "called twice", nil},
		{"main", answering(strings.Repeat("x", 70_000)), sdk.TooLarge, "answer of 70000 bytes", nil},
		{"main", func(context.Context, []byte) ([]byte, error) {
			return nil, sdk.Errorf(sdk.Unavailable, "peer: %w", mine)
		}, sdk.Unavailable, "peer: mine", mine},
	}
	bothCarriers(t, func(t *testing.T, socket bool) {
		b := newBoundary(t, newEcho(), socket)
		for _, tt := range tests {
			h := newRecorder()
			ep, err := b.Connect(testContext(t), sdk.Target{Path: tt.path}, tt.exchange, h)
			if ep != nil || !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%s: %v", tt.path, err)
			}
			if tt.cause != nil && !errors.Is(err, tt.cause) {
				t.Errorf("%s: the cause is lost: %v", tt.path, err)
			}
			if h.ends != 0 {
				t.Errorf("%s: an endpoint that never was has ended", tt.path)
			}
		}
		h := newRecorder()
		ctx, cancel := context.WithTimeout(testContext(t), 50*time.Millisecond)
		defer cancel()
		if _, err := b.Connect(ctx, sdk.Target{Path: pathBlock}, answering(""), h); !errors.Is(err, sdk.DeadlineExceeded) && !errors.Is(err, sdk.Unavailable) {
			t.Errorf("block: %v", err) // the host's deadline, or the plugin's answer to the same one
		}
		if err := b.Health(testContext(t)); err != nil {
			t.Errorf("after all that: %v", err)
		}
	})
}

// TestConnectGivenUp lets the host leave while the peer's answer is awaited:
// the plugin must not keep an endpoint.
func TestConnectGivenUp(t *testing.T) {
	bothCarriers(t, func(t *testing.T, socket bool) {
		e := newEcho()
		b := newBoundary(t, e, socket)
		ctx, cancel := context.WithCancel(testContext(t))
		_, err := b.Connect(ctx, sdk.Target{}, func(context.Context, []byte) ([]byte, error) {
			cancel()
			return []byte("too late"), nil
		}, newRecorder())
		if !errors.Is(err, sdk.DeadlineExceeded) || !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		if err := b.Health(testContext(t)); err != nil {
			t.Error(err)
		}
	})
}

func TestEarlyFramesAndEnd(t *testing.T) {
	bothCarriers(t, func(t *testing.T, socket bool) {
		b := newBoundary(t, newEcho(), socket)
		ep, h := b.dial(t, pathEarly)
		if err := h.await(testContext(t), func(r *recorder) bool { return r.ends == 1 }); err != nil {
			t.Fatal(err)
		}
		if len(h.frames) != 1 || !errors.Is(h.ended, sdk.PeerRestarted) || !strings.Contains(h.ended.Error(), "early end") {
			t.Errorf("%q, %v", h.frames, h.ended)
		}
		if _, err := ep.Send([]sdk.Frame{{ID: 1}}, false); !errors.Is(err, sdk.Closed) {
			t.Errorf("%v", err)
		}
		h.check(t)
	})
}

func TestAcceptCrosses(t *testing.T) {
	bothCarriers(t, func(t *testing.T, socket bool) {
		b := newBoundary(t, newEcho(), socket)
		ctx := testContext(t)
		h := newRecorder()
		ep, answer, err := b.Accept(ctx, sdk.Target{Path: "main"}, []byte("you"), h)
		if err != nil || string(answer) != "answer to you" {
			t.Fatalf("%q, %v", answer, err)
		}
		if _, err := ep.Send([]sdk.Frame{{ID: 1, Data: []byte("a")}}, false); err != nil {
			t.Fatal(err)
		}
		if err := h.await(ctx, func(r *recorder) bool { return len(r.frames) == 1 }); err != nil {
			t.Error(err)
		}
		if _, _, err := b.Accept(ctx, sdk.Target{Path: pathRefuse}, nil, newRecorder()); !errors.Is(err, sdk.Busy) {
			t.Errorf("%v", err)
		}
		if _, _, err := b.Accept(ctx, sdk.Target{Path: pathTooLong}, nil, newRecorder()); !errors.Is(err, sdk.TooLarge) {
			t.Errorf("%v", err)
		}
		if _, _, err := b.Accept(ctx, sdk.Target{}, make([]byte, 70_000), newRecorder()); !errors.Is(err, sdk.InvalidArgument) {
			t.Errorf("%v", err)
		}
	})
}

func TestAbilities(t *testing.T) {
	b := newBoundary(t, newEcho(), true)
	ctx := testContext(t)
	paths, err := b.Paths(sdk.Attributes{"extra": "side"})
	if err != nil || strings.Join(paths, " ") != "main side" {
		t.Errorf("%q, %v", paths, err)
	}
	if _, err := b.Paths(sdk.Attributes{"bad": "1"}); !errors.Is(err, sdk.InvalidArgument) {
		t.Errorf("%v", err)
	}
	if _, err := b.Paths(sdk.Attributes{"extra": "main"}); !errors.Is(err, sdk.Refused) || !strings.Contains(err.Error(), "listed twice") {
		t.Errorf("%v", err)
	}
	if err := b.Probe(ctx, sdk.Target{}); err != nil {
		t.Error(err)
	}
	short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	if err := b.Probe(short, sdk.Target{Path: pathBlock}); !errors.Is(err, sdk.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if err := b.Drain(ctx); !errors.Is(err, sdk.Busy) || !strings.Contains(err.Error(), "busy draining") {
		t.Errorf("%v", err)
	}
}

// mute is a transport without abilities that says it has them, or has them
// and does not say so.
type mute struct {
	*echo
	features []sdk.Feature
}

func (m mute) Describe() sdk.Description {
	return sdk.Description{Name: "mute", Contract: sdk.ContractVersion, Features: m.features}
}

type bare struct{ sdk.Transport }

func TestAbsentAbilities(t *testing.T) {
	for name, tr := range map[string]sdk.Transport{
		"not listed":      mute{echo: newEcho()},
		"not implemented": bare{mute{echo: newEcho(), features: []sdk.Feature{sdk.FeatureNotify, sdk.FeatureProbe, sdk.FeatureDrain}}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBoundary(t, tr, true)
			ctx := testContext(t)
			_, paths := b.Paths(nil)
			_, connect := b.Connect(ctx, sdk.Target{}, answering(""), newRecorder())
			_, _, accept := b.Accept(ctx, sdk.Target{}, nil, newRecorder())
			for i, err := range []error{paths, connect, accept, b.Probe(ctx, sdk.Target{}), b.Drain(ctx)} {
				if !errors.Is(err, sdk.Unsupported) {
					t.Errorf("%d: %v", i, err)
				}
			}
		})
	}
}

// stuck is a transport whose Send breaks the contract and blocks.
type stuck struct {
	*echo
	release chan struct{}
	entered chan struct{}
	once    sync.Once
}

type stuckEndpoint struct {
	sdk.Endpoint
	s *stuck
}

func newStuck() *stuck {
	return &stuck{echo: newEcho(), release: make(chan struct{}), entered: make(chan struct{})}
}

func (s *stuck) Connect(ctx context.Context, t sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	ep, err := s.echo.Connect(ctx, t, x, h)
	return stuckEndpoint{ep, s}, err
}

func (e stuckEndpoint) Send(frames []sdk.Frame, more bool) (int, error) {
	e.s.once.Do(func() { close(e.s.entered) })
	<-e.s.release
	return e.Endpoint.Send(frames, more)
}

func TestBackpressure(t *testing.T) {
	bothCarriers(t, func(t *testing.T, socket bool) {
		s := newStuck()
		b := newBoundary(t, s, socket)
		ctx := testContext(t)
		ep, h := b.dial(t, "main")
		var id uint64
		data := make([]byte, 100_000)
		for {
			n, err := ep.Send([]sdk.Frame{{ID: id + 1, Data: data}, {ID: id + 2, Data: data}}, false)
			id += uint64(n)
			if err != nil {
				if !errors.Is(err, sdk.Backpressure) || n == 2 {
					t.Fatal(n, err)
				}
				break
			}
			if id > 1000 {
				t.Fatal("no limit")
			}
		}
		<-s.entered
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		if err := b.Health(short); !errors.Is(err, sdk.DeadlineExceeded) {
			t.Errorf("health of a stuck plugin: %v", err)
		}
		close(s.release)
		// The same frame goes again under the same id.
		for {
			n, err := ep.Send([]sdk.Frame{{ID: id + 1, Data: []byte("last")}}, false)
			if n == 1 {
				id++
				break
			}
			if !errors.Is(err, sdk.Backpressure) {
				t.Fatal(err)
			}
			h.mu.Lock()
			have := len(h.frames)
			h.mu.Unlock()
			_ = h.await(ctx, func(r *recorder) bool { return len(r.frames) > have || len(r.frames) >= int(id) })
		}
		if err := h.await(ctx, func(r *recorder) bool { return len(r.results) == int(id) && len(r.frames) == int(id)+1 }); err != nil {
			t.Fatal(err)
		}
		if err := b.Health(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestCloseOfAStuckPlugin(t *testing.T) {
	bothCarriers(t, func(t *testing.T, socket bool) {
		s := newStuck()
		b := newBoundary(t, s, socket)
		ep, h := b.dial(t, "main")
		_, _ = ep.Send([]sdk.Frame{{ID: 1}}, false)
		<-s.entered
		ep.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		if err := b.Close(ctx); !errors.Is(err, sdk.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		h.mu.Lock()
		if h.ends != 1 || !errors.Is(h.ended, sdk.Closed) {
			t.Errorf("%d ends, %v", h.ends, h.ended)
		}
		h.mu.Unlock()
		close(s.release)
		h.check(t)
	})
}

func TestCloseEndsEverything(t *testing.T) {
	bothCarriers(t, func(t *testing.T, socket bool) {
		b := newBoundary(t, newEcho(), socket)
		var all []*recorder
		for range 20 {
			_, h := b.dial(t, "main")
			all = append(all, h)
		}
		if err := b.Close(testContext(t)); err != nil {
			t.Error(err)
		}
		for _, h := range all {
			if h.ends != 1 || !errors.Is(h.ended, sdk.Closed) {
				t.Errorf("%d ends, %v", h.ends, h.ended)
			}
			h.check(t)
		}
		<-b.Done()
		<-b.gone
		ctx := testContext(t)
		_, connect := b.Connect(ctx, sdk.Target{}, answering(""), newRecorder())
		_, configure := b.Configure(ctx, sdk.Config{})
		for i, err := range []error{b.Err(), connect, configure, b.Health(ctx), b.Probe(ctx, sdk.Target{})} {
			if !errors.Is(err, sdk.Closed) {
				t.Errorf("%d: %v", i, err)
			}
		}
		if err := b.Close(ctx); err != nil {
			t.Errorf("second Close: %v", err)
		}
	})
}

func TestTwoClose(t *testing.T) {
	b := newBoundary(t, newEcho(), true)
	_, h := b.dial(t, "main")
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if err := b.Close(testContext(t)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if h.ends != 1 || !errors.Is(h.ended, sdk.Closed) || strings.Contains(h.ended.Error(), "plugin test: closed:") {
		t.Errorf("%d ends, %v", h.ends, h.ended)
	}
}

// TestAbort gives up a plugin that is alive, and has to learn it.
func TestAbort(t *testing.T) {
	bothCarriers(t, func(t *testing.T, socket bool) {
		b := newBoundary(t, newEcho(), socket)
		_, h := b.dial(t, "main")
		b.Abort(errors.New("not reaped"))
		<-b.Done()
		<-b.gone
		if h.ends != 1 || !errors.Is(h.ended, sdk.PluginExited) || !strings.Contains(h.ended.Error(), "not reaped") {
			t.Errorf("%d ends, %v", h.ends, h.ended)
		}
		if err := b.Probe(testContext(t), sdk.Target{}); !errors.Is(err, sdk.PluginExited) || !strings.Contains(err.Error(), "not reaped") {
			t.Errorf("%v", err)
		}
	})
}

// TestManyAtOnce bootstraps, sends and closes from many goroutines.
func TestManyAtOnce(t *testing.T) {
	bothCarriers(t, func(t *testing.T, socket bool) {
		b := newBoundary(t, newEcho(), socket)
		ctx := testContext(t)
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for range 5 {
					h := newRecorder()
					ep, err := b.Connect(ctx, sdk.Target{Path: "main"}, answering("x"), h)
					if err != nil {
						t.Error(g, err)
						return
					}
					const n = 50
					for i := range n {
						if _, err := ep.Send([]sdk.Frame{{ID: uint64(i + 1), Data: []byte{byte(i)}}}, i%2 == 0); err != nil {
							t.Error(err)
						}
					}
					if err := h.await(ctx, func(r *recorder) bool { return len(r.results) == n && len(r.frames) == n+1 }); err != nil {
						t.Error(err)
					}
					ep.Close()
					if err := h.await(ctx, func(r *recorder) bool { return r.ends == 1 }); err != nil {
						t.Error(err)
					}
					h.check(t)
				}
			})
		}
		wg.Wait()
	})
}
