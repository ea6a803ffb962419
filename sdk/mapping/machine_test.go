package mapping

import (
	"context"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/hawser-transport/hawser/sdk"
)

// known is a source that a provider has published, and what is in the memory.
type known struct {
	s       Source
	content byte
}

// model is a mapping as the rules see it.
type model struct {
	known
	leases int
}

type heldLease struct {
	Lease[view]
	of *model
}

// machine drives a cache over the strict driver in fake time, and compares it
// step by step with rules that do not look into it.
type machine struct {
	*Cache[view]
	d         *driver
	providers []*provider
	locals    []*Local[view]

	all      []known
	sources  map[place]known
	mapped   map[place]*model // of the announced sources
	retiring []*model         // with leases
	floors   map[Key]uint64
	leases   []heldLease
	ended    []Lease[view]
	fired    int // injected errors of this step
}

const (
	machineMax  = 3
	machineIdle = time.Minute
)

func (m *machine) pick(t *rapid.T) known {
	recent := m.all[max(0, len(m.all)-8):]
	return recent[rapid.IntRange(0, len(recent)-1).Draw(t, "source")]
}

func (m *machine) publish(t *rapid.T) {
	p := rapid.SampledFrom(m.providers).Draw(t, "provider")
	base := rapid.Uint64Range(0, 2).Draw(t, "base") << 12
	kind := rapid.SampledFrom([]Kind{fabric, posix, ipc}).Draw(t, "kind")
	s := p.publish(base, kind, rapid.Bool().Draw(t, "capability"))
	m.all = append(m.all, known{s, p.content})
}

// describe has a provider publish the same memory in another descriptor.
func (m *machine) describe(t *rapid.T) {
	k := m.pick(t)
	for _, p := range m.providers {
		if p.id == k.s.Provider {
			p.version++
			k.s.Version = p.version
		}
	}
	m.all = append(m.all, k)
}

func (m *machine) announce(t *rapid.T) {
	k := m.pick(t)
	want := sdk.Code(0)
	floor, buried := m.floors[k.s.Key]
	now, have := m.sources[k.s.place()]
	switch {
	case buried && k.s.Version < floor:
		want = sdk.StaleCapability
	case have && k.s.Version < now.s.Version:
		want = sdk.StaleCapability
	case have && k.s.Version == now.s.Version && k.s.Key != now.s.Key:
		want = sdk.InvalidArgument
	}
	if err := m.Announce(k.s); sdk.CodeOf(err) != want {
		t.Fatalf("announce version %d of %v: %v, want code %v", k.s.Version, k.s.Key, err, want)
	}
	if want != 0 || have && k.s.Version == now.s.Version {
		return
	}
	kept := have && k.s.Key == now.s.Key && (!k.s.Capability.IsZero() || k.content == now.content && k.s.Kind == fabric)
	if have && !kept {
		m.retire(k.s.place())
		if k.s.Key != now.s.Key {
			m.bury(now.s.Key, k.s.Version)
		}
	}
	m.sources[k.s.place()] = k
}

// bury: a capability never comes back; what has none may, with version.
func (m *machine) bury(k Key, version uint64) {
	if !k.Capability.IsZero() {
		version = never
	}
	m.floors[k] = max(m.floors[k], version)
}

func (m *machine) retire(at place) {
	if o := m.mapped[at]; o != nil && o.leases > 0 {
		m.retiring = append(m.retiring, o)
	}
	delete(m.mapped, at)
}

