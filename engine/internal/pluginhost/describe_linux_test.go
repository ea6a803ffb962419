package pluginhost

import (
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
