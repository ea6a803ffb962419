package sdktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// recorder is a testing.TB that takes note instead of failing the test.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failed   bool
	skipped  bool
	log      strings.Builder
	cleanups []func()
}

func (r *recorder) note(fail bool, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || fail
	r.log.WriteString(strings.TrimRight(text, "\n") + "\n")
}

func (r *recorder) Helper()                   {}
func (r *recorder) Log(args ...any)           { r.note(false, fmt.Sprintln(args...)) }
func (r *recorder) Logf(f string, a ...any)   { r.note(false, fmt.Sprintf(f, a...)) }
func (r *recorder) Error(args ...any)         { r.note(true, fmt.Sprintln(args...)) }
func (r *recorder) Errorf(f string, a ...any) { r.note(true, fmt.Sprintf(f, a...)) }
func (r *recorder) Fatal(args ...any)         { r.note(true, fmt.Sprintln(args...)); runtime.Goexit() }
func (r *recorder) Fatalf(f string, a ...any) { r.note(true, fmt.Sprintf(f, a...)); runtime.Goexit() }
func (r *recorder) FailNow()                  { r.note(true, "FailNow"); runtime.Goexit() }
func (r *recorder) Skip(args ...any)          { r.skipped = true; runtime.Goexit() }
func (r *recorder) Cleanup(f func())          { r.mu.Lock(); r.cleanups = append(r.cleanups, f); r.mu.Unlock() }

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// verdict runs one case of the suite and returns what it reported.
func verdict(t *testing.T, name string, h Harness) *recorder {
	t.Helper()
	i := slices.IndexFunc(cases, func(c testCase) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("no case %q", name)
	}
	rec := &recorder{TB: t}
	run := func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() {
				for _, f := range slices.Backward(rec.cleanups) {
					f()
				}
			}()
			cases[i].execute(rec, h)
		}()
		<-done
	}
	if h.bubble {
		synctest.Test(t, func(*testing.T) { run(); time.Sleep(2 * stuck) })
	} else {
		run()
	}
	return rec
}

// stuck is longer than the suite's patience with mutants.
const stuck = 6 * time.Second

// mutant is a transport with one defect, around a sound one.
type mutant struct {
	sdk.Transport
	sdk.Notifier
	sdk.Prober
	sdk.Drainer
	d defect
}

// defect changes what a mutant does. Unset ones change nothing.
type defect struct {
	describe func(sdk.Description) sdk.Description
	config   func(sdk.Config) sdk.Config
	setup    func(sdk.Setup) sdk.Setup
	close    func(sdk.Transport, context.Context) error
	paths    func([]string, error) ([]string, error)
	connect  func(n sdk.Notifier, ctx context.Context, t sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error)
	accept   func(n sdk.Notifier, ctx context.Context, t sdk.Target, offer []byte, h sdk.Handler) (sdk.Endpoint, []byte, error)
	// wrap goes around each endpoint's handler and endpoint.
	wrap  func(*mutantEnd)
	probe func(sdk.Prober, context.Context, sdk.Target) error
	drain func(sdk.Drainer, context.Context) error
}

func (m *mutant) Describe() sdk.Description {
	d := m.Transport.Describe()
	if m.d.describe != nil {
		d = m.d.describe(d)
	}
	return d
}

func (m *mutant) Configure(ctx context.Context, cfg sdk.Config) (sdk.Setup, error) {
	if m.d.config != nil {
		cfg = m.d.config(cfg)
	}
	s, err := m.Transport.Configure(ctx, cfg)
	if m.d.setup != nil {
		s = m.d.setup(s)
	}
	return s, err
}

func (m *mutant) Close(ctx context.Context) error {
	if m.d.close != nil {
		return m.d.close(m.Transport, ctx)
	}
	return m.Transport.Close(ctx)
}

func (m *mutant) Paths(remote sdk.Attributes) ([]string, error) {
	p, err := m.Notifier.Paths(remote)
	if m.d.paths != nil {
		return m.d.paths(p, err)
	}
	return p, err
}