func (m *machine) acquire(t *rapid.T) {
	k := m.pick(t)
	offset, length := uint64(0), uint64(1000)
	if rapid.IntRange(0, 9).Draw(t, "range") == 0 {
		offset = rapid.Uint64().Draw(t, "offset")
		length = rapid.Uint64().Draw(t, "length")
	}
	from := m.Acquire
	if n := rapid.IntRange(0, len(m.locals)).Draw(t, "local"); n > 0 {
		from = m.locals[n-1].Acquire
	}
	at := k.s.place()
	now, have := m.sources[at]
	o := m.mapped[at]
	imports := m.d.imports
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	l, err := from(ctx, k.s.Key, offset, length)
	synctest.Wait()
	evicted := m.evicted()
	want := sdk.Code(0)
	predecessor := slices.ContainsFunc(m.retiring, func(r *model) bool { return r.s.place() == at })
	full := len(m.mapped)+len(m.retiring) >= machineMax
	switch {
	case !have || now.s.Key != k.s.Key:
		want = sdk.StaleCapability
	case offset > 1000 || length > 1000-offset:
		want = sdk.InvalidArgument
	case o != nil:
	case now.s.Kind.ExclusiveBase && predecessor:
		want = sdk.Busy
	case full && len(evicted) == 0:
		want = sdk.Busy
		for _, other := range m.mapped {
			if other.leases == 0 {
				t.Fatalf("%v, and %v is idle", err, other.s.Key)
			}
		}
	}
	if len(evicted) > 1 && m.d.fired == m.fired {
		t.Fatalf("%d were evicted", len(evicted))
	}
	for _, v := range evicted { // another one if the first is stuck
		if want != 0 || o != nil || !full || v.leases > 0 {
			t.Fatalf("%v was evicted for nothing", v.s.Key)
		}
		m.retire(v.s.place())
	}
	code := sdk.CodeOf(err)
	if m.d.fired > m.fired && o == nil && want == 0 && (code == sdk.Refused || code == sdk.Busy) {
		return // the import failed, or what was to make room is stuck
	}
	if code != want {
		t.Fatalf("acquire %v: %v, want code %v", k.s.Key, err, want)
	}
	if want != 0 {
		if m.d.imports != imports {
			t.Fatalf("imported for an error: %v", err)
		}
		return
	}
	if o == nil {
		o = &model{known: now}
		m.mapped[at] = o
	} else if m.d.imports != imports {
		t.Fatalf("%v was imported again", k.s.Key)
	}
	o.leases++
	m.leases = append(m.leases, heldLease{l, o})
}

// evicted returns the mappings of the model that the cache has no more.
func (m *machine) evicted() (gone []*model) {
	have := map[Key]bool{}
	for _, i := range m.Mappings() {
		have[i.Key] = have[i.Key] || i.State != "retiring"
	}
	for _, o := range m.mapped {
		if !have[o.s.Key] {
			gone = append(gone, o)
		}
	}
	return gone
}

func (m *machine) release(t *rapid.T) {
	if len(m.ended) > 0 && rapid.Bool().Draw(t, "again") {
		rapid.SampledFrom(m.ended).Draw(t, "ended").Release()
		return
	}
	if len(m.leases) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.leases)-1).Draw(t, "lease")
	l := m.leases[i]
	l.Release()
	m.leases = slices.Delete(m.leases, i, i+1)
	m.ended = append(m.ended, l.Lease)
	l.of.leases--
	m.retiring = slices.DeleteFunc(m.retiring, func(o *model) bool { return o.leases == 0 })
}

