package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/sdk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stub is a handler whose methods a test sets; those not set say so.
type stub struct {
	hello     func(context.Context, HelloRequest) (HelloReply, error)
	bootstrap func(context.Context, BootstrapRequest) (BootstrapReply, error)
	probe     func(context.Context, ProbeRequest) (ProbeReply, error)
	changed   func(context.Context, ChangeRequest) error
	goodbye   func(context.Context, GoodbyeRequest) error

	fence      func(context.Context, FenceRequest) error
	describe   func(context.Context, DescribeRequest) (DescribeReply, error)
	invalidate func(context.Context, InvalidateRequest) (InvalidateReply, error)
}

func (s *stub) Hello(ctx context.Context, q HelloRequest) (HelloReply, error) {
	if s.hello == nil {
		return HelloReply{}, errors.New("no hello")
	}
	return s.hello(ctx, q)
}

func (s *stub) Bootstrap(ctx context.Context, q BootstrapRequest) (BootstrapReply, error) {
	if s.bootstrap == nil {
		return BootstrapReply{}, errors.New("no bootstrap")
	}
	return s.bootstrap(ctx, q)
}

func (s *stub) Probe(ctx context.Context, q ProbeRequest) (ProbeReply, error) {
	if s.probe == nil {
		return ProbeReply{Node: node("b", 2)}, nil
	}
	return s.probe(ctx, q)
}

func (s *stub) Changed(ctx context.Context, q ChangeRequest) error {
	if s.changed == nil {
		return errors.New("no changed")
	}
	return s.changed(ctx, q)
}

func (s *stub) Goodbye(ctx context.Context, q GoodbyeRequest) error {
	if s.goodbye == nil {
		return errors.New("no goodbye")
	}
	return s.goodbye(ctx, q)
}

func incarnation(b byte) sdk.Incarnation {
	return sdk.Incarnation(bytes.Repeat([]byte{b}, 16))
}

func node(name string, b byte) Node {
	return Node{Name: name, Address: name + ":1", Incarnation: incarnation(b), Started: time.Unix(1000, int64(b))}
}

func someTransports() []Transport {
	return []Transport{
		{Name: "tcp", Instance: 3, Attributes: sdk.Attributes{"address": "127.0.0.1:9", "raw": "\xff\x00", "": ""}, MaxFrame: 65536},
		{Name: "mnnvl", Instance: 4, Down: []string{"p0", "p1"}, Lost: []Lost{{"p0", 7}, {"p2", 1 << 63}}},
	}
}

func someHello() HelloRequest {
	return HelloRequest{From: node("a", 1), Proto: 2, Session: 7, Replaces: 6, Transports: someTransports(), Version: 9}
}

func someHelloReply() HelloReply {
	return HelloReply{Node: node("b", 2), Proto: 1, Session: 7, Room: Room{Seq: 4096, Bytes: 1 << 40},
		Transports: someTransports(), Version: 5}
}

func someBootstrap() BootstrapRequest {
	return BootstrapRequest{From: incarnation(1), To: incarnation(2), Transport: "tcp", FromInstance: 1, ToInstance: 2,
		Path: "127.0.0.1:9", Generation: 5, Offer: []byte{0, 0xff}}
}

// world makes carriers of one kind. at names an engine; the address that
// Listen returns is what others dial.
type world interface {
	carrier(t *testing.T, at string) Carrier
}

type memoryWorld struct{ *Network }

func (w memoryWorld) carrier(t *testing.T, at string) Carrier { return w.Carrier(at) }

// eachCarrier runs a test over every carrier.
func eachCarrier(t *testing.T, f func(t *testing.T, w world)) {
	t.Run("memory", func(t *testing.T) { f(t, memoryWorld{NewNetwork()}) })
	t.Run("grpc", func(t *testing.T) { f(t, grpcWorld{}) })
}

// pair makes a server with handler h and a client of it.
func pair(t *testing.T, w world, h Handler) (Client, Carrier) {
	t.Helper()
	a, b := w.carrier(t, "a"), w.carrier(t, "b")
	address, err := b.Listen(h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeCarrier(t, a); closeCarrier(t, b) })
	return a.Dial(address), b
}

