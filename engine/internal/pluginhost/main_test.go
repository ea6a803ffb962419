//go:build linux

package pluginhost

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain lets the test binary be a plugin, or a host, for its own tests.
func TestMain(m *testing.M) {
	for _, name := range []string{actorEnv, describedEnv} {
		if act := actors[os.Getenv(name)]; act != nil {
			act()
			return
		}
	}
	goleak.VerifyTestMain(m)
}
