package sdk_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"github.com/hawser-transport/hawser/sdk"
)

// echo is a transport whose peer sends every frame back. The path of an
// endpoint says what goes wrong with it.
type echo struct {
	mu        sync.Mutex
	endpoints map[*echoEndpoint]bool
	closed    bool
	listeners map[string]net.Listener
	configure func(sdk.Config) (sdk.Setup, error)
	maxFrame  int
}

// Paths that go wrong.
const (
	pathRefuse  = "refuse"  // Connect fails as Refused
	pathPlain   = "plain"   // Connect fails without a code
	pathBlock   = "block"   // Connect waits for its context
	pathEarly   = "early"   // frames and an end before Connect returns
	pathTwo     = "two"     // Send takes two frames of each call
	pathTooLong = "toolong" // an offer over the limit
	pathTwice   = "twice"   // exchanges twice
	pathHold    = "hold"    // no outcomes
	pathPrint   = "print"   // prints rubbish on standard output
	pathPanic   = "panic"   // panics in Send
	pathQuiet   = "quiet"   // outcomes, and no frames
)

func newEcho() *echo { return &echo{endpoints: map[*echoEndpoint]bool{}, maxFrame: 200_000} }

func (e *echo) Describe() sdk.Description {
	return sdk.Description{
		Name: "echo", Version: "1.2.3", Contract: sdk.ContractVersion,
		Features:     []sdk.Feature{sdk.FeatureNotify, sdk.FeatureProbe, sdk.FeatureDrain},
		Limits:       sdk.Limits{MaxFrame: e.maxFrame},
		ConfigSchema: json.RawMessage(`{"type":"object"}`),
		SharedDevice: true,
		Listeners:    []sdk.ListenerSpec{{Name: "a", Key: "listen", Default: "127.0.0.1:0"}},
	}
}

func (e *echo) Configure(ctx context.Context, cfg sdk.Config) (sdk.Setup, error) {
	if e.configure != nil {
		return e.configure(cfg)
	}
	cfg.Log.Info("configured", "instance", cfg.Instance)
	attrs := sdk.Attributes{"settings": string(cfg.Settings), "incarnation": cfg.Incarnation.String()}
	for name, l := range cfg.Listeners {
		attrs["listener."+name] = l.Addr().String()
	}
	e.mu.Lock()
	e.listeners = cfg.Listeners
	e.mu.Unlock()
	return sdk.Setup{Attributes: attrs, Paths: []sdk.LocalPath{{Name: "lo", Detail: "loop"}}}, nil
}

func (e *echo) Close(context.Context) error {
	e.mu.Lock()
	e.closed = true
	var all []*echoEndpoint
	for ep := range e.endpoints {
		all = append(all, ep)
	}
	for _, l := range e.listeners {
		_ = l.Close()
	}
	e.mu.Unlock()
	for _, ep := range all {
		ep.Close()
		<-ep.done
	}
	return nil
}

// taken is how many frames its endpoints were given.
func (e *echo) taken() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for ep := range e.endpoints {
		ep.mu.Lock()
		n += ep.taken
		ep.mu.Unlock()
	}
	return n
}

func (e *echo) Paths(remote sdk.Attributes) ([]string, error) {
	if remote["bad"] != "" {
		return nil, sdk.Errorf(sdk.InvalidArgument, "bad attributes")
	}
	return []string{"main", remote["extra"]}, nil
}