func closeCarrier(t *testing.T, c Carrier) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		t.Error(err)
	}
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func equal(t *testing.T, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestCallsCarryEverything(t *testing.T) {
	eachCarrier(t, func(t *testing.T, w world) {
		var mu sync.Mutex
		got := map[string]any{}
		keep := func(name string, v any) {
			mu.Lock()
			defer mu.Unlock()
			got[name] = v
		}
		h := &stub{
			hello: func(ctx context.Context, q HelloRequest) (HelloReply, error) {
				if _, ok := ctx.Deadline(); !ok {
					t.Error("served without a deadline")
				}
				keep("hello", q)
				return someHelloReply(), nil
			},
			bootstrap: func(_ context.Context, q BootstrapRequest) (BootstrapReply, error) {
				keep("bootstrap", q)
				return BootstrapReply{Answer: []byte{1, 2}}, nil
			},
			probe: func(_ context.Context, q ProbeRequest) (ProbeReply, error) {
				keep("probe", q)
				return ProbeReply{Node: node("b", 2)}, nil
			},
			changed: func(_ context.Context, q ChangeRequest) error { keep("changed", q); return nil },
			goodbye: func(_ context.Context, q GoodbyeRequest) error { keep("goodbye", q); return nil },
		}
		c, _ := pair(t, w, h)
		ctx := context.Background() // the default deadline applies

		hr, err := c.Hello(ctx, someHello())
		if err != nil {
			t.Fatal(err)
		}
		equal(t, hr, someHelloReply())
		br, err := c.Bootstrap(ctx, someBootstrap())
		if err != nil {
			t.Fatal(err)
		}
		equal(t, br, BootstrapReply{Answer: []byte{1, 2}})
		pr, err := c.Probe(ctx, ProbeRequest{From: incarnation(1)})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, pr, ProbeReply{Node: node("b", 2)})
		change := ChangeRequest{From: incarnation(1), Transports: someTransports(), Version: 3}
		if err := c.Changed(ctx, change); err != nil {
			t.Fatal(err)
		}
		if err := c.Goodbye(ctx, GoodbyeRequest{From: incarnation(1)}); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		equal(t, got, map[string]any{"hello": someHello(), "bootstrap": someBootstrap(),
			"probe": ProbeRequest{From: incarnation(1)}, "changed": change, "goodbye": GoodbyeRequest{From: incarnation(1)}})
	})
}

// A message shares no memory between the two ends.
func TestMessagesAreCopied(t *testing.T) {
	eachCarrier(t, func(t *testing.T, w world) {
		answer := []byte{1}
		h := &stub{bootstrap: func(_ context.Context, q BootstrapRequest) (BootstrapReply, error) {
			q.Offer[0] = 99
			return BootstrapReply{Answer: answer}, nil
		}, hello: func(_ context.Context, q HelloRequest) (HelloReply, error) {
			q.Transports[0].Attributes["raw"] = "x"
			return someHelloReply(), nil
		}}
		c, _ := pair(t, w, h)
		q := someBootstrap()
		r, err := c.Bootstrap(testContext(t), q)
		if err != nil {
			t.Fatal(err)
		}
		r.Answer[0] = 99
		hq := someHello()
		if _, err := c.Hello(testContext(t), hq); err != nil {
			t.Fatal(err)
		}
		equal(t, answer, []byte{1})
		equal(t, q, someBootstrap())
		equal(t, hq, someHello())
	})
}

func TestHandlersErrorsCross(t *testing.T) {
	eachCarrier(t, func(t *testing.T, w world) {
		var reply error
		c, _ := pair(t, w, &stub{changed: func(context.Context, ChangeRequest) error { return reply }})
		call := func() error {
			return c.Changed(testContext(t), ChangeRequest{From: incarnation(1)})
		}
		for code := sdk.Unavailable; code.Valid(); code++ {
			reply = fmt.Errorf("wrapped: %w", sdk.Errorf(code, "because of %d", code))
			err := call()
			var e *sdk.Error
			if !errors.Is(err, code) || !errors.As(err, &e) || !Answered(err) || Silent(err) || Gone(err) {
				t.Errorf("%v: got %v (answered %v)", code, err, Answered(err))
			}
			if want := fmt.Sprintf("wrapped: because of %d", code); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %v does not say %q", code, err, want)
			}
		}
		for _, tt := range []struct {
			err  error
			want sdk.Code
		}{
			{errors.New("plain"), sdk.Refused},
			{sdk.Busy, sdk.Busy},
			{context.DeadlineExceeded, sdk.DeadlineExceeded},
			{&sdk.Error{Code: 200, Message: "odd"}, sdk.Refused},
			{&sdk.Error{}, sdk.Refused},
			// What another peer said to the handler is not news of this one.
			{peerGone("probe", "c", nil), sdk.Unavailable},
			{errors.New(strings.Repeat("\xff\n", 1<<20)), sdk.Refused},
		} {
			reply = tt.err
			err := call()
			if !errors.Is(err, tt.want) || !Answered(err) || Gone(err) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if len(err.Error()) > maxMessage+100 || strings.Contains(err.Error(), "\n") {
				t.Errorf("the message has %d bytes or a line break", len(err.Error()))
			}
		}
	})
}

