package sdktest

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"reflect"
	"regexp"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/hawser-transport/hawser/sdk"
)

var transportName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

func describeIsConstant(r *rig) {
	p := r.peers[0]
	before, files := snapshot(), openFiles()
	first := p.tr.Describe()
	for range 3 {
		if again := p.tr.Describe(); !reflect.DeepEqual(first, again) {
			r.Errorf("Describe changed from %+v to %+v", first, again)
		}
	}
	if !r.h.External && !r.h.bubble {
		if n := openFiles(); n > files {
			r.Errorf("Describe opened %d files", n-files)
		}
		r.checkLeaks(before)
	}
	r.configure(p)
	if again := p.tr.Describe(); !reflect.DeepEqual(r.desc.Limits, again.Limits) || r.desc.Name != again.Name {
		r.Errorf("Describe changed with Configure from %+v to %+v", r.desc, again)
	}
	other := r.make("b").tr.Describe()
	if other.Name != r.desc.Name || other.Version != r.desc.Version {
		r.Errorf("two instances describe themselves as %+v and %+v", r.desc, other)
	}
}

func describeIsValid(r *rig) {
	d := r.desc
	if !transportName.MatchString(d.Name) {
		r.Errorf("the name %q is not 1 to 32 of [a-z0-9-]", d.Name)
	}
	if d.Version == "" {
		r.Error("no version")
	}
	if d.Contract != sdk.ContractVersion {
		r.Errorf("contract version %d, this is %d", d.Contract, sdk.ContractVersion)
	}
	l := d.Limits
	if l.MaxFrame < 0 || l.MaxFrame > sdk.MaxFrameLimit {
		r.Errorf("MaxFrame %d is not within 0..%d", l.MaxFrame, sdk.MaxFrameLimit)
	}
	if l.InflightFrames < 0 || l.InflightBytes < 0 {
		r.Errorf("a negative limit: %+v", l)
	}
	seen := map[sdk.Feature]bool{}
	for _, f := range d.Features {
		if f == 0 || seen[f] {
			r.Errorf("feature %v is listed twice, or is none", f)
		}
		seen[f] = true
	}
	p := r.peers[0]
	_, notifies := p.tr.(sdk.Notifier)
	_, probes := p.tr.(sdk.Prober)
	_, drains := p.tr.(sdk.Drainer)
	_, keyed := p.tr.(sdk.Keyed)
	_, moves := p.tr.(sdk.Mover)
	for f, implemented := range map[sdk.Feature]bool{
		sdk.FeatureNotify: notifies, sdk.FeatureProbe: probes, sdk.FeatureDrain: drains, sdk.FeatureKeys: keyed, sdk.FeatureMove: moves,
	} {
		if d.Has(f) && !implemented {
			r.Errorf("%v is listed, and not implemented", f)
		}
	}
	if err := d.Move.Check(); err != nil && moves && d.Has(sdk.FeatureMove) {
		r.Error(err)
	}
	names := map[string]bool{}
	for _, spec := range d.Listeners {
		if spec.Name == "" || names[spec.Name] {
			r.Errorf("listener name %q is empty or used twice", spec.Name)
		}
		names[spec.Name] = true
		if _, _, err := net.SplitHostPort(spec.Default); err != nil {
			r.Errorf("listener %s: default address: %v", spec.Name, err)
		}
	}
}