func (m *mutant) Connect(ctx context.Context, t sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	e := m.end(h)
	connect := m.d.connect
	if connect == nil {
		connect = func(n sdk.Notifier, ctx context.Context, t sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
			return n.Connect(ctx, t, x, h)
		}
	}
	ep, err := connect(m.Notifier, ctx, t, x, e)
	return e.around(ep), err
}

func (m *mutant) Accept(ctx context.Context, t sdk.Target, offer []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
	e := m.end(h)
	accept := m.d.accept
	if accept == nil {
		accept = func(n sdk.Notifier, ctx context.Context, t sdk.Target, offer []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
			return n.Accept(ctx, t, offer, h)
		}
	}
	ep, answer, err := accept(m.Notifier, ctx, t, offer, e)
	return e.around(ep), answer, err
}

func (m *mutant) Probe(ctx context.Context, t sdk.Target) error {
	if m.d.probe != nil {
		return m.d.probe(m.Prober, ctx, t)
	}
	return m.Prober.Probe(ctx, t)
}

func (m *mutant) Drain(ctx context.Context) error {
	if m.d.drain != nil {
		return m.d.drain(m.Drainer, ctx)
	}
	return m.Drainer.Drain(ctx)
}

// mutantEnd is both sides of an endpoint; its functions begin as those of the
// sound one.
type mutantEnd struct {
	mu        sync.Mutex
	h         sdk.Handler
	inner     sdk.Endpoint
	send      func([]sdk.Frame, bool) (int, error)
	closes    func()
	completed func([]sdk.Completion)
	received  func([][]byte)
	ended     func(error)
	n         int
	kept      []sdk.Frame
}

func (m *mutant) end(h sdk.Handler) *mutantEnd {
	e := &mutantEnd{h: h}
	e.send = func(fs []sdk.Frame, more bool) (int, error) { return e.inner.Send(fs, more) }
	e.closes = func() { e.inner.Close() }
	e.completed, e.received, e.ended = h.Completed, h.Received, h.Ended
	if m.d.wrap != nil {
		m.d.wrap(e)
	}
	return e
}

func (e *mutantEnd) around(inner sdk.Endpoint) sdk.Endpoint {
	if inner == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.inner = inner
	return e
}

func (e *mutantEnd) Send(fs []sdk.Frame, more bool) (int, error) { return e.send(fs, more) }
func (e *mutantEnd) Close()                                      { e.closes() }
func (e *mutantEnd) Completed(cs []sdk.Completion)               { e.completed(cs) }
func (e *mutantEnd) Received(fs [][]byte)                        { e.received(fs) }
func (e *mutantEnd) Ended(err error)                             { e.ended(err) }

// every returns true each nth time.
func (e *mutantEnd) every(n int) bool {
	e.n++
	return e.n%n == 0
}

// mutants: each defect, the case that finds it, and a part of what it says.
// is makes the same defect each time, for those without a state.
func is(d defect) func() defect { return func() defect { return d } }

