package pluginhost

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/freeze"
	"github.com/hawser-transport/hawser/sdk"
)

// sign is what one round of the health check saw.
type sign struct {
	moved    bool // traffic moved while it was asked
	answered bool // the health call was answered, whatever it said
	frozen   bool // this process did not run for a part of the time
}

// alive is the verdict on a round: only a plugin that neither moved traffic
// nor answered, while we were there to see it, is given up.
func (s sign) alive() bool { return s.moved || s.answered || s.frozen }

// errHung is why a plugin without a sign of life is killed.
func errHung(timeout time.Duration) error {
	return sdk.Errorf(sdk.PluginExited, "hung: neither moved traffic nor answered its health call within %v", timeout)
}

// watch checks the health of an instance until ctx ends or the instance does.
// A plugin that answers that it is not well is alive; it is only reported.
func watch(ctx context.Context, p process, o Options, froze *freeze.Detector, log *slog.Logger) {
	tick := time.NewTicker(o.HealthInterval)
	defer tick.Stop()
	unwell := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.ended():
			return
		case <-tick.C:
		}
		froze.Awake()
		// Taken now, so that what moved before it hung does not count.
		before, armed := p.progress(), time.Now()
		err := callHealth(ctx, p, o.HealthTimeout)
		froze.Awake()
		if ctx.Err() != nil {
			return
		}
		s := sign{moved: p.progress() != before, answered: answered(err), frozen: froze.Since(armed)}
		if !s.alive() {
			p.fail(errHung(o.HealthTimeout))
			return
		}
		if sick := err != nil && s.answered; sick != unwell {
			unwell = sick
			log.Warn("the plugin's health has changed", "well", !sick, "err", err)
		}
	}
}

func callHealth(ctx context.Context, p process, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return p.health(ctx)
}

// answered reports whether the error of a health call came from the plugin,
// rather than from waiting for it.
func answered(err error) bool {
	return err == nil || !errors.Is(err, sdk.DeadlineExceeded) && !errors.Is(err, sdk.Unavailable) &&
		!errors.Is(err, sdk.PluginExited) && !errors.Is(err, context.DeadlineExceeded)
}
