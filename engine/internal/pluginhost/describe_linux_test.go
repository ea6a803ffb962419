package pluginhost

import (
	"errors"
	"reflect"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
)

// Every feature that has a name is found by it.
func TestFeatureNamed(t *testing.T) {
	for _, f := range []sdk.Feature{sdk.FeatureNotify, sdk.FeatureProbe, sdk.FeatureDrain, sdk.FeatureMove, sdk.FeatureHandover, sdk.FeatureKeys, 999} {
		if got, err := featureNamed(f.String()); err != nil || got != f {
			t.Errorf("%v: %v, %v", f, got, err)
		}
	}
	if _, err := featureNamed("flight"); err == nil {
		t.Error("a name that is none was taken")
	}
}

// What a plugin says of memory arrives as it was said.
func TestMoveDescribed(t *testing.T) {
	d, err := parseDescribed([]byte(`{"name": "m", "contract": 1, "features": ["move"], "move": {"max_op": 5, "inflight": 6,
		"inflight_bytes": 7, "local": ["host", "device"], "remote": ["device"], "needs_flush": true, "target_writes": true, "parallel": 8}}`))
	want := sdk.MoveLimits{
		MaxOp: 5, Inflight: 6, InflightBytes: 7, Local: []sdk.MemoryKind{sdk.HostMemory, sdk.DeviceMemory},
		Remote: []sdk.MemoryKind{sdk.DeviceMemory}, NeedsFlush: true, TargetWrites: true, Parallel: 8,
	}
	if err != nil || !reflect.DeepEqual(d.Move, want) {
		t.Errorf("%+v, %v", d.Move, err)
	}
	if _, err := parseDescribed([]byte(`{"move": {"local": ["moon"]}}`)); !errors.Is(err, sdk.InvalidArgument) {
		t.Errorf("a kind that is none: %v", err)
	}
}