var mutants = []struct {
	name  string
	finds string
	says  string
	d     func() defect
}{
	{"name with capitals", "describe-is-valid", "is not 1 to 32", is(defect{
		describe: func(d sdk.Description) sdk.Description { d.Name = "TCP"; return d }})},
	{"another contract version", "describe-is-valid", "contract version", is(defect{
		describe: func(d sdk.Description) sdk.Description { d.Contract++; return d }})},
	{"frames over the limit of limits", "describe-is-valid", "MaxFrame", is(defect{
		describe: func(d sdk.Description) sdk.Description { d.Limits.MaxFrame = sdk.MaxFrameLimit + 1; return d }})},
	{"a schema that is none", "describe-schema", "the schema", is(defect{
		describe: func(d sdk.Description) sdk.Description { d.ConfigSchema = []byte(`{"type": 7}`); return d }})},
	{"a schema for anything", "describe-schema", "not an object", is(defect{
		describe: func(d sdk.Description) sdk.Description { d.ConfigSchema = []byte(`{}`); return d }})},
	{"changing description", "describe-is-constant", "Describe changed", func() defect {
		return defect{
			describe: func() func(d sdk.Description) sdk.Description {
				n := 0
				return func(d sdk.Description) sdk.Description { n++; d.Version = fmt.Sprint(n); return d }
			}()}
	}},
	{"fat attributes", "configure-setup-is-valid", "16 KiB", is(defect{
		setup: func(s sdk.Setup) sdk.Setup { s.Attributes["x"] = strings.Repeat("x", 20<<10); return s }})},
	{"no paths", "paths-are-stable", "Paths", is(defect{
		paths: func([]string, error) ([]string, error) { return nil, nil }})},
	{"paths to nowhere", "paths-of-useless-attributes", "Paths of", is(defect{
		paths: func([]string, error) ([]string, error) { return []string{"p0"}, nil }})},
	{"untold changes of paths", "paths-change", "nobody was told", is(defect{
		config: func(c sdk.Config) sdk.Config { c.PathsChanged = func() {}; return c }})},
	{"lost paths listed", "paths-change", "nobody was told", is(defect{
		paths: func(_ []string, err error) ([]string, error) { return []string{"p0", "p1"}, err }})},
	{"unstable paths", "paths-are-stable", "Paths changed", func() defect {
		return defect{
			paths: func() func(p []string, err error) ([]string, error) {
				n := 0
				return func(p []string, err error) ([]string, error) {
					n++
					return append([]string{fmt.Sprint("x", n)}, p...), err
				}
			}()}
	}},
	{"close without the ends", "end-transport-closes", "Ended was called 0 times", is(defect{
		wrap: func(e *mutantEnd) {
			e.ended = func(err error) { time.AfterFunc(time.Millisecond, func() { e.h.Ended(err) }) }
		}})},
	{"close is an error the second time", "close-without-configure", "Close of a", func() defect {
		return defect{
			close: func() func(t sdk.Transport, ctx context.Context) error {
				n := 0
				return func(t sdk.Transport, ctx context.Context) error {
					if n++; n > 1 {
						return errors.New("again")
					}
					return t.Close(ctx)
				}
			}()}
	}},
	{"exchange twice", "connect-exchange-error", "exchange more than once", is(defect{
		connect: func(n sdk.Notifier, ctx context.Context, t sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
			return n.Connect(ctx, t, func(ctx context.Context, offer []byte) ([]byte, error) {
				answer, err := x(ctx, offer)
				if err != nil {
					return x(ctx, offer)
				}
				return answer, err
			}, h)
		}})},
	{"exchange's code lost", "connect-exchange-error", "exchange failed with", is(defect{
		connect: func(n sdk.Notifier, ctx context.Context, t sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
			ep, err := n.Connect(ctx, t, x, h)
			if err != nil {
				return nil, sdk.Errorf(sdk.InvalidArgument, "no")
			}
			return ep, nil
		}})},
	{"end without an endpoint", "connect-exchange-error", "although there is no endpoint", is(defect{
		connect: func(n sdk.Notifier, ctx context.Context, t sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
			ep, err := n.Connect(ctx, t, x, h)
			if err != nil {
				h.Ended(err)
				return nil, err
			}
			return ep, nil
		}})},
	{"connect is deaf to its context", "connect-cancelled", "did not return", is(defect{
		connect: func(n sdk.Notifier, ctx context.Context, t sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
			return n.Connect(context.WithoutCancel(ctx), t, x, h)
		}})},
	{"context ends the endpoint", "connect-survives-its-context", "ended", is(defect{
		connect: func(n sdk.Notifier, ctx context.Context, t sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
			ep, err := n.Connect(ctx, t, x, h)
			if err == nil {
				context.AfterFunc(ctx, ep.Close)
			}
			return ep, err
		}})},
	{"one connect at a time", "connect-does-not-block-others", "did not return", func() defect {
		return defect{
			connect: func() func(n sdk.Notifier, ctx context.Context, t sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
				turn := make(chan struct{}, 1)
				return func(n sdk.Notifier, ctx context.Context, t sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
					turn <- struct{}{}
					defer func() { <-turn }()
					return n.Connect(ctx, t, x, h)
				}
			}()}
	}},
	{"accepts anything", "accept-refuses-garbage", "took garbage", is(defect{
		accept: func(n sdk.Notifier, ctx context.Context, t sdk.Target, offer []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
			ep, answer, err := n.Accept(ctx, t, offer, h)
			if err != nil {
				return deadEnd{h}, nil, nil
			}
			return ep, answer, nil
		}})},
	{"generation ignored", "accept-refuses-older-generation", "Accept took generation", is(defect{
		accept: func(n sdk.Notifier, ctx context.Context, t sdk.Target, offer []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
			ep, answer, err := n.Accept(ctx, t, offer, h)
			if errors.Is(err, sdk.Refused) {
				return deadEnd{h}, nil, nil
			}
			return ep, answer, err
		}})},
	{"nobody arrives, nobody cares", "accept-peer-never-arrives", "waited", is(defect{
		wrap: func(e *mutantEnd) {
			e.ended = func(err error) {
				if !errors.Is(err, sdk.Unavailable) {
					e.h.Ended(err)
				}
			}
		}})},
	{"refuses before the peer has arrived", "accept-holds-frames", "before the peer's arrival", is(defect{
		accept: func(n sdk.Notifier, ctx context.Context, t sdk.Target, offer []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
			e := h.(*mutantEnd)
			born := time.Now()
			e.send = func(fs []sdk.Frame, more bool) (int, error) {
				if time.Since(born) < time.Millisecond {
					return 0, sdk.Errorf(sdk.Closed, "not yet")
				}
				return e.inner.Send(fs, more)
			}
			return n.Accept(ctx, t, offer, h)
		}})},
	{"empty frames vanish", "send-sizes", "frames", is(defect{
		wrap: func(e *mutantEnd) {
			e.received = func(fs [][]byte) {
				e.h.Received(slices.DeleteFunc(fs, func(f []byte) bool { return len(f) == 0 }))
			}
		}})},
	{"cut at a NUL", "send-arbitrary-bytes", "arrived as", is(defect{
		wrap: func(e *mutantEnd) {
			e.received = func(fs [][]byte) {
				for i, f := range fs {
					fs[i], _, _ = bytes.Cut(f, []byte{0})
				}
				e.h.Received(fs)
			}
		}})},
	{"too large is taken", "send-too-large", "want 1", is(defect{
		wrap: func(e *mutantEnd) {
			e.send = func(fs []sdk.Frame, more bool) (int, error) {
				n, err := e.inner.Send(fs, more)
				if errors.Is(err, sdk.TooLarge) {
					return len(fs), nil
				}
				return n, err
			}
		}})},
	{"too large blames the batch", "send-too-large", "want 1", is(defect{
		wrap: func(e *mutantEnd) {
			e.send = func(fs []sdk.Frame, more bool) (int, error) {
				for _, f := range fs {
					if len(f.Data) > 65536 {
						return 0, sdk.Errorf(sdk.TooLarge, "one of them")
					}
				}
				return e.inner.Send(fs, more)
			}
		}})},
	{"batches are reversed", "send-keeps-order", "arrived as", is(defect{
		wrap: func(e *mutantEnd) {
			e.received = func(fs [][]byte) { slices.Reverse(fs); e.h.Received(fs) }
		}})},
	{"frames kept by reference", "send-copies", "arrived as", is(defect{
		wrap: func(e *mutantEnd) {
			e.send = func(fs []sdk.Frame, more bool) (int, error) {
				if len(e.kept) == 0 {
					e.kept = slices.Clone(fs) // and not their data
					return len(fs), nil
				}
				if n, err := e.inner.Send(e.kept, more); n < len(e.kept) {
					return 0, err
				}
				e.kept = nil
				return e.inner.Send(fs, more)
			}
		}})},
	{"more means for ever", "send-more-is-not-for-ever", "waited", is(defect{
		wrap: func(e *mutantEnd) {
			e.send = func(fs []sdk.Frame, more bool) (int, error) {
				for _, f := range fs {
					e.kept = append(e.kept, sdk.Frame{ID: f.ID, Data: bytes.Clone(f.Data)})
				}
				if more {
					return len(fs), nil
				}
				_, err := e.inner.Send(e.kept, false)
				e.kept = nil
				return len(fs), err
			}
		}})},
	{"send after the end succeeds", "send-after-close", "Send after the end", is(defect{
		wrap: func(e *mutantEnd) {
			e.send = func(fs []sdk.Frame, more bool) (int, error) {
				n, err := e.inner.Send(fs, more)
				if errors.Is(err, sdk.Closed) {
					return len(fs), nil
				}
				return n, err
			}
		}})},
	{"send waits for the peer", "send-does-not-block", "did not return", is(defect{
		wrap: func(e *mutantEnd) {
			e.send = func(fs []sdk.Frame, more bool) (int, error) {
				n, err := e.inner.Send(fs, more)
				if !errors.Is(err, sdk.Backpressure) && n > 0 {
					time.Sleep(stuck)
				}
				return n, err
			}
		}})},
	{"one frame in 500 is lost", "load-both-directions", "waited", is(defect{
		wrap: func(e *mutantEnd) {
			e.received = func(fs [][]byte) {
				e.h.Received(slices.DeleteFunc(fs, func([]byte) bool { return e.every(500) }))
			}
		}})},
	{"a completion is lost", "complete-exactly-once", "waited", is(defect{
		wrap: func(e *mutantEnd) {
			e.completed = func(cs []sdk.Completion) {
				e.h.Completed(slices.DeleteFunc(cs, func(sdk.Completion) bool { return e.every(100) }))
			}
		}})},
	{"a completion comes twice", "complete-exactly-once", "completed twice", is(defect{
		wrap: func(e *mutantEnd) {
			e.completed = func(cs []sdk.Completion) {
				e.h.Completed(append(cs, cs[0]))
			}
		}})},
	{"a completion of another frame", "complete-exactly-once", "never taken", is(defect{
		wrap: func(e *mutantEnd) {
			e.completed = func(cs []sdk.Completion) {
				cs[0].ID += 1 << 40
				e.h.Completed(cs)
			}
		}})},
	{"an outcome that is none", "complete-exactly-once", "outcome 9", is(defect{
		wrap: func(e *mutantEnd) {
			e.completed = func(cs []sdk.Completion) { cs[0].Outcome = 9; e.h.Completed(cs) }
		}})},
	{"unknown without a code", "complete-exactly-once", "without a code", is(defect{
		wrap: func(e *mutantEnd) {
			e.completed = func(cs []sdk.Completion) { cs[0].Outcome = sdk.Unknown; e.h.Completed(cs) }
		}})},
	{"done when it was sent", "done-needs-the-peer", "sent after the peer's end", is(defect{
		wrap: func(e *mutantEnd) { doneAtOnce(e) }})},
	{"done before the peer has arrived", "accept-holds-frames", "before the peer has arrived", is(defect{
		wrap: func(e *mutantEnd) { doneAtOnce(e) }})},
	{"the end overtakes frames", "done-is-delivered", "were received", is(defect{
		wrap: func(e *mutantEnd) {
			e.received = func(fs [][]byte) {
				e.h.Received(slices.DeleteFunc(fs, func([]byte) bool { return e.every(3) }))
			}
		}})},
	{"completions beside frames", "handler-one-call-at-a-time", "while another method ran", is(defect{
		wrap: func(e *mutantEnd) {
			e.received = func(fs [][]byte) {
				fs = slices.Clone(fs)
				for i := range fs {
					fs[i] = bytes.Clone(fs[i])
				}
				go e.h.Received(fs)
			}
		}})},
	{"close waits for the handler", "handler-may-call-back", "waited", is(defect{
		wrap: func(e *mutantEnd) {
			e.received = func(fs [][]byte) {
				e.mu.Lock()
				defer e.mu.Unlock()
				e.h.Received(fs)
			}
			e.closes = func() {
				if !e.mu.TryLock() {
					return // stands for a deadlock
				}
				defer e.mu.Unlock()
				e.inner.Close()
			}
		}})},
	{"a slow handler costs frames", "handler-slow-loses-nothing", "waited", is(defect{
		wrap: func(e *mutantEnd) {
			e.received = func(fs [][]byte) { e.h.Received(fs[:min(len(fs), 64)]) }
		}})},
	{"the end comes twice", "end-once-and-last", "after Ended", is(defect{
		wrap: func(e *mutantEnd) { e.ended = func(err error) { e.h.Ended(err); e.h.Ended(err) } }})},
	{"frames after the end", "end-once-and-last", "Received was called after Ended", is(defect{
		wrap: func(e *mutantEnd) {
			e.ended = func(err error) { e.h.Ended(err); e.h.Received([][]byte{{1}}) }
		}})},
	{"close twice ends twice", "end-close-is-idempotent", "Ended was called after Ended", is(defect{
		wrap: func(e *mutantEnd) {
			e.closes = func() {
				e.mu.Lock()
				defer e.mu.Unlock()
				if e.n++; e.n == 5 {
					e.h.Ended(sdk.Closed)
				}
				e.inner.Close()
			}
		}})},
	{"the end has no code", "end-peer-closes", "without a code", is(defect{
		wrap: func(e *mutantEnd) { e.ended = func(error) { e.h.Ended(errors.New("gone")) } }})},
	{"own close looks like a fault", "send-after-close", "want closed", is(defect{
		wrap: func(e *mutantEnd) { e.ended = func(error) { e.h.Ended(sdk.Unavailable) } }})},
	{"the peer's close goes unnoticed", "end-peer-closes", "waited", is(defect{
		wrap: func(e *mutantEnd) {
			e.ended = func(err error) {
				if !errors.Is(err, sdk.Unavailable) {
					e.h.Ended(err)
				}
			}
		}})},
	{"probe says yes", "probe-down", "succeeded", is(defect{
		probe: func(sdk.Prober, context.Context, sdk.Target) error { return nil }})},
	{"probe says no", "probe-up", "Probe of a living peer", is(defect{
		probe: func(sdk.Prober, context.Context, sdk.Target) error { return sdk.Unavailable }})},
	{"probe is deaf to its context", "probe-obeys-context", "did not return", is(defect{
		probe: func(sdk.Prober, context.Context, sdk.Target) error { time.Sleep(stuck); return sdk.Unavailable }})},
	{"drain does nothing", "drain-refuses-new-work", "Accept after Drain", is(defect{
		drain: func(sdk.Drainer, context.Context) error { return nil }})},
	{"drain ends what there is", "drain-refuses-new-work", "ended", is(defect{
		drain: func(d sdk.Drainer, ctx context.Context) error {
			d.(*member).f.End("", "", "")
			return d.Drain(ctx)
		}})},
}

