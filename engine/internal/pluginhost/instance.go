package pluginhost

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// deathGrace is how long after a call has failed for a plugin's end the end
// itself may be noticed.
const deathGrace = time.Second

// bring starts and configures an instance of spec.
func (s *Supervisor) bring(ctx context.Context, spec Spec) (*running, error) {
	r, err := s.open(ctx, spec)
	if err != nil {
		return nil, err
	}
	if err := s.configure(ctx, spec, r); err != nil {
		return nil, err
	}
	return r, nil
}

// open launches an instance and checks what it says about itself. The device
// is not touched yet. On error nothing is left of it.
func (s *Supervisor) open(ctx context.Context, spec Spec) (*running, error) {
	id := s.opts.NextInstance()
	log := s.log.With("instance", id)
	ctx, cancel := context.WithTimeout(ctx, s.opts.StartTimeout)
	defer cancel()
	p, err := s.launchers[spec.InProcess != nil].launch(ctx, spec, id, log)
	if err != nil {
		return nil, named(spec.Name, err)
	}
	r := &running{process: p, inst: &Instance{ID: id, Name: spec.Name, Transport: p.transport()}, unmon: func() {}}
	if in, ok := p.(*resident); ok {
		r.inst.Ending = in.ending
	}
	r.inst.Gone = p.fenced()
	r.inst.Description = p.transport().Describe()
	err = checkDescription(r.inst.Description)
	if err == nil && s.cur == nil {
		err = s.deviceFree(r)
	}
	if err == nil {
		err = CheckSettings(spec.Name, r.inst.Description.ConfigSchema, spec.Settings)
	}
	if err != nil {
		s.dispose(r, false)
		return nil, named(spec.Name, err)
	}
	return r, nil
}

// deviceFree refuses an instance while an abandoned one holds its device.
func (s *Supervisor) deviceFree(r *running) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.abandoned > 0 && !r.inst.Description.SharedDevice {
		return sdk.Errorf(sdk.Busy, "%w", errDeviceHeld)
	}
	return nil
}

// configure makes an opened instance ready. On error nothing is left of it.
func (s *Supervisor) configure(ctx context.Context, spec Spec, r *running) error {
	err := s.tryConfigure(ctx, spec, r)
	if err == nil {
		err = checkSetup(r.inst.Setup)
	}
	if err == nil {
		return nil
	}
	if diedWith(r, err) {
		// Why it died says more than that the call failed.
		err = withLines(r, sdk.Errorf(codeOr(r.cause(), sdk.PluginExited), "while configuring: %w", r.cause()))
	}
	s.dispose(r, true)
	return named(spec.Name, err)
}

// diedWith reports whether the instance has ended. If the error says that it
// is about to, it waits a moment for the reason.
func diedWith(p process, err error) bool {
	wait := time.Duration(0)
	if errors.Is(err, sdk.PluginExited) {
		wait = deathGrace
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-p.ended():
		return true
	case <-t.C:
	}
	select {
	case <-p.ended():
		return true
	default:
		return false
	}
}

func (s *Supervisor) tryConfigure(ctx context.Context, spec Spec, r *running) error {
	ctx, cancel := context.WithTimeout(ctx, s.opts.StartTimeout)
	defer cancel()
	settings := orEmpty(spec.Settings)
	keys := s.keysFor(spec, r.inst.Description)
	s.sockets.check = s.opts.CheckListen
	if r.inst.Keyed = keys != nil; r.inst.Keyed {
		s.sockets.check = func(string) error { return nil }
	}
	lent, err := s.sockets.lend(r.inst.Description.Listeners, settings)
	if err != nil {
		return err
	}
	r.inst.Setup, err = r.inst.Transport.Configure(ctx, sdk.Config{
		Instance: r.inst.ID, Incarnation: s.opts.Incarnation, Settings: settings,
		Listeners: lent, Keys: keys, Log: s.log.With("instance", r.inst.ID),
		PathsChanged: s.obs.PathsChanged,
	})
	if err != nil && ctx.Err() == context.DeadlineExceeded {
		return sdk.Errorf(sdk.DeadlineExceeded, "not configured within %v: %w", s.opts.StartTimeout, err)
	}
	return err
}

