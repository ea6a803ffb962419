package pluginhost

import (
	"errors"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/hawser-transport/hawser/sdk"
)

// restarts decides when a transport that has failed is started again. It does
// no I/O, starts no timer and does not read the clock.
type restarts struct {
	random    func() uint64
	budget    int
	window    time.Duration
	min, max  time.Duration
	crashes   []time.Time // those within the window, at most budget
	backoff   *backoff.ExponentialBackOff
	probation bool // the next crash quarantines again
}

// verdict is what to do about a failure: wait, or quarantine.
type verdict struct {
	quarantine bool
	wait       time.Duration
}

func newRestarts(o Options) *restarts {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = o.BackoffMin
	b.MaxInterval = o.BackoffMax
	b.Multiplier = 2
	b.RandomizationFactor = 0 // failed spreads it, by the engine's own source
	b.Reset()
	return &restarts{
		random: o.Random, budget: o.CrashBudget, window: o.CrashWindow,
		min: o.BackoffMin, max: o.BackoffMax, backoff: b,
	}
}

// failed judges a crash or a failed start. An instance that had been up for
// the whole crash window is forgiven what was before. A failure that no
// restart can mend is quarantined at once. One that fell due while this
// process was frozen is void: it is not counted.
func (r *restarts) failed(now time.Time, upFor time.Duration, err error, frozen bool) verdict {
	if frozen {
		return verdict{wait: r.min}
	}
	if upFor >= r.window {
		r.lift()
	}
	if hopeless(err) || r.probation {
		return verdict{quarantine: true}
	}
	kept := r.crashes[:0]
	for _, at := range r.crashes {
		if now.Sub(at) < r.window {
			kept = append(kept, at)
		}
	}
	r.crashes = append(kept, now)
	if len(r.crashes) >= r.budget {
		return verdict{quarantine: true}
	}
	wait := r.backoff.NextBackOff()
	wait = wait/2 + time.Duration(r.random()%uint64(wait))
	return verdict{wait: min(max(wait, r.min), r.max)}
}

// retry marks an attempt out of quarantine: one more failure and the
// transport is back in it.
func (r *restarts) retry() {
	r.crashes = r.crashes[:0]
	r.backoff.Reset()
	r.probation = true
}

// lift forgets everything: on request, or after good conduct.
func (r *restarts) lift() {
	r.crashes = r.crashes[:0]
	r.backoff.Reset()
	r.probation = false
}

// transient reports whether the machine, or this process, had too little of
// something just now: descriptors, processes, memory.
func transient(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EAGAIN)
}

// hopeless reports whether starting again soon cannot help: the machine lacks
// something, or a person has to change something.
func hopeless(err error) bool {
	if transient(err) {
		return false
	}
	return errors.Is(err, sdk.Unsupported) || errors.Is(err, sdk.InvalidArgument) ||
		errors.Is(err, errDeviceHeld)
}