func (m *machine) withdraw(t *rapid.T) {
	k := m.pick(t).s.Key
	if now, have := m.sources[k.place()]; have && now.s.Key == k {
		m.bury(k, now.s.Version+1)
		m.retire(k.place())
		delete(m.sources, k.place())
	} else if !k.Capability.IsZero() {
		m.bury(k, never)
	}
	want := sdk.Code(0)
	if slices.ContainsFunc(m.retiring, func(o *model) bool { return o.s.Key == k }) {
		want = sdk.Busy
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := m.Withdraw(ctx, k)
	synctest.Wait()
	if sdk.CodeOf(err) != want && (m.d.fired == m.fired || sdk.CodeOf(err) != sdk.Busy) {
		t.Fatalf("withdraw %v: %v, want code %v", k, err, want)
	}
}

func (m *machine) providerGone(t *rapid.T) {
	p := rapid.SampledFrom(m.providers).Draw(t, "provider")
	m.RetireProvider(p.id)
	for at, k := range m.sources {
		if at.provider == p.id {
			m.retire(at)
			m.floors[k.s.Key] = max(m.floors[k.s.Key], k.s.Version)
			delete(m.sources, at)
		}
	}
}

func (m *machine) idle(*rapid.T) {
	time.Sleep(2 * machineIdle)
	for at, o := range m.mapped {
		if o.leases == 0 {
			delete(m.mapped, at)
		}
	}
}

func (m *machine) renew(t *rapid.T) {
	i := rapid.IntRange(0, len(m.locals)-1).Draw(t, "local")
	m.locals[i].Close()
	m.locals[i] = m.NewLocal()
}

// inject has one of the next calls of the driver fail.
func (m *machine) inject(t *rapid.T) {
	at := m.d.calls + rapid.IntRange(1, 5).Draw(t, "call")
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	m.d.before = func(_ string, n int) error {
		if n == at {
			return errInjected
		}
		return nil
	}
}

// check compares once all that goes on by itself has happened.
func (m *machine) check(t *rapid.T) {
	synctest.Wait()
	if m.d.fired > m.fired {
		time.Sleep(time.Second) // what was refused is tried again
		synctest.Wait()
		m.fired = m.d.fired
	}
	m.d.check(t, false)
	for _, l := range m.leases {
		if got := l.Mapping().read(); got != l.of.content {
			t.Fatalf("a lease of %v reads %d, want %d", l.of.s.Key, got, l.of.content)
		}
	}
	got := m.Stats()
	got.Totals = Totals{}
	want := Stats{Sources: len(m.sources), Live: len(m.mapped), Retiring: len(m.retiring), Leases: len(m.leases)}
	for _, o := range append(slices.Collect(maps.Values(m.mapped)), m.retiring...) {
		if o.leases > 0 {
			want.Leased++
		}
	}
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	if got != want || len(m.d.mapped) != want.Live+want.Retiring || m.d.open["map"]+m.d.open["ipc"] != len(m.d.mapped) {
		t.Fatalf("%+v, want %+v; %d mapped", got, want, len(m.d.mapped))
	}
}

func TestMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fired int
		rapid.Check(struct{ rapid.TB }{t}, func(t *rapid.T) { // a *testing.T has no Deadline in a bubble
			d := newDriver()
			m := &machine{
				Cache: New(d.importer, Options{MaxMappings: machineMax, Idle: machineIdle}), d: d,
				providers: []*provider{newProvider(1), newProvider(2)},
				sources:   map[place]known{}, mapped: map[place]*model{}, floors: map[Key]uint64{},
			}
			m.locals = []*Local[view]{m.NewLocal(), m.NewLocal()}
			defer func() { // also when a check has failed: the bubble waits for its goroutines
				for _, l := range m.leases {
					l.Release()
				}
				if err := m.Close(context.Background()); err != nil {
					t.Fatalf("%v", err)
				}
			}()
			m.publish(t)
			t.Repeat(map[string]func(*rapid.T){
				"publish": m.publish, "describe": m.describe, "announce": m.announce, "announce ": m.announce,
				"acquire": m.acquire, "acquire ": m.acquire, "acquire  ": m.acquire, "release": m.release,
				"withdraw": m.withdraw, "provider gone": m.providerGone, "idle": m.idle, "renew": m.renew,
				"inject": m.inject, "": m.check,
			})
			for _, l := range m.leases {
				l.Release()
			}
			m.leases = nil
			if err := m.Close(context.Background()); err != nil {
				t.Fatalf("%v", err)
			}
			fired += d.fired
			d.check(t, true)
		})
		if fired == 0 {
			t.Error("no error was injected")
		}
	})
}