// keysFor returns what secures an instance's connections, or nil.
func (s *Supervisor) keysFor(spec Spec, d sdk.Description) *sdk.Keys {
	if s.opts.Keys == nil {
		return nil
	}
	switch asks := d.Has(sdk.FeatureKeys); {
	case asks && spec.Keys:
		return s.opts.Keys()
	case asks:
		s.log.Warn("the transport asks for keys and may not have them: its connections are not secured; transports[].keys: true lets it")
	case len(d.Listeners) > 0:
		s.log.Warn("the transport does not ask for keys: its connections are not secured")
	}
	return nil
}

// up shows an instance to the observer.
func (s *Supervisor) up(r *running) {
	if n, ok := r.inst.Transport.(sdk.Notifier); ok && r.inst.Description.Has(sdk.FeatureNotify) {
		r.inst.Notifier = n
	}
	if m, ok := r.inst.Transport.(sdk.Mover); ok && r.inst.Description.Has(sdk.FeatureMove) {
		r.inst.Mover = m
	}
	r.since = time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		watch(ctx, r.process, s.opts, s.froze, s.log.With("instance", r.inst.ID))
	}()
	r.unmon = func() {
		cancel()
		<-watched
	}
	s.cur = r
	s.setUp(r)
	s.log.Info("transport is up", "instance", r.inst.ID, "pid", r.pid(), "carrier", r.carrier(), "version", clip(r.inst.Description.Version, 64))
	s.obs.Up(r.inst)
}

// drain moves traffic off an instance. It ends early if the instance dies, or
// if its successor does: then there is something more urgent to do.
func (s *Supervisor) drain(ctx context.Context, old *running, successor <-chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.DrainTimeout)
	stop := make(chan struct{})
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		select {
		case <-old.ended():
		case <-successor:
		case <-stop:
		}
		cancel()
	}()
	defer func() {
		close(stop)
		<-waited
	}()
	if d, ok := old.inst.Transport.(sdk.Drainer); ok && old.inst.Description.Has(sdk.FeatureDrain) {
		call, cancel := context.WithTimeout(ctx, s.opts.StopTimeout)
		if err := d.Drain(call); err != nil {
			s.log.Warn("the old instance did not drain", "instance", old.inst.ID, "err", err)
		}
		cancel()
	}
	s.obs.Drain(ctx, old.inst)
}

// retire stops an instance in order; nil means the current one.
func (s *Supervisor) retire(r *running) {
	if r == nil {
		r = s.cur
	}
	_ = s.down(r, true)
}

// down ends an instance and tells the observer, with the reason unless it was
// still well when asked to stop.
func (s *Supervisor) down(r *running, orderly bool) error {
	var err error
	r.unmon()
	select {
	case <-r.ended():
		orderly = false
	default:
	}
	s.finish(r, orderly)
	if !orderly {
		err = withLines(r, sdk.Errorf(codeOr(r.cause(), sdk.PluginExited), "transport %s: %w", r.inst.Name, r.cause()))
	}
	if s.cur == r {
		s.cur = nil
	}
	s.setDown(r, err)
	s.obs.Down(r.inst, err)
	return err
}

// dispose ends an instance that the observer has never seen.
func (s *Supervisor) dispose(r *running, orderly bool) { s.finish(r, orderly) }

// finish ends an instance, and counts it if it cannot be got rid of.
func (s *Supervisor) finish(r *running, orderly bool) {
	if r.process.finish(s.hard, orderly) {
		return
	}
	s.log.Error("instance abandoned: it does not die; its memory stays mapped", "instance", r.inst.ID, "pid", r.pid())
	s.addAbandoned(1)
	// This goroutine's owner is the process that does not die.
	go func() {
		<-r.gone()
		if s.addAbandoned(-1) > 0 {
			return
		}
		select {
		case s.left <- struct{}{}:
		default:
		}
	}()
}

// named puts the transport's name before an error, once.
func named(name string, err error) error {
	prefix := "transport " + name + ": "
	if strings.HasPrefix(err.Error(), prefix) {
		return err
	}
	return sdk.Errorf(codeOr(err, sdk.Unavailable), "%s%w", prefix, err)
}

// withLines adds the end of the plugin's stderr to an error.
func withLines(p process, err *sdk.Error) error {
	lines := p.lastLines()
	if len(lines) == 0 {
		return err
	}
	const shown = 5
	lines = lines[max(0, len(lines)-shown):]
	return sdk.Errorf(err.Code, "%w; its last words: %s", err, strings.Join(lines, " | "))
}

func codeOr(err error, c sdk.Code) sdk.Code {
	if got := sdk.CodeOf(err); got != 0 {
		return got
	}
	return c
}