func (e *echo) Probe(ctx context.Context, t sdk.Target) error {
	if t.Path == pathBlock {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (e *echo) Drain(context.Context) error { return sdk.Errorf(sdk.Busy, "busy draining") }

func (e *echo) Connect(ctx context.Context, t sdk.Target, exchange sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	switch t.Path {
	case pathRefuse:
		return nil, sdk.Errorf(sdk.Refused, "no")
	case pathPlain:
		return nil, errors.New("plain")
	case pathBlock:
		<-ctx.Done()
		return nil, sdk.Errorf(sdk.Unavailable, "gave up: %w", ctx.Err())
	case pathTooLong:
		_, err := exchange(ctx, make([]byte, 70_000))
		return nil, err
	case pathEarly:
		h.Received([][]byte{[]byte("early")})
		h.Ended(sdk.Errorf(sdk.PeerRestarted, "early end"))
		return endedEndpoint{}, nil
	case pathPrint:
		fmt.Println("rubbish through fmt")
		_, _ = os.NewFile(1, "stdout").WriteString("rubbish on descriptor 1\n")
	}
	answer, err := exchange(ctx, []byte("offer:"+t.PeerName+t.PeerIdentity))
	if err != nil {
		return nil, err
	}
	if t.Path == pathTwice {
		_, err := exchange(ctx, nil)
		return nil, err
	}
	h.Received([][]byte{answer})
	return e.start(t.Path, h), nil
}

func (e *echo) Accept(ctx context.Context, t sdk.Target, offer []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
	switch t.Path {
	case pathRefuse:
		return nil, nil, sdk.Errorf(sdk.Busy, "no room")
	case pathTooLong:
		return e.start(t.Path, h), make([]byte, 70_000), nil
	}
	return e.start(t.Path, h), append([]byte("answer to "), offer...), nil
}

type endedEndpoint struct{}

func (endedEndpoint) Send([]sdk.Frame, bool) (int, error) { return 0, sdk.Closed }
func (endedEndpoint) Close()                              {}

// echoEndpoint works on a goroutine of its own.
type echoEndpoint struct {
	e    *echo
	path string
	h    sdk.Handler
	done chan struct{}

	mu     sync.Mutex
	wake   *sync.Cond
	queue  []sdk.Frame
	taken  int
	closed bool
}

func (e *echo) start(path string, h sdk.Handler) *echoEndpoint {
	ep := &echoEndpoint{e: e, path: path, h: h, done: make(chan struct{})}
	ep.wake = sync.NewCond(&ep.mu)
	e.mu.Lock()
	e.endpoints[ep] = true
	e.mu.Unlock()
	go ep.run()
	return ep
}

func (ep *echoEndpoint) Send(frames []sdk.Frame, _ bool) (int, error) {
	if ep.path == pathPanic {
		panic("the transport is broken")
	}
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.closed {
		return 0, sdk.Closed
	}
	var err error
	if ep.path == pathTwo && len(frames) > 2 {
		frames, err = frames[:2], sdk.Errorf(sdk.Busy, "two are enough")
	}
	for _, f := range frames {
		ep.queue = append(ep.queue, sdk.Frame{ID: f.ID, Data: append([]byte(nil), f.Data...)})
	}
	ep.taken += len(frames)
	ep.wake.Signal()
	return len(frames), err
}

func (ep *echoEndpoint) Close() {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	ep.closed = true
	ep.wake.Signal()
}

func (ep *echoEndpoint) run() {
	defer close(ep.done)
	for {
		ep.mu.Lock()
		for len(ep.queue) == 0 && !ep.closed {
			ep.wake.Wait()
		}
		queue := ep.queue
		ep.queue = nil
		closed := ep.closed
		ep.mu.Unlock()
		var done []sdk.Completion
		var back [][]byte
		for _, f := range queue {
			done = append(done, sdk.Completion{ID: f.ID, Outcome: sdk.Done})
			back = append(back, f.Data)
		}
		if len(queue) > 0 && ep.path != pathHold {
			ep.h.Completed(done)
			if ep.path != pathQuiet {
				ep.h.Received(back)
			}
		}
		if closed {
			ep.e.mu.Lock()
			delete(ep.e.endpoints, ep)
			ep.e.mu.Unlock()
			ep.h.Ended(sdk.Closed)
			return
		}
	}
}

// recorder is a Handler that checks the contract and keeps what it gets.
type recorder struct {
	mu       sync.Mutex
	changed  chan struct{}
	results  []sdk.Completion
	frames   [][]byte
	ended    error
	ends     int
	inside   bool
	breaches []string
}

func newRecorder() *recorder { return &recorder{changed: make(chan struct{})} }

func (r *recorder) enter(what string) func() {
	r.mu.Lock()
	if r.inside {
		r.breaches = append(r.breaches, what+" while another method runs")
	}
	if r.ends > 0 {
		r.breaches = append(r.breaches, what+" after the end")
	}
	r.inside = true
	r.mu.Unlock()
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.inside = false
		close(r.changed)
		r.changed = make(chan struct{})
	}
}

func (r *recorder) Completed(cs []sdk.Completion) {
	defer r.enter("Completed")()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, cs...)
}

func (r *recorder) Received(frames [][]byte) {
	defer r.enter("Received")()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range frames {
		r.frames = append(r.frames, append([]byte(nil), f...))
	}
}

func (r *recorder) Ended(err error) {
	defer r.enter("Ended")()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ends++
	r.ended = err
}

// await waits until the condition holds, which is checked at every call.
func (r *recorder) await(ctx context.Context, cond func(*recorder) bool) error {
	for {
		r.mu.Lock()
		ok, changed := cond(r), r.changed
		r.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			r.mu.Lock()
			defer r.mu.Unlock()
			return fmt.Errorf("%d results, %d frames, %d ends, breaches %v: %w", len(r.results), len(r.frames), r.ends, r.breaches, ctx.Err())
		}
	}
}

var _ io.Writer = (*testWriter)(nil)

// testWriter keeps what is written.
type testWriter struct {
	mu sync.Mutex
	b  []byte
}

func (w *testWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b = append(w.b, p...)
	return len(p), nil
}

func (w *testWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.b)
}
