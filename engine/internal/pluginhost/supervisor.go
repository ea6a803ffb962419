package pluginhost

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/freeze"
	"github.com/hawser-transport/hawser/sdk"
)

// errDeviceHeld: an abandoned instance still holds a device that cannot be
// shared.
var errDeviceHeld = errors.New("an abandoned instance still holds the device, which cannot be shared")

// Supervisor keeps one transport running: it starts it, watches it, restarts
// it, quarantines it, replaces it and stops it. All of that happens on one
// goroutine, which also makes every call of the Observer.
type Supervisor struct {
	opts  Options
	log   *slog.Logger
	obs   Observer
	froze *freeze.Detector

	ctx      context.Context // ends when Stop is called
	cancel   context.CancelFunc
	hard     context.Context // ends when Stop has no more time
	hurry    context.CancelFunc
	once     sync.Once
	first    firstResult
	requests chan request
	left     chan struct{}  // an abandoned instance is gone after all
	workers  sync.WaitGroup // everything but the loop
	unfreeze func()         // ends our own freeze detector
	finished chan struct{}

	// Owned by the loop.
	spec      Spec
	policy    *restarts
	launchers map[bool]launcher // by whether in process
	sockets   listeners
	cur       *running

	mu struct {
		sync.Mutex
		status    Status
		live      []*running // told as up and not as down
		abandoned int
	}
}

// running is an instance that is up.
type running struct {
	process
	inst  *Instance
	since time.Time
	unmon context.CancelFunc // ends its health check
}

// step is a state of the loop: it returns the next one, or nil at the end.
type step func() step

// New makes a supervisor. Nothing happens before Start.
func New(spec Spec, opts Options, obs Observer) *Supervisor {
	return newSupervisor(spec, opts, obs, nil)
}

func newSupervisor(spec Spec, opts Options, obs Observer, processes launcher) *Supervisor {
	opts = opts.withDefaults()
	s := &Supervisor{
		opts: opts, obs: obs, spec: spec, froze: opts.Freeze,
		log:      opts.Log.With("transport", spec.Name),
		policy:   newRestarts(opts),
		first:    firstResult{done: make(chan struct{})},
		requests: make(chan request),
		left:     make(chan struct{}, 1),
		unfreeze: func() {},
		finished: make(chan struct{}),
		sockets:  listeners{transport: spec.Name, check: opts.CheckListen, open: map[string]listening{}},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.hard, s.hurry = context.WithCancel(context.Background())
	if s.froze == nil {
		s.froze = &freeze.Detector{}
	}
	if processes == nil {
		processes = newProcesses(opts, s.froze)
	}
	s.launchers = map[bool]launcher{true: &inProcess{opts: opts, froze: s.froze}, false: processes}
	s.mu.status = Status{Name: spec.Name, State: Starting, Since: time.Now()}
	return s
}

// Start begins. It does not wait: see Ready.
func (s *Supervisor) Start() {
	s.once.Do(func() {
		if s.opts.Freeze == nil {
			ctx, cancel := context.WithCancel(context.Background())
			s.unfreeze = cancel
			s.workers.Go(func() { s.froze.Run(ctx) })
		}
		go s.loop()
	})
}

// Ready waits for the result of the first start.
func (s *Supervisor) Ready(ctx context.Context) error {
	select {
	case <-s.first.done:
		return s.first.err
	case <-ctx.Done():
		return sdk.Errorf(sdk.DeadlineExceeded, "transport %s: not started yet: %w", s.name(), context.Cause(ctx))
	}
}

// Stop ends the instance, in order while ctx lasts and by force after that,
// and waits for every goroutine. It is idempotent. After it has returned the
// Observer is called no more.
func (s *Supervisor) Stop(ctx context.Context) error {
	s.once.Do(func() { // never started
		close(s.finished)
		s.setState(Stopped, nil)
		s.first.set(sdk.Closed)
	})
	s.cancel()
	select {
	case <-s.finished:
		return nil
	case <-ctx.Done():
	}
	s.hurry()
	<-s.finished
	return context.Cause(ctx)
}

// Replace runs spec in place of what runs now. If the device can be shared,
// the new instance is started beside the old one, which is then drained and
// stopped; else the old one is drained and stopped first. If the new one does
// not start, the old one stays, or is started again, and the error says why.
func (s *Supervisor) Replace(ctx context.Context, spec Spec) error {
	return s.ask(request{ctx: ctx, spec: &spec})
}

// Restart replaces the instance by a new one of the same kind, or, when none
// runs, starts one at once. It lifts a quarantine.
func (s *Supervisor) Restart(ctx context.Context) error {
	return s.ask(request{ctx: ctx})
}

// request asks the loop to replace the instance; without a spec, by its like.
type request struct {
	ctx   context.Context
	spec  *Spec
	reply chan error
}

func (s *Supervisor) ask(r request) error {
	r.reply = make(chan error, 1)
	closed := sdk.Errorf(sdk.Closed, "transport %s: stopped", s.name())
	select {
	case s.requests <- r:
	case <-r.ctx.Done():
		return sdk.Errorf(sdk.DeadlineExceeded, "transport %s: busy starting or stopping: %w", s.name(), context.Cause(r.ctx))
	case <-s.ctx.Done():
		return closed
	}
	select {
	case err := <-r.reply:
		return err
	case <-s.finished:
		return closed
	}
}

// firstResult is set once.
type firstResult struct {
	once sync.Once
	done chan struct{}
	err  error
}

func (f *firstResult) set(err error) {
	f.once.Do(func() {
		f.err = err
		close(f.done)
	})
}
