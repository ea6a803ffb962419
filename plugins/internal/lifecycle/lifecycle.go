// Package lifecycle is the life of a transport: configured once, drained
// perhaps, closed once, with a list of its endpoints and of its goroutines, so
// that Close can end the ones and wait for the others.
package lifecycle

import (
	"context"
	"sync"

	"github.com/hawser-transport/hawser/sdk"
)

// Endpoint is what a life keeps a list of.
type Endpoint interface {
	comparable
	Close()
}

// Life is one transport's. Use New.
type Life[E Endpoint] struct {
	// Tasks are the transport's goroutines.
	Tasks sync.WaitGroup

	ctx    context.Context
	cancel context.CancelFunc

	mu        sync.Mutex
	state     state
	endpoints map[E]struct{}
}

type state uint8

const (
	unconfigured state = iota
	open
	draining
	closed
)

// New makes the life of a transport that is not configured.
func New[E Endpoint]() *Life[E] {
	l := &Life[E]{endpoints: make(map[E]struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Open makes the life open, after set has run without an error. It fails if it
// has been opened or closed before.
func (l *Life[E]) Open(set func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != unconfigured {
		return sdk.Errorf(sdk.InvalidArgument, "the transport is configured or closed already")
	}
	if err := set(); err != nil {
		return err
	}
	l.state = open
	return nil
}

// Ready returns nil while new endpoints may be made.
func (l *Life[E]) Ready() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.readyLocked()
}

func (l *Life[E]) readyLocked() error {
	switch l.state {
	case open:
		return nil
	case draining:
		return sdk.Errorf(sdk.Closed, "the transport is draining")
	case closed:
		return sdk.Errorf(sdk.Closed, "the transport is closed")
	default:
		return sdk.Errorf(sdk.InvalidArgument, "the transport is not configured")
	}
}

// Running returns nil between Open and Close.
func (l *Life[E]) Running() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == draining {
		return nil
	}
	return l.readyLocked()
}

// Drain refuses new endpoints from now on.
func (l *Life[E]) Drain() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == open || l.state == draining {
		l.state = draining
		return nil
	}
	return l.readyLocked()
}

// Start adds an endpoint and runs it in a goroutine, unless it is too late.
func (l *Life[E]) Start(e E, run func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.readyLocked(); err != nil {
		return err
	}
	l.endpoints[e] = struct{}{}
	l.Tasks.Go(run)
	return nil
}

// Begin counts a call that makes an endpoint as one of the tasks that Close
// waits for, until end is called, unless it is too late.
func (l *Life[E]) Begin() (end func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.readyLocked(); err != nil {
		return nil, err
	}
	l.Tasks.Add(1)
	return l.Tasks.Done, nil
}

// Forget takes an endpoint off the list.
func (l *Life[E]) Forget(e E) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.endpoints, e)
}

// Done is closed when Close begins.
func (l *Life[E]) Done() <-chan struct{} { return l.ctx.Done() }

// Until returns a context that also ends when Close begins.
func (l *Life[E]) Until(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(l.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// Close ends every endpoint, runs shut, which closes what accepts new ones,
// and waits for all tasks. After Close nothing calls a handler any more.
func (l *Life[E]) Close(ctx context.Context, shut func()) error {
	l.mu.Lock()
	opened := l.state == open || l.state == draining
	l.state = closed
	endpoints := make([]E, 0, len(l.endpoints))
	for e := range l.endpoints {
		endpoints = append(endpoints, e)
	}
	l.mu.Unlock()

	l.cancel()
	for _, e := range endpoints {
		e.Close()
	}
	if opened {
		shut()
	}
	gone := make(chan struct{})
	go func() {
		l.Tasks.Wait()
		close(gone)
	}()
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return sdk.Errorf(sdk.DeadlineExceeded, "a handler has not returned: %w", ctx.Err())
	}
}
