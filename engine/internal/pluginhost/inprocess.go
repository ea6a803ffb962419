package pluginhost

import (
	"context"
	"log/slog"
	"sync"

	"github.com/hawser-transport/hawser/engine/internal/freeze"
	"github.com/hawser-transport/hawser/sdk"
)

// inProcess launches transports inside this process. It does no I/O of its
// own, so that supervision runs in a synctest bubble. A transport that has
// Done and Err can crash, one that has Health can hang, one that has Progress
// can show that it moves.
type inProcess struct {
	opts  Options
	froze *freeze.Detector
}

func (l *inProcess) launch(_ context.Context, spec Spec, _ uint64, _ *slog.Logger) (process, error) {
	t := spec.InProcess()
	if t == nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "transport %s: InProcess returned nil", spec.Name)
	}
	r := &resident{t: t, opts: l.opts, froze: l.froze, end: make(chan struct{}), ending: make(chan struct{}), left: make(chan struct{}), quiet: make(chan struct{})}
	if m, ok := t.(mortal); ok {
		go func() {
			select {
			case <-m.Done():
				r.fail(m.Err())
			case <-r.end:
			}
		}()
	}
	return r, nil
}

func (l *inProcess) close() {}

// resident is a transport that lives inside this process.
type resident struct {
	t     sdk.Transport
	opts  Options
	froze *freeze.Detector

	once sync.Once
	why  error
	end  chan struct{}

	endingOnce sync.Once
	ending     chan struct{}

	closeOnce sync.Once
	left      chan struct{}
	quiet     chan struct{} // closed once Close has returned nil
}

func (r *resident) transport() sdk.Transport { return r.t }
func (r *resident) pid() int                 { return 0 }
func (r *resident) carrier() string          { return "in process" }
func (r *resident) ended() <-chan struct{}   { return r.end }
func (r *resident) cause() error             { return r.why }
func (r *resident) gone() <-chan struct{}    { return r.left }
func (r *resident) fenced() <-chan struct{}  { return r.quiet }
func (r *resident) lastLines() []string      { return nil }

func (r *resident) progress() uint64 {
	if m, ok := r.t.(moving); ok {
		return m.Progress()
	}
	return 0
}

func (r *resident) health(ctx context.Context) error {
	if c, ok := r.t.(checkable); ok {
		return c.Health(ctx)
	}
	return nil
}

func (r *resident) fail(cause error) {
	r.endingOnce.Do(func() { close(r.ending) })
	r.once.Do(func() {
		if cause == nil {
			cause = sdk.Errorf(sdk.PluginExited, "the transport ended by itself")
		}
		r.why = cause
		close(r.end)
	})
}

// finish closes the transport. Nothing can force it: a Close that does not
// return is abandoned, and its goroutine with it.
func (r *resident) finish(ctx context.Context, orderly bool) bool {
	r.endingOnce.Do(func() { close(r.ending) })
	r.closeOnce.Do(func() {
		ctx, cancel := context.WithTimeout(ctx, r.opts.StopTimeout)
		if !orderly {
			cancel()
		}
		go func() {
			err := r.t.Close(ctx)
			cancel()
			r.fail(sdk.Closed)
			close(r.left)
			if err != nil {
				// It was given no time. What it still does ends with it.
				err = r.t.Close(context.Background())
			}
			if err == nil {
				close(r.quiet)
			}
		}()
	})
	return r.froze.Wait(r.left, r.opts.StopTimeout+r.opts.AbandonAfter)
}
