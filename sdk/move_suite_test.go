//go:build linux

package sdk_test

import (
	"testing"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// TestMovingFabricConformsAcrossTheBoundary: what passes the suite inside a
// process passes it across the boundary of one.
func TestMovingFabricConformsAcrossTheBoundary(t *testing.T) {
	var f *sdktest.Fabric
	var owner testing.TB
	n := 0
	sdktest.Run(t, sdktest.Harness{
		New: func(t testing.TB) sdk.Transport {
			if f == nil || owner != t {
				f, owner = sdktest.NewFabric(sdktest.FabricOptions{
					Moves: true, NoFrames: true,
					Move: sdk.MoveLimits{MaxOp: 100_000, Inflight: 16, InflightBytes: 300_000, Parallel: 2},
				}), t
			}
			n++
			return newBoundary(t, f.New([]string{"x", "y"}[n%2]), true)
		},
		External: true, // the boundary's own goroutines are there until the test has ended
	})
}