// doneAtOnce reports Done as soon as a frame is taken.
func doneAtOnce(e *mutantEnd) {
	var mu sync.Mutex
	e.completed = func([]sdk.Completion) {}
	received, ended := e.received, e.ended
	e.received = func(fs [][]byte) { mu.Lock(); defer mu.Unlock(); received(fs) }
	e.ended = func(err error) { mu.Lock(); defer mu.Unlock(); e.n = -1; ended(err) }
	e.send = func(fs []sdk.Frame, more bool) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		if e.n < 0 {
			return 0, sdk.Errorf(sdk.Closed, "ended")
		}
		n, err := e.inner.Send(fs, more)
		if errors.Is(err, sdk.Closed) { // written, though nobody is there
			n, err = len(fs), nil
		}
		var cs []sdk.Completion
		for _, f := range fs[:n] {
			cs = append(cs, sdk.Completion{ID: f.ID, Outcome: sdk.Done})
		}
		if len(cs) > 0 {
			e.h.Completed(cs)
		}
		return n, err
	}
}

// deadEnd is an endpoint that takes and does nothing.
type deadEnd struct{ h sdk.Handler }

func (d deadEnd) Send([]sdk.Frame, bool) (int, error) { return 0, sdk.Errorf(sdk.Closed, "dead") }
func (d deadEnd) Close()                              {}