func TestInvalidRequestsNeverReachTheHandler(t *testing.T) {
	eachCarrier(t, func(t *testing.T, w world) {
		c, _ := pair(t, w, &stub{hello: func(context.Context, HelloRequest) (HelloReply, error) {
			t.Error("the handler was called")
			return someHelloReply(), nil
		}})
		q := someHello()
		q.From.Incarnation = sdk.Incarnation{}
		_, err := c.Hello(testContext(t), q)
		if !errors.Is(err, sdk.InvalidArgument) || !strings.Contains(err.Error(), "from.incarnation is missing") {
			t.Errorf("got %v", err)
		}
	})
}

func TestInvalidReplies(t *testing.T) {
	eachCarrier(t, func(t *testing.T, w world) {
		var r HelloReply
		c, _ := pair(t, w, &stub{hello: func(context.Context, HelloRequest) (HelloReply, error) { return r, nil }})
		for _, tt := range []struct {
			change func(*HelloReply)
			say    string
		}{
			{func(r *HelloReply) { r.Proto = 3 }, "proto is 3"},
			{func(r *HelloReply) { r.Session = 0 }, "session is missing"},
			{func(r *HelloReply) { r.Node.Incarnation = sdk.Incarnation{} }, "node.incarnation is missing"},
			{func(r *HelloReply) { r.Transports[0].Instance = 0 }, "transports[0].instance is missing"},
		} {
			r = someHelloReply()
			tt.change(&r)
			_, err := c.Hello(testContext(t), someHello())
			if !errors.Is(err, sdk.Refused) || !Answered(err) || !strings.Contains(err.Error(), tt.say) {
				t.Errorf("got %v, want %q", err, tt.say)
			}
		}
	})
}

// Of a higher protocol the peer takes what it knows.
func TestHigherProtocolIsNoError(t *testing.T) {
	eachCarrier(t, func(t *testing.T, w world) {
		c, _ := pair(t, w, &stub{hello: func(_ context.Context, q HelloRequest) (HelloReply, error) {
			r := someHelloReply()
			r.Proto = min(q.Proto, 2)
			return r, nil
		}})
		q := someHello()
		q.Proto = 3
		r, err := c.Hello(testContext(t), q)
		if err != nil || r.Proto != 2 {
			t.Errorf("got %d, %v", r.Proto, err)
		}
	})
}

func TestSilenceIsNotAnAnswer(t *testing.T) {
	eachCarrier(t, func(t *testing.T, w world) {
		entered := make(chan struct{}, 2)
		c, _ := pair(t, w, &stub{changed: func(ctx context.Context, _ ChangeRequest) error {
			entered <- struct{}{}
			<-ctx.Done() // the caller's deadline, or its end, arrives here
			return ctx.Err()
		}})
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		err := c.Changed(ctx, ChangeRequest{From: incarnation(1)})
		<-entered
		// The server may be the first to see the deadline, and then says so.
		if !(errors.Is(err, sdk.Unavailable) && Silent(err)) && !(errors.Is(err, sdk.DeadlineExceeded) && Answered(err)) {
			t.Errorf("got %v", err)
		}

		ctx, cancel = context.WithCancel(testContext(t))
		go func() { <-entered; cancel() }()
		err = c.Changed(ctx, ChangeRequest{From: incarnation(1)})
		if !errors.Is(err, context.Canceled) || Silent(err) || Answered(err) || Gone(err) {
			t.Errorf("cancelled: got %v", err)
		}
	})
}

func TestGoneAndBack(t *testing.T) {
	eachCarrier(t, func(t *testing.T, w world) {
		c, server := pair(t, w, &stub{})
		q := ProbeRequest{From: incarnation(1)}
		if _, err := c.Probe(testContext(t), q); err != nil {
			t.Fatal(err)
		}
		closeCarrier(t, server)
		for range 3 {
			_, err := c.Probe(testContext(t), q)
			if !errors.Is(err, sdk.Unavailable) || !Gone(err) || Answered(err) || Silent(err) {
				t.Fatalf("got %v", err)
			}
		}
		again := w.carrier(t, "b")
		if g, ok := again.(*grpcCarrier); ok {
			g.options.Listen = server.(*grpcCarrier).address
		}
		if _, err := again.Listen(&stub{}); err != nil {
			t.Fatal(err)
		}
		defer closeCarrier(t, again)
		if _, err := c.Probe(testContext(t), q); err != nil { // at once, without a stale error
			t.Errorf("after it came back: %v", err)
		}
	})
}

