package pluginhost

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/freeze"
	"github.com/hawser-transport/hawser/sdk"
)

// fake is a transport that does what a test tells it.
type fake struct {
	desc      sdk.Description
	configure func(context.Context, sdk.Config) (sdk.Setup, error)
	health    func(context.Context) error
	close     func(context.Context)

	mu     sync.Mutex
	cfg    sdk.Config
	moved  uint64
	drains int
	closes int

	dropped atomic.Uint64

	once sync.Once
	done chan struct{}
	err  error
}

func newFake() *fake {
	return &fake{
		desc: sdk.Description{Name: "fake", Contract: sdk.ContractVersion, SharedDevice: true,
			Features: []sdk.Feature{sdk.FeatureDrain}},
		done: make(chan struct{}),
	}
}

func (f *fake) crash(err error) {
	f.once.Do(func() {
		f.err = err
		close(f.done)
	})
}

func (f *fake) Describe() sdk.Description { return f.desc }
func (f *fake) Done() <-chan struct{}     { return f.done }
func (f *fake) Err() error                { return f.err }
func (f *fake) Dropped() uint64           { return f.dropped.Load() }

func (f *fake) Configure(ctx context.Context, cfg sdk.Config) (sdk.Setup, error) {
	f.mu.Lock()
	f.cfg = cfg
	f.mu.Unlock()
	if f.configure != nil {
		return f.configure(ctx, cfg)
	}
	closeAll(cfg.Listeners)
	return sdk.Setup{}, nil
}

func (f *fake) Close(ctx context.Context) error {
	f.mu.Lock()
	f.closes++
	f.mu.Unlock()
	if f.close != nil {
		f.close(ctx)
	}
	return nil
}

func (f *fake) Drain(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drains++
	return nil
}

func (f *fake) Health(ctx context.Context) error {
	if f.health != nil {
		return f.health(ctx)
	}
	return nil
}

func (f *fake) Progress() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.moved
}

func (f *fake) move() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.moved++
}

// hang is a health call that is never answered.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// recorder is an observer that writes down what it is told.
type recorder struct {
	mu     sync.Mutex
	events []string
	insts  map[uint64]*Instance
	drain  func(ctx context.Context, old *Instance)
	change chan struct{}
	limit  time.Duration // of wait
}

func newRecorder() *recorder {
	return &recorder{insts: map[uint64]*Instance{}, change: make(chan struct{}), limit: time.Hour}
}

func (r *recorder) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf(format, args...))
	close(r.change)
	r.change = make(chan struct{})
}

func (r *recorder) Up(i *Instance) {
	r.mu.Lock()
	r.insts[i.ID] = i
	r.mu.Unlock()
	r.add("up %d", i.ID)
}

func (r *recorder) Drain(ctx context.Context, i *Instance) {
	r.add("drain %d", i.ID)
	if r.drain != nil {
		r.drain(ctx, i)
	}
}

func (r *recorder) Down(i *Instance, err error) {
	if err == nil {
		r.add("down %d", i.ID)
	} else {
		r.add("down %d: %v", i.ID, sdk.CodeOf(err))
	}
}

func (r *recorder) PathsChanged() { r.add("paths changed") }

func (r *recorder) Quarantined(err error) { r.add("quarantined: %v", sdk.CodeOf(err)) }
func (r *recorder) Unsupported(err error) { r.add("unsupported: %v", sdk.CodeOf(err)) }

func (r *recorder) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.events...)
}

// wait waits until the event has happened n times.
func (r *recorder) wait(t *testing.T, event string, n int) {
	t.Helper()
	limit := time.After(r.limit)
	for {
		r.mu.Lock()
		seen := 0
		for _, e := range r.events {
			if e == event {
				seen++
			}
		}
		change := r.change
		r.mu.Unlock()
		if seen >= n {
			return
		}
		select {
		case <-change:
		case <-limit:
			t.Fatalf("%q did not happen %d times: %q", event, n, r.list())
		}
	}
}

// stage hands out fakes, one per start, and remembers them.
type stage struct {
	mu     sync.Mutex
	make   func(n int) *fake // n counts from 1
	actors []*fake
}

func (s *stage) spec() Spec {
	return Spec{Name: "t", InProcess: func() sdk.Transport {
		s.mu.Lock()
		defer s.mu.Unlock()
		f := newFake()
		if s.make != nil {
			f = s.make(len(s.actors) + 1)
		}
		s.actors = append(s.actors, f)
		return f
	}}
}

func (s *stage) last() *fake {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.actors[len(s.actors)-1]
}

func (s *stage) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.actors)
}

// doomed is a launcher of which the first process does not die.
type doomed struct {
	inProcess
	free  chan struct{}
	count int
}

func newDoomed() *doomed {
	return &doomed{inProcess: inProcess{Options{}.withDefaults(), &freeze.Detector{}}, free: make(chan struct{})}
}

func (d *doomed) launch(ctx context.Context, spec Spec, id uint64, log *slog.Logger) (process, error) {
	spec.InProcess = func() sdk.Transport {
		f := newFake()
		f.desc.SharedDevice = spec.Path == "shared"
		return f
	}
	p, err := d.inProcess.launch(ctx, spec, id, log)
	if d.count++; d.count > 1 {
		return p, err
	}
	return &zombie{p.(*resident), d.free}, err
}

type zombie struct {
	*resident
	free chan struct{}
}

func (z *zombie) gone() <-chan struct{} { return z.free }
func (z *zombie) finish(ctx context.Context, orderly bool) bool {
	z.resident.finish(ctx, orderly)
	z.fail(sdk.Closed)
	select {
	case <-z.free:
		return true
	case <-time.After(z.opts.AbandonAfter):
		return false
	}
}