func mutantHarness(make func() defect) Harness {
	var d *defect // one for both instances, made where they are
	h := fabricHarness(true)
	h.Timeout = 5 * time.Second
	fabric := h.New
	h.New = func(t testing.TB) sdk.Transport {
		inner := fabric(t)
		if d == nil {
			made := make()
			d = &made
		}
		inner.(*member).f.lax = d.accept != nil
		return &mutant{inner, inner.(sdk.Notifier), inner.(sdk.Prober), inner.(sdk.Drainer), *d}
	}
	return h
}

// TestSuiteFindsMutants: each defect turns the case red that is for it.
func TestSuiteFindsMutants(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			rec := verdict(t, m.finds, mutantHarness(m.d))
			if !rec.Failed() {
				t.Fatalf("%s does not find it", m.finds)
			}
			if !strings.Contains(rec.log.String(), m.says) {
				t.Errorf("%s does not say %q:\n%s", m.finds, m.says, rec.log.String())
			}
		})
	}
}

// deaf lists keys and ignores them; it is what somebody writes who wants the
// feature and not the work.
type deaf struct {
	*mutant
	refuses bool // Configure fails if there are keys
}

func (d deaf) Describe() sdk.Description {
	desc := d.mutant.Describe()
	desc.Features = append(slices.Clone(desc.Features), sdk.FeatureKeys)
	return desc
}

