package engine

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
)

// Reload changes which transports run, and in which order they are preferred,
// to what cfg says, without losing or doubling a notification. A transport
// whose binary, settings or environment changed is replaced: the new instance
// is started beside the old one, traffic moves over, the old one is drained
// and stopped; where the device cannot be shared the old one goes first while
// the next transport carries. Everything else in cfg must be as it was. While
// the binary of any configured transport is missing or not the approved one,
// Reload is all or nothing: it changes nothing and says which. After that the
// error lists the transports that did not start; the others are in place.
func (e *Engine) Reload(ctx context.Context, cfg Config) error {
	ctx, err := e.ready(ctx, "reload")
	if err != nil {
		return err
	}
	cfg, err = cfg.Effective()
	if err != nil {
		return err
	}
	if keys := fixedDifferences(e.cfg, cfg); len(keys) > 0 {
		return sdk.Errorf(sdk.InvalidArgument, "reload: only transports can be changed while the engine runs; changing %s needs a new engine", strings.Join(keys, ", "))
	}
	if err := e.security.refresh(ctx); err != nil {
		return err
	}
	ts := &e.transports
	select {
	case ts.changes <- struct{}{}:
		defer func() { <-ts.changes }()
	case <-ctx.Done():
		return sdk.Errorf(sdk.Busy, "reload: another one is under way: %w", context.Cause(ctx))
	}
	if e.closing.Load() {
		return sdk.Errorf(sdk.Closed, "reload: the engine is closed")
	}
	finder, err := newFinder(cfg.Plugins)
	if err != nil {
		return err
	}
	var configs, later []TransportConfig
	var specs []pluginhost.Spec
	for _, c := range cfg.Transports {
		if c.onDemand && !ts.lists(c.Name) {
			later = append(later, c)
			continue
		}
		spec, err := finder.spec(c)
		switch {
		case err == nil:
			configs, specs = append(configs, c), append(specs, spec)
		case !c.leavesOut(err) || ts.lists(c.Name):
			return err // nothing was changed
		}
	}
	return ts.reload(ctx, configs, specs, later)
}

// fixedDifferences names the sections that differ, other than transports.
func fixedDifferences(was, is Config) []string {
	var keys []string
	a, b := reflect.ValueOf(was), reflect.ValueOf(is)
	for i := range a.NumField() {
		name := a.Type().Field(i).Name
		if name != "Transports" && !reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			keys = append(keys, strings.ToLower(name))
		}
	}
	return keys
}

// reload is under way as the only change.
func (ts *transports) reload(ctx context.Context, configs []TransportConfig, specs []pluginhost.Spec, later []TransportConfig) error {
	ts.mu.Lock()
	old := slices.Clone(ts.set)
	ts.mu.Unlock()

	var set, added, changed []*transport
	for i, spec := range specs {
		at := slices.IndexFunc(old, func(t *transport) bool { return t.spec.Name == spec.Name })
		if at < 0 {
			t := ts.newTransport(configs[i], spec, i)
			set, added = append(set, t), append(added, t)
			continue
		}
		t := old[at]
		if t.differs(spec) {
			changed = append(changed, t)
		}
		set = append(set, t)
	}
	var removed []*transport
	for _, t := range old {
		if !slices.Contains(set, t) {
			removed = append(removed, t)
		}
	}

	ts.change(func() {
		ts.set = set
		for i, t := range set {
			t.rank = i
		}
		ts.absent = nil
	})
	ts.postpone(later)
	var errs []error
	for _, t := range added {
		t.sup.Start()
	}
	for _, t := range changed {
		spec := specs[slices.IndexFunc(specs, func(s pluginhost.Spec) bool { return s.Name == t.spec.Name })]
		sum := imageSum(spec)
		if err := t.sup.Replace(ctx, spec); err != nil {
			errs = append(errs, t.unforeseen(err))
			continue
		}
		t.spec, t.sum = spec, sum
	}
	for _, t := range added {
		errs = append(errs, t.unforeseen(t.sup.Ready(ctx)))
	}
	for _, t := range removed {
		errs = append(errs, t.remove(ctx))
	}
	return errors.Join(errs...)
}

// lists reports whether a transport of this name is in the set.
func (ts *transports) lists(name string) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return slices.ContainsFunc(ts.set, func(t *transport) bool { return t.cfg.Name == name })
}

// unforeseen drops the error of a transport that nobody has listed, on a
// machine that has nothing for it.
func (t *transport) unforeseen(err error) error {
	if t.cfg.optional && errors.Is(err, sdk.Unsupported) {
		return nil
	}
	return err
}

// differs reports whether the transport has to be replaced to run spec: also
// when the binary at its path is another one than was started.
func (t *transport) differs(spec pluginhost.Spec) bool {
	a, b := t.spec, spec
	return a.Path != b.Path || a.SHA256 != b.SHA256 || string(a.Settings) != string(b.Settings) ||
		!maps.Equal(a.Env, b.Env) || a.Keys != b.Keys || funcPointer(a.InProcess) != funcPointer(b.InProcess) || t.sum != imageSum(spec)
}

func funcPointer(f func() sdk.Transport) uintptr { return reflect.ValueOf(&f).Elem().Pointer() }

// imageSum is the checksum of what is at the spec's path now, or empty.
func imageSum(spec pluginhost.Spec) string {
	if spec.InProcess != nil {
		return ""
	}
	sum, err := pluginhost.Checksum(spec.Path)
	if err != nil {
		return ""
	}
	return sum
}

// remove drains the transport and stops it. It is no longer in the set.
func (t *transport) remove(ctx context.Context) error {
	t.set.mu.Lock()
	cur := t.cur
	t.set.mu.Unlock()
	if cur != nil {
		ctx, cancel := context.WithTimeout(ctx, t.set.e.cfg.Plugins.DrainTimeout())
		defer cancel()
		t.set.e.drain(ctx, cur)
	}
	return t.sup.Stop(ctx)
}