// compile makes a validator of the transport's schema.
func (r *rig) compile() *jsonschema.Schema {
	r.Helper()
	var doc any
	if err := json.Unmarshal(r.desc.ConfigSchema, &doc); err != nil {
		r.Fatalf("the schema is not JSON: %v", err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(jsonschema.SchemeURLLoader{}) // loads nothing
	if err := c.AddResource("config.json", doc); err != nil {
		r.Fatalf("the schema: %v", err)
	}
	s, err := c.Compile("config.json")
	if err != nil {
		r.Fatalf("the schema: %v", err)
	}
	return s
}

func describeSchema(r *rig) {
	s := r.compile()
	check := func(settings json.RawMessage) error {
		var v any
		if err := json.Unmarshal(settings, &v); err != nil {
			return err
		}
		return s.Validate(v)
	}
	if err := check(r.h.Settings); err != nil {
		r.Errorf("the harness's settings are not valid under the schema: %v", err)
	}
	for _, not := range []string{`[]`, `"text"`, `null`} {
		if check(json.RawMessage(not)) == nil {
			r.Errorf("the schema allows %s, which is not an object", not)
		}
	}
	for _, spec := range r.desc.Listeners {
		with, err := merge(r.h.Settings, spec.Key, "127.0.0.1:0")
		if err != nil {
			r.Fatal(err)
		}
		if spec.Key == "" {
			continue
		}
		if err := check(with); err != nil {
			r.Errorf("the schema does not know the key of listener %s: %v", spec.Name, err)
		}
	}
}

// merge sets one property of a JSON object.
func merge(settings json.RawMessage, key, value string) (json.RawMessage, error) {
	m := map[string]any{}
	if err := json.Unmarshal(settings, &m); err != nil {
		return nil, err
	}
	m[key] = value
	return json.Marshal(m)
}

func setupIsValid(r *rig) {
	for _, p := range []*peer{r.a, r.b} {
		size := 0
		for k, v := range p.setup.Attributes {
			size += len(k) + len(v)
		}
		if len(p.setup.Attributes) > 64 || size > 16<<10 {
			r.Errorf("%d attributes of %d bytes are over 64 and 16 KiB", len(p.setup.Attributes), size)
		}
		for _, path := range p.setup.Paths {
			if path.Name == "" {
				r.Error("a local path without a name")
			}
		}
	}
	if r.desc.Has(sdk.FeatureNotify) && reflect.DeepEqual(r.a.setup.Attributes, r.b.setup.Attributes) {
		r.Errorf("two instances publish the same attributes: %v", r.a.setup.Attributes)
	}
}

func configureBadSettings(r *rig) {
	for i, bad := range r.h.BadSettings {
		p := r.peers[0]
		if i > 0 {
			p = r.make("a")
		}
		_, err := p.tr.Configure(r.ctx(), r.config(p, bad))
		if !errors.Is(err, sdk.InvalidArgument) {
			r.Errorf("Configure with %s: %v, want %v", bad, err, sdk.InvalidArgument)
		}
		r.close(p)
	}
}

func configureOccupied(r *rig) {
	p := r.peers[0]
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // test
	settings := r.h.Settings
	for _, spec := range r.desc.Listeners {
		if spec.Key == "" {
			r.Skip("a listener without a key")
		}
		if settings, err = merge(settings, spec.Key, l.Addr().String()); err != nil {
			r.Fatal(err)
		}
	}
	if _, err = p.tr.Configure(r.ctx(), r.config(p, settings)); err == nil {
		r.Error("Configure succeeded on an address that is in use")
	} else if sdk.CodeOf(err) == 0 {
		r.Errorf("Configure failed without a code: %v", err)
	}
}

func configureOwnListeners(r *rig) {
	settings := r.h.Settings
	for _, spec := range r.desc.Listeners {
		if spec.Key == "" {
			r.Skip("a listener without a key")
		}
		var err error
		if settings, err = merge(settings, spec.Key, "127.0.0.1:0"); err != nil {
			r.Fatal(err)
		}
	}
	r.limits = r.desc.Limits.WithDefaults()
	r.a, r.b = r.peers[0], r.make("b")
	for _, p := range []*peer{r.a, r.b} {
		var err error
		if p.setup, err = p.tr.Configure(r.ctx(), r.config(p, settings)); err != nil {
			r.Fatalf("Configure without listeners: %v", err)
		}
	}
	if r.desc.Has(sdk.FeatureNotify) {
		r.works()
	}
}

// configureCancelled: Configure may succeed or fail, but returns.
func configureCancelled(r *rig) {
	p := r.peers[0]
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	cfg := r.config(p, r.h.Settings)
	for _, spec := range r.desc.Listeners {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			r.Fatal(err)
		}
		p.listeners[spec.Name] = l
	}
	cfg.Listeners = r.lend(p)
	r.within("Configure with an ended context", func() {
		if _, err := p.tr.Configure(ctx, cfg); err == nil {
			return
		}
		for _, l := range cfg.Listeners {
			l.Close() //nolint:errcheck // perhaps the transport did
		}
	})
}

func closeUnconfigured(r *rig) {
	p := r.peers[0]
	r.close(p)
	r.close(p)
}

func closeIdempotent(r *rig) {
	if r.desc.Has(sdk.FeatureNotify) {
		a, b := r.connect(r.a, r.b)
		r.talk(a, b, 3)
	}
	// Of two calls at a time either may fail, as the other one interrupts it.
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() { _ = r.a.tr.Close(r.ctx()) })
	}
	r.within("Close, called twice at a time,", both.Wait)
	r.close(r.a)
	r.close(r.a)
}
