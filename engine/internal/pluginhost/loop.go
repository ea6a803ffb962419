package pluginhost

import (
	"context"
	"errors"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

func (s *Supervisor) loop() {
	defer close(s.finished)
	for next := step(s.starting); next != nil; {
		next = next()
	}
	s.sockets.close()
	s.setState(Stopped, nil)
	s.first.set(sdk.Errorf(sdk.Closed, "transport %s: stopped", s.spec.Name))
	s.unfreeze()
	s.workers.Wait()
	for _, l := range s.launchers {
		l.close()
	}
}

// starting starts an instance of the current spec.
func (s *Supervisor) starting() step {
	armed := time.Now()
	r, err := s.bring(s.ctx, s.spec)
	if s.ctx.Err() != nil {
		if r != nil {
			s.dispose(r, true)
		}
		return nil
	}
	if err != nil {
		return s.failed(armed, 0, err)
	}
	s.up(r)
	s.first.set(nil)
	return s.running
}

// running watches the instance.
func (s *Supervisor) running() step {
	select {
	case <-s.cur.ended():
		s.froze.Awake()
		return s.crashed()
	case r := <-s.requests:
		return s.serve(r)
	case <-s.ctx.Done():
		s.retire(nil)
		return nil
	}
}

// crashed buries the instance.
func (s *Supervisor) crashed() step {
	r := s.cur
	err := s.down(r, false)
	s.log.Warn("transport ended unexpectedly", "instance", r.inst.ID, "err", err)
	return s.failed(r.since, time.Since(r.since), err)
}

// failed decides what follows a crash or a failed start.
func (s *Supervisor) failed(armed time.Time, upFor time.Duration, err error) step {
	// Only a start's failure can be the doing of a freeze: health has its
	// own check, and nothing else of a running instance has a deadline.
	frozen := upFor == 0 && s.froze.Since(armed) && sdk.CodeOf(err) == sdk.DeadlineExceeded
	v := s.policy.failed(time.Now(), upFor, err, frozen)
	if v.quarantine {
		return func() step { return s.quarantined(err) }
	}
	return func() step { return s.backingOff(v.wait, err) }
}

// backingOff waits before a restart.
func (s *Supervisor) backingOff(wait time.Duration, err error) step {
	s.setState(Restarting, err)
	s.first.set(err) // whoever waited for it finds the state as it says
	s.log.Info("restarting transport", "after", wait, "err", err)
	return s.idle(wait)
}

// quarantined waits long, and for whoever can help sooner.
func (s *Supervisor) quarantined(err error) step {
	state, tell := Quarantined, s.obs.Quarantined
	if errors.Is(err, sdk.Unsupported) {
		state, tell = Unsupported, s.obs.Unsupported
		for _, l := range s.launchers {
			l.close() // what would make a restart quick is not worth its memory
		}
	}
	s.setState(state, err)
	s.first.set(err)
	s.log.Debug("transport given up", "state", state, "retry", s.opts.QuarantineRetry, "err", err) // the observer says it aloud
	tell(err)
	next := s.idle(s.opts.QuarantineRetry)
	s.policy.retry()
	return next
}

// idle waits without an instance.
func (s *Supervisor) idle(wait time.Duration) step {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.left:
	case r := <-s.requests:
		return func() step { return s.serve(r) }
	case <-s.ctx.Done():
		return nil
	}
	s.froze.Awake()
	s.countRestart()
	return s.starting
}

// serve answers a request to replace or restart.
func (s *Supervisor) serve(r request) step {
	spec := s.spec
	if r.spec != nil {
		spec = *r.spec
	}
	s.policy.lift()
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	armed := time.Now()
	err := s.replace(ctx, spec)
	r.reply <- err
	switch {
	case s.ctx.Err() != nil:
		if s.cur != nil {
			s.retire(nil)
		}
		return nil
	case s.cur != nil:
		return s.running
	case r.spec != nil:
		return s.starting // the old spec stays
	default:
		return s.failed(armed, 0, err)
	}
}

// replace brings up an instance of spec and retires the current one, if any.
// On error the spec stays as it was; the current instance may be gone.
func (s *Supervisor) replace(ctx context.Context, spec Spec) error {
	next, err := s.open(ctx, spec)
	if err != nil {
		return err
	}
	old := s.cur
	if old != nil && !(next.inst.Description.SharedDevice && old.inst.Description.SharedDevice) {
		s.drain(ctx, old, next.ended())
		s.retire(nil)
		old = nil
		if err = s.deviceFree(next); err != nil {
			s.dispose(next, false)
			return err
		}
	}
	if err := s.configure(ctx, spec, next); err != nil {
		return err
	}
	s.spec = spec
	s.countRestart()
	s.up(next)
	s.first.set(nil)
	if old != nil {
		s.drain(ctx, old, next.ended())
		s.retire(old)
	}
	return nil
}
