//go:build linux

package memory

import (
	"context"
	"errors"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
)

// clip is a pin that does not let go for a while.
type clip struct {
	bytes   []byte
	refuses int
	gone    bool
}

var errHeld = errors.New("held")

func (c *clip) Attributes() sdk.Attributes { return sdk.Attributes{"key": "7"} }

func (c *clip) Release() error {
	if c.refuses > 0 {
		c.refuses--
		return errHeld
	}
	_ = c.bytes[0] // it is mapped still
	c.gone = true
	return nil
}

// What a transport holds of a mapping is let go before the mapping goes.
func TestPins(t *testing.T) {
	c := &clip{refuses: 1}
	table := &Regions{Pin: func(_ *sdk.Region, bytes []byte) (Pin, error) {
		c.bytes = bytes
		return c, nil
	}}
	r, _ := exported(t, 5000, true)
	before := len(mappings(t))
	attrs, err := table.Register(t.Context(), r)
	if err != nil || attrs["key"] != "7" || attrs[Attribute] == "" || len(c.bytes) != 5000 {
		t.Fatalf("%v, %v, %d bytes", attrs, err, len(c.bytes))
	}
	u, err := table.Use(r.Capability, true, 10, 20)
	if err != nil || u.Pin != Pin(c) || &u.Bytes[0] != &c.bytes[10] {
		t.Errorf("use %+v: %v", u, err)
	}
	u.End()
	if err := table.Deregister(t.Context(), r.Capability); !errors.Is(err, sdk.Busy) || !errors.Is(err, errHeld) || len(mappings(t)) != before+1 {
		t.Errorf("while it is held: %v, %d mappings after %d", err, len(mappings(t)), before)
	}
	if _, err := table.Use(r.Capability, true, 10, 20); !errors.Is(err, sdk.StaleCapability) {
		t.Errorf("a use while it leaves: %v", err)
	}
	if err := table.Close(context.Background()); err != nil || !c.gone || len(mappings(t)) != before {
		t.Errorf("Close: %v, gone %t", err, c.gone)
	}
}

func TestWhatCannotBePinnedIsNotMapped(t *testing.T) {
	table := &Regions{Pin: func(*sdk.Region, []byte) (Pin, error) { return nil, errHeld }}
	r, _ := exported(t, 5000, true)
	before := len(mappings(t))
	if _, err := table.Register(t.Context(), r); !errors.Is(err, errHeld) || len(mappings(t)) != before {
		t.Errorf("%v, %d mappings after %d", err, len(mappings(t)), before)
	}
	if err := table.Deregister(t.Context(), r.Capability); err != nil {
		t.Error(err)
	}
}

// A second registration leaves nothing, and the first one alone.
func TestPinsOfARegionThatIsRegistered(t *testing.T) {
	var pins []*clip
	table := &Regions{Pin: func(_ *sdk.Region, bytes []byte) (Pin, error) {
		pins = append(pins, &clip{bytes: bytes})
		return pins[len(pins)-1], nil
	}}
	first, _ := exported(t, 5000, true)
	second, _ := exported(t, 5000, true)
	for i, r := range []sdk.Region{first, second} {
		if _, err := table.Register(t.Context(), r); (i == 1) != errors.Is(err, sdk.Busy) {
			t.Errorf("Register %d: %v", i, err)
		}
	}
	if pins[0].gone || !pins[1].gone {
		t.Errorf("pins %+v %+v", pins[0], pins[1])
	}
	if err := table.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

// Of a table that reads attributes, regions that differ in them are others.
func TestAttributesThatAreRead(t *testing.T) {
	table := &Remotes{Read: func(r *sdk.RemoteRegion) (any, error) {
		if r.Attributes["key"] == "" {
			return nil, errHeld
		}
		return r.Attributes["key"], nil
	}}
	c := sdk.Capability{1}
	r := said(c, 1000, 1)
	if err := table.Announce(t.Context(), r); !errors.Is(err, errHeld) {
		t.Errorf("Announce: %v", err)
	}
	for i, now := range []struct {
		key      string
		instance uint64
	}{{"7", 1}, {"7", 1}, {"8", 1}, {"8", 2}} {
		r.Attributes, r.Instance = sdk.Attributes{"key": now.key}, now.instance
		announce(t, table, r)
		u := wantUse(t, table, write(c, 0), 0)
		if u.Read != now.key || u.Instance != now.instance {
			t.Errorf("%d: %v of instance %d", i, u.Read, u.Instance)
		}
		u.End()
	}
	// An op holds what it was given, also when another has come.
	u := wantUse(t, table, write(c, 0), 0)
	r.Attributes = sdk.Attributes{"key": "9"}
	announce(t, table, r)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := table.Withdraw(ended, provider, c); !errors.Is(err, sdk.Busy) || u.Read != "8" {
		t.Errorf("%v with %v", err, u.Read)
	}
	u.End()
	if err := table.Withdraw(ended, provider, c); err != nil {
		t.Error(err)
	}
}
