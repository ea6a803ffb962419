package pluginhost

import (
	"context"
	"log/slog"

	"github.com/hawser-transport/hawser/sdk"
)

// launcher starts instances. It is the seam between supervision, which is the
// same for all, and how a transport is run.
type launcher interface {
	// launch starts an instance that is not yet configured. It returns soon
	// after ctx ends. On error nothing is left behind.
	launch(ctx context.Context, spec Spec, id uint64, log *slog.Logger) (process, error)
	// close releases what instances share. All of them have finished.
	close()
}

// process is one instance, from its launch to its end.
type process interface {
	transport() sdk.Transport
	// pid is 0 in process.
	pid() int
	// carrier names the link's carrier, for people.
	carrier() string
	// progress grows when traffic moves.
	progress() uint64
	// health returns nil if the plugin answers that it is well, an error of
	// the plugin's, or that of ctx.
	health(ctx context.Context) error

	// ended is closed when the instance is of no more use.
	ended() <-chan struct{}
	// cause says why. Valid once ended is closed.
	cause() error
	// fail makes the instance end at once, for this cause. A process is
	// killed.
	fail(cause error)

	// finish ends the instance and returns when it is gone and everything
	// that it had delivered was handed on. Orderly asks the transport to
	// close first, until ctx ends or StopTimeout has passed. False means that
	// it cannot be got rid of: it was abandoned.
	finish(ctx context.Context, orderly bool) bool
	// gone is closed when the instance has left, even if late. Valid after
	// finish.
	gone() <-chan struct{}
	// fenced is closed when nothing of the instance can touch memory any more.
	fenced() <-chan struct{}
	// lastLines returns the end of what the plugin wrote to stderr.
	lastLines() []string
}

// What a transport may have beyond the contract, if it can die on its own.
type (
	mortal interface {
		Done() <-chan struct{}
		Err() error
	}
	checkable interface {
		Health(ctx context.Context) error
	}
	moving interface {
		Progress() uint64
	}
	dropping interface {
		Dropped() uint64
	}
)
