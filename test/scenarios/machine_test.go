//go:build linux

package scenarios

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
)

// What the machine is that the tests run on, where it is not the one that built
// them.
const (
	// builtVariable names a folder of binaries that are there: on machines
	// without Go, where the tests are a binary, too, and devices are real.
	builtVariable = "HAWSER_SCENARIO_BIN"
	// rdmaVariable has rdma's settings on real devices.
	rdmaVariable = "HAWSER_TEST_RDMA_SETTINGS"
	// slowVariable is by how much longer everything may take: on emulated hosts.
	slowVariable = "HAWSER_SCENARIO_SLOW"
)

// onHardware says that devices are not simulated.
func onHardware() bool { return os.Getenv(builtVariable) != "" }

// slow is a factor of all that has a time.
var slow = func() time.Duration {
	n, _ := strconv.Atoi(os.Getenv(slowVariable))
	return max(1, time.Duration(n))
}()

// unhurried gives plugins the time that the machine takes.
func unhurried(c engine.PluginsConfig) engine.PluginsConfig {
	if slow > 1 {
		c.StartTimeoutMS, c.HealthTimeoutMS = 10_000*int(slow), 2000*int(slow)
	}
	return c
}

// rdmaConfig is rdma's on real devices.
func rdmaConfig() json.RawMessage { return json.RawMessage(cmp.Or(os.Getenv(rdmaVariable), "{}")) }

// packetBytes is the largest payload that a packet of RDMA has.
const packetBytes = 4 << 10

// packets is how many this machine's RDMA devices have sent: what a transfer
// over them, and over nothing else, adds to. Devices that do not count are none.
func packets(t *testing.T) (n int) {
	t.Helper()
	counters, _ := filepath.Glob("/sys/class/infiniband/*/ports/*/hw_counters/sent_pkts")
	for _, file := range counters {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		k, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			t.Fatal(err)
		}
		n += k
	}
	return n
}