func (d deaf) Configure(ctx context.Context, cfg sdk.Config) (sdk.Setup, error) {
	if d.refuses && cfg.Keys != nil {
		return sdk.Setup{}, sdk.Errorf(sdk.InvalidArgument, "no keys, please")
	}
	return d.mutant.Configure(ctx, cfg)
}

func (d deaf) SetKeys(context.Context, sdk.Keys) error { return nil }

// TestSuiteFindsWhoIgnoresKeys: a transport that takes no notice of its keys
// turns every case about them red, or one that takes none.
func TestSuiteFindsWhoIgnoresKeys(t *testing.T) {
	for _, m := range []struct {
		finds, says string
		refuses     bool
	}{
		{"keys-carry", "no keys, please", true},
		{"keys-refuse", "a peer without keys: connected from", false},
		{"keys-bad", "Configure with an expired certificate: <nil>", false},
		{"keys-change", "SetKeys without a key: <nil>", false},
		{"keys-not-turned-on", "SetKeys turned TLS on", false},
	} {
		t.Run(m.finds, func(t *testing.T) {
			h := mutantHarness(is(defect{}))
			sound := h.New
			h.New = func(t testing.TB) sdk.Transport { return deaf{sound(t).(*mutant), m.refuses} }
			rec := verdict(t, m.finds, h)
			if !rec.Failed() || !strings.Contains(rec.log.String(), m.says) {
				t.Errorf("%s does not say %q:\n%s", m.finds, m.says, rec.log.String())
			}
		})
	}
}

// TestSuiteSparesTheSound: the frame that mutants hang in is no defect.
func TestSuiteSparesTheSound(t *testing.T) {
	for _, c := range cases {
		h := mutantHarness(is(defect{}))
		if c.reason(h, h.New(t).Describe()) != "" {
			continue
		}
		if rec := verdict(t, c.name, h); rec.Failed() {
			t.Errorf("%s: %s", c.name, rec.log.String())
		}
	}
}

// TestSuiteFindsLeaks needs real goroutines and time.
func TestSuiteFindsLeaks(t *testing.T) {
	stop := make(chan struct{})
	h := mutantHarness(is(defect{close: func(tr sdk.Transport, ctx context.Context) error {
		go func() { <-stop }()
		return tr.Close(ctx)
	}}))
	h.bubble = false
	h.Timeout = time.Second
	rec := verdict(t, "close-without-configure", h)
	close(stop)
	if !rec.Failed() || !strings.Contains(rec.log.String(), "goroutines are left") {
		t.Errorf("the leak was not found: %s", rec.log.String())
	}
}