func TestCloseEndsCalls(t *testing.T) {
	eachCarrier(t, func(t *testing.T, w world) {
		entered := make(chan struct{})
		h := &stub{changed: func(ctx context.Context, _ ChangeRequest) error {
			entered <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}}
		a, b := w.carrier(t, "a"), w.carrier(t, "b")
		address, err := b.Listen(h)
		if err != nil {
			t.Fatal(err)
		}
		call := func(c Client) chan error {
			done := make(chan error, 1)
			go func() { done <- c.Changed(context.Background(), ChangeRequest{From: incarnation(1)}) }()
			<-entered
			return done
		}
		c := a.Dial(address)
		first := call(c)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		second := call(a.Dial(address))
		closeCarrier(t, a)
		for _, done := range []chan error{first, second} {
			if err := <-done; !errors.Is(err, sdk.Closed) || Answered(err) || Silent(err) {
				t.Errorf("under way: got %v", err)
			}
		}
		for _, c := range []Client{c, a.Dial(address)} {
			if err := c.Goodbye(testContext(t), GoodbyeRequest{From: incarnation(1)}); !errors.Is(err, sdk.Closed) {
				t.Errorf("afterwards: got %v", err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		if _, err := a.Listen(h); !errors.Is(err, sdk.Closed) {
			t.Errorf("listen after close: %v", err)
		}
		closeCarrier(t, b)
		closeCarrier(t, b)
	})
}

// Close waits for the calls being served, but not longer than its context.
func TestCloseIsBounded(t *testing.T) {
	eachCarrier(t, func(t *testing.T, w world) {
		entered, release := make(chan struct{}), make(chan struct{})
		left := make(chan struct{})
		c, server := pair(t, w, &stub{changed: func(context.Context, ChangeRequest) error {
			close(entered)
			<-release
			close(left)
			return nil
		}})
		done := make(chan error, 1)
		go func() { done <- c.Changed(testContext(t), ChangeRequest{From: incarnation(1)}) }()
		<-entered
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		if err := server.Close(ctx); !errors.Is(err, sdk.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if err := <-done; Answered(err) || err == nil {
			t.Errorf("the call: %v", err)
		}
		close(release)
		<-left
	})
}

func TestServedCallsAreBounded(t *testing.T) {
	eachCarrier(t, func(t *testing.T, w world) {
		release := make(chan struct{})
		entered := make(chan struct{}, maxCalls)
		h := &stub{changed: func(context.Context, ChangeRequest) error {
			entered <- struct{}{}
			<-release
			return nil
		}}
		b := w.carrier(t, "b")
		address, err := b.Listen(h)
		if err != nil {
			t.Fatal(err)
		}
		defer closeCarrier(t, b)
		a := w.carrier(t, "a")
		defer closeCarrier(t, a)
		var wg sync.WaitGroup
		errs := make(chan error, maxCalls)
		// Several connections: the bound is the server's.
		for range 8 {
			c := a.Dial(address)
			for range maxCalls / 8 {
				wg.Go(func() { errs <- c.Changed(testContext(t), ChangeRequest{From: incarnation(1)}) })
			}
		}
		for range maxCalls {
			<-entered
		}
		if _, err := a.Dial(address).Probe(testContext(t), ProbeRequest{From: incarnation(1)}); !errors.Is(err, sdk.Busy) || !Answered(err) {
			t.Errorf("over the bound: %v", err)
		}
		close(release)
		wg.Wait()
		for range maxCalls {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
		if _, err := a.Dial(address).Probe(testContext(t), ProbeRequest{From: incarnation(1)}); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

func TestAddressInUse(t *testing.T) {
	eachCarrier(t, func(t *testing.T, w world) {
		_, server := pair(t, w, &stub{})
		other := w.carrier(t, "b")
		if g, ok := other.(*grpcCarrier); ok {
			g.options.Listen = server.(*grpcCarrier).address
		}
		defer closeCarrier(t, other)
		_, err := other.Listen(&stub{})
		if !errors.Is(err, sdk.Busy) || !strings.Contains(err.Error(), "in use") || !strings.Contains(err.Error(), "control.listen") {
			t.Errorf("got %v", err)
		}
		if _, err := server.Listen(&stub{}); !errors.Is(err, sdk.InvalidArgument) {
			t.Errorf("listening twice: %v", err)
		}
	})
}

func TestToOneself(t *testing.T) {
	eachCarrier(t, func(t *testing.T, w world) {
		c := w.carrier(t, "a")
		defer closeCarrier(t, c)
		address, err := c.Listen(&stub{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Dial(address).Probe(testContext(t), ProbeRequest{From: incarnation(1)}); err != nil {
			t.Error(err)
		}
	})
}
