package sdktest

import (
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

func fabricHarness(bubble bool) Harness { return fabricWith(FabricOptions{}, bubble) }

// movingMost are limits small enough to be met.
var movingMost = sdk.MoveLimits{MaxOp: 100_000, Inflight: 16, InflightBytes: 300_000, Parallel: 2}

func fabricWith(opt FabricOptions, bubble bool) Harness {
	var f *Fabric
	opt.Paths, opt.ArriveTimeout = []string{"p0", "p1"}, time.Second // in a case a peer comes 30 ms late
	if bubble {
		opt.ArriveTimeout = 50 * time.Millisecond
	}
	return Harness{
		New: func() func(testing.TB) sdk.Transport {
			var owner testing.TB
			n := 0
			return func(t testing.TB) sdk.Transport {
				if f == nil || owner != t {
					f, owner = NewFabric(opt), t
					if bubble {
						f.Delay("", "", "", time.Millisecond) // costs nothing
					}
				}
				n++
				return f.New([]string{"x", "y"}[n%2])
			}
		}(),
		Lose: func(_ testing.TB, _ sdk.Transport, path string, lost bool) {
			f.setLost("x", path, lost) // whichever it is, and whatever is around it
			f.setLost("y", path, lost)
		},
		Arrive: opt.ArriveTimeout,
		bubble: bubble, Inbox: true,
	}
}

func TestFabricConforms(t *testing.T) { Run(t, fabricHarness(false)) }

func TestFabricConformsInFakeTime(t *testing.T) { Run(t, fabricHarness(true)) }

func TestMovingFabricConforms(t *testing.T) {
	h := fabricWith(FabricOptions{Moves: true, Move: movingMost}, false)
	h.only = "move-"
	Run(t, h)
}

func TestMovingFabricConformsInFakeTime(t *testing.T) {
	h := fabricWith(FabricOptions{Moves: true, Move: movingMost}, true)
	h.only = "move-"
	Run(t, h)
}

func TestFlushingFabricConforms(t *testing.T) {
	most := movingMost
	most.NeedsFlush = true
	Run(t, fabricWith(FabricOptions{Moves: true, Move: most, NoFrames: true}, true))
}
