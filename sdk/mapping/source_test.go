package mapping

import (
	"math"
	"strings"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
)

func TestWithin(t *testing.T) {
	const top = math.MaxUint64
	for _, c := range []struct {
		offset, length, size uint64
		want                 bool
	}{
		{0, 0, 0, true}, {0, 1, 0, false}, {0, 10, 10, true}, {0, 11, 10, false}, {9, 1, 10, true}, {9, 2, 10, false},
		{10, 0, 10, true}, {10, 1, 10, false}, {11, 0, 10, false}, {5, top, 10, false}, {5, top - 4, 10, false},
		{top, 1, 10, false}, {top, top, top, false}, {1, top - 1, top, true}, {2, top - 1, top, false}, {top, 0, top, true},
	} {
		if got := within(c.offset, c.length, c.size); got != c.want {
			t.Errorf("%d bytes from %d on in %d: %v", c.length, c.offset, c.size, got)
		}
	}
}

func TestSourcesAreChecked(t *testing.T) {
	good := newProvider(1).publish(0x1000, fabric, true)
	for _, c := range []struct {
		name   string
		change func(*Source)
		want   sdk.Code
	}{
		{"good", func(*Source) {}, 0},
		{"no provider", func(s *Source) { s.Provider = sdk.Incarnation{} }, sdk.InvalidArgument},
		{"no length", func(s *Source) { s.Length = 0 }, sdk.InvalidArgument},
		{"up to 2^64", func(s *Source) { s.Base, s.Length = math.MaxUint64-9, 10 }, 0},
		{"beyond 2^64", func(s *Source) { s.Base, s.Length = math.MaxUint64-9, 11 }, sdk.InvalidArgument},
		{"a wrap", func(s *Source) { s.Length = math.MaxUint64 }, sdk.InvalidArgument},
		{"a handle at the limit", func(s *Source) { s.Handle = make([]byte, MaxHandle) }, 0},
		{"a handle over the limit", func(s *Source) { s.Handle = make([]byte, MaxHandle+1) }, sdk.TooLarge},
		{"attributes over the limit", func(s *Source) { s.Attributes = sdk.Attributes{"a": strings.Repeat("x", 17<<10)} }, sdk.TooLarge},
		{"no capability", func(s *Source) { s.Capability = sdk.Capability{} }, 0},
	} {
		r := newRig(t, Options{})
		s := good
		c.change(&s)
		if err := r.Announce(s); sdk.CodeOf(err) != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestJudge(t *testing.T) {
	base := Source{Key: Key{Provider: sdk.Incarnation{15: 1}, Base: 1, Capability: sdk.Capability{1}}, Length: 10, Kind: fabric, Handle: []byte{1}, Version: 5}
	with := func(s Source, changes ...func(*Source)) Source {
		for _, c := range changes {
			c(&s)
		}
		return s
	}
	version := func(v uint64) func(*Source) { return func(s *Source) { s.Version = v } }
	capability := func(c byte) func(*Source) { return func(s *Source) { s.Capability = sdk.Capability{c} } }
	handle := func(s *Source) { s.Handle = []byte{2} }
	length := func(s *Source) { s.Length = 11 }
	kind := func(k Kind) func(*Source) { return func(s *Source) { s.Kind = k } }
	attributes := func(s *Source) { s.Attributes = sdk.Attributes{"a": "b"} }
	for _, c := range []struct {
		name          string
		present, next Source
		want          verdict
		code          sdk.Code
	}{
		{"again", base, base, same, 0},
		{"older", base, with(base, version(4)), same, sdk.StaleCapability},
		{"older, other capability", base, with(base, version(4), capability(2)), same, sdk.StaleCapability},
		{"one version, two capabilities", base, with(base, capability(2)), same, sdk.InvalidArgument},
		{"one version, two handles", base, with(base, handle), same, sdk.InvalidArgument},
		{"one version, two attributes", base, with(base, attributes), same, sdk.InvalidArgument},
		{"newer", base, with(base, version(6)), keep, 0},
		{"newer, the plugin has restarted", base, with(base, version(6), handle, attributes), keep, 0},
		{"newer, another length", base, with(base, version(6), length), same, sdk.InvalidArgument},
		{"newer, another capability", base, with(base, version(6), capability(2)), replace, 0},
		{"newer, another capability and length", base, with(base, version(6), capability(2), length), replace, 0},
		{"newer, no capability any more", base, with(base, version(6), capability(0)), replace, 0},
		{"newer, a capability at last", with(base, capability(0)), with(base, version(6)), replace, 0},
		{"fd with a capability", with(base, kind(posix)), with(base, kind(posix), version(6)), keep, 0},
		{"no capability, fabric, equal", with(base, capability(0)), with(base, capability(0), version(6)), keep, 0},
		{"no capability, fabric, other handle", with(base, capability(0)), with(base, capability(0), version(6), handle), replace, 0},
		{"no capability, fabric, other length", with(base, capability(0)), with(base, capability(0), version(6), length), replace, 0},
		{"no capability, fabric to fd", with(base, capability(0)), with(base, capability(0), version(6), kind(posix)), replace, 0},
		{"no capability, fd, equal", with(base, capability(0), kind(posix)), with(base, capability(0), kind(posix), version(6)), replace, 0},
		{"no capability, ipc, equal", with(base, capability(0), kind(ipc)), with(base, capability(0), kind(ipc), version(6)), replace, 0},
		{"no capability, fd, the same version", with(base, capability(0), kind(posix)), with(base, capability(0), kind(posix)), same, 0},
	} {
		got, err := judge(c.present, c.next)
		if got != c.want || sdk.CodeOf(err) != c.code {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
}

func TestTombstones(t *testing.T) {
	k := func(n uint64) Key { return Key{Base: n} }
	var s tombstones
	s.bury(k(0), 5)
	s.bury(k(0), 3) // does not sink
	s.bury(k(1), never)
	for v, want := range map[uint64]bool{0: true, 4: true, 5: false, never: false} {
		if got := s.forbid(k(0), v); got != want {
			t.Errorf("floor 5, version %d: %v", v, got)
		}
	}
	if !s.forbid(k(1), 0) || !s.forbid(k(1), never) || s.forbid(k(2), 0) {
		t.Error("for ever, or never buried")
	}
}

// TestTombstonesAreBounded: of one provider the oldest are forgotten, and no
// other's; when there are too many of all, those of the provider that has most.
func TestTombstonesAreBounded(t *testing.T) {
	k := func(provider byte, n int) Key { return Key{Provider: sdk.Incarnation{provider}, Base: uint64(n)} }
	var s tombstones
	s.bury(k(1, 0), never)
	for n := range 3 * maxProviderTombstones {
		s.bury(k(2, n), never)
	}
	const first = 2 * maxProviderTombstones
	if s.forbid(k(2, 0), 0) || s.forbid(k(2, first-1), 0) || !s.forbid(k(2, first), 0) || !s.forbid(k(1, 0), 0) || s.n != maxProviderTombstones+1 {
		t.Errorf("%d tombstones, and not the oldest of the provider are forgotten", s.n)
	}
	// Many with two each, as many as fit.
	for n := 0; s.n < maxTombstones; n++ {
		s.bury(Key{Provider: sdk.Incarnation{0xff, byte(n >> 17), byte(n >> 9), byte(n >> 1)}, Base: uint64(n)}, never)
	}
	for n := range 100 {
		s.bury(k(1, 1+n), never)
	}
	if s.n != maxTombstones || s.forbid(k(2, first+99), 0) || !s.forbid(k(2, first+100), 0) || !s.forbid(k(1, 0), 0) {
		t.Errorf("%d tombstones, and not those of the provider with most are forgotten", s.n)
	}
	// Many with one each: of whom nothing is known any more nothing is kept.
	s = tombstones{}
	for n := range maxTombstones + 10 {
		s.bury(Key{Provider: sdk.Incarnation{0xff, byte(n >> 16), byte(n >> 8), byte(n)}}, never)
	}
	left := 0
	for provider, g := range s.providers {
		if len(g.floors) != len(g.order) || len(g.order) == 0 {
			t.Errorf("%v has %d tombstones, %d in order", provider, len(g.floors), len(g.order))
		}
		left += len(g.order)
	}
	if left != s.n || s.n != maxTombstones {
		t.Errorf("%d tombstones are counted as %d", left, s.n)
	}
}

func TestKeysGiveNoCapabilityAway(t *testing.T) {
	k := Key{Provider: sdk.Incarnation{0xab, 15: 1}, Base: 0x7000, Capability: sdk.Capability{1, 2, 3, 4, 5, 6, 7, 8}}
	if got, want := k.String(), "ab000000@0x7000 (capability 01020304)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	k.Capability = sdk.Capability{}
	if got, want := k.String(), "ab000000@0x7000 (no capability)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
