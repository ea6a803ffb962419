package sdktest

import (
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

func fabricHarness(bubble bool) Harness {
	var f *Fabric
	return Harness{
		New: func() func(testing.TB) sdk.Transport {
			var owner testing.TB
			n := 0
			return func(t testing.TB) sdk.Transport {
				if f == nil || owner != t {
					f, owner = NewFabric(FabricOptions{Paths: []string{"p0", "p1"}, ArriveTimeout: 50 * time.Millisecond}), t
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
		Arrive: 50 * time.Millisecond,
		bubble: bubble, Inbox: true,
	}
}

func TestFabricConforms(t *testing.T) { Run(t, fabricHarness(false)) }

func TestFabricConformsInFakeTime(t *testing.T) { Run(t, fabricHarness(true)) }
