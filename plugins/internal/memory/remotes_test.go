package memory

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
)

var provider = sdk.Incarnation{3, 15: 4}

func said(c sdk.Capability, base uint64, version uint64) sdk.RemoteRegion {
	return sdk.RemoteRegion{
		Provider: provider, Instance: 1, Capability: c, Kind: sdk.HostMemory, Base: base, Length: 100, Writable: true, Version: version,
	}
}

func announce(t *testing.T, table *Remotes, r sdk.RemoteRegion) {
	t.Helper()
	if err := table.Announce(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

func write(c sdk.Capability, base uint64) *sdk.Op {
	return &sdk.Op{Kind: sdk.Write, Remote: c, RemoteBase: base, Length: 100}
}

func wantUse(t *testing.T, table *Remotes, o *sdk.Op, code sdk.Code) RemoteUse {
	t.Helper()
	u, err := table.Use(provider, o)
	if sdk.CodeOf(err) != code {
		t.Errorf("%v of %v at %d: %v, want %v", o.Kind, o.Remote, o.RemoteBase, err, code)
	}
	return u
}

func TestRemoteUseChecks(t *testing.T) {
	var table Remotes
	one, two := sdk.Capability{1}, sdk.Capability{2}
	r := said(two, 2000, 1)
	r.Writable = false
	announce(t, &table, said(one, 1000, 1))
	announce(t, &table, r)
	if u := wantUse(t, &table, write(one, 0), 0); u.Name != one {
		t.Errorf("called %v", u.Name)
	}
	wantUse(t, &table, write(two, 0), sdk.Refused)
	wantUse(t, &table, write(sdk.Capability{3}, 1000), sdk.StaleCapability)
	// A base alone names no region that has a capability.
	wantUse(t, &table, write(sdk.Capability{}, 1000), sdk.StaleCapability)
	for _, c := range [][2]uint64{{1, 100}, {100, 1}, {1<<64 - 1, 1}, {0, 101}} {
		o := write(one, 0)
		o.RemoteOffset, o.Length = c[0], c[1]
		wantUse(t, &table, o, sdk.InvalidArgument)
	}
	if _, err := table.Use(sdk.Incarnation{9}, write(one, 0)); !errors.Is(err, sdk.StaleCapability) {
		t.Errorf("another provider's: %v", err)
	}
}

// A descriptor without a capability has it in the transport's attributes.
func TestOlderDescriptors(t *testing.T) {
	var table Remotes
	name := sdk.Capability{0xab, 15: 0xcd}
	r := said(sdk.Capability{}, 1000, 1)
	r.Attributes = sdk.Attributes{Attribute: "ab0000000000000000000000000000cd"}
	announce(t, &table, r)
	if u := wantUse(t, &table, write(sdk.Capability{}, 1000), 0); u.Name != name {
		t.Errorf("called %v", u.Name)
	}
	wantUse(t, &table, write(sdk.Capability{}, 1001), sdk.StaleCapability)
	for _, attr := range []string{"", "ab", "00000000000000000000000000000000"} {
		r.Attributes = sdk.Attributes{Attribute: attr}
		if err := table.Announce(t.Context(), r); !errors.Is(err, sdk.InvalidArgument) {
			t.Errorf("%q: %v", attr, err)
		}
	}
	r = said(name, 1, 1)
	r.Kind = sdk.DeviceMemory
	if err := table.Announce(t.Context(), r); !errors.Is(err, sdk.Unsupported) {
		t.Errorf("device memory: %v", err)
	}
	r.Kind = 0
	if err := table.Announce(t.Context(), r); !errors.Is(err, sdk.InvalidArgument) {
		t.Errorf("no kind: %v", err)
	}
}

func TestAnnounceReplaces(t *testing.T) {
	var table Remotes
	one, two := sdk.Capability{1}, sdk.Capability{2}
	announce(t, &table, said(one, 1000, 5))
	held := wantUse(t, &table, write(one, 0), 0)
	announce(t, &table, said(one, 1000, 6)) // the same
	if err := table.Withdraw(t.Context(), provider, two); err != nil {
		t.Errorf("not announced: %v", err)
	}
	announce(t, &table, said(two, 1000, 5)) // older than what is known of the base
	wantUse(t, &table, write(two, 0), sdk.StaleCapability)
	announce(t, &table, said(two, 1000, 7))
	wantUse(t, &table, write(one, 0), sdk.StaleCapability)
	wantUse(t, &table, write(two, 0), 0).End()
	// What was replaced leaves when its last use has ended.
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := table.Withdraw(over, provider, one); !errors.Is(err, sdk.Busy) || !strings.Contains(err.Error(), "1 ops are under way") {
		t.Errorf("in use: %v", err)
	}
	held.End()
	if err := table.Withdraw(over, provider, one); err != nil {
		t.Error(err)
	}
	// A region that has moved is at one place.
	announce(t, &table, said(two, 3000, 8))
	announce(t, &table, said(one, 1000, 8))
	wantUse(t, &table, write(two, 0), 0).End()
	if len(table.byBase) != 2 || len(table.byCapability) != 2 || len(table.leaving) != 0 {
		t.Errorf("%d places, %d titles, %d leaving", len(table.byBase), len(table.byCapability), len(table.leaving))
	}
}

func TestWithdraw(t *testing.T) {
	var table Remotes
	one, two := sdk.Capability{1}, sdk.Capability{2}
	announce(t, &table, said(one, 1000, 1))
	announce(t, &table, said(two, 2000, 1))
	foreign := said(one, 1000, 1)
	foreign.Provider = sdk.Incarnation{8}
	announce(t, &table, foreign)
	held := wantUse(t, &table, write(one, 0), 0)
	waits := make(chan error)
	go func() { waits <- table.Withdraw(t.Context(), provider, sdk.Capability{}) }()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := table.Withdraw(over, provider, sdk.Capability{}); !errors.Is(err, sdk.Busy) {
		t.Errorf("in use: %v", err)
	}
	wantUse(t, &table, write(one, 0), sdk.StaleCapability)
	wantUse(t, &table, write(two, 0), sdk.StaleCapability)
	held.End()
	if err := <-waits; err != nil {
		t.Error(err)
	}
	if u, err := table.Use(foreign.Provider, write(one, 0)); err != nil {
		t.Errorf("another provider's: %v", err)
	} else {
		u.End()
	}
	if len(table.byBase) != 1 || len(table.byCapability) != 1 || len(table.leaving) != 0 {
		t.Errorf("%d places, %d titles, %d leaving", len(table.byBase), len(table.byCapability), len(table.leaving))
	}
}
