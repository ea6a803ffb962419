package main

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// onMachine names the plugin's binary for the tests on this machine's own
// devices, as the lab of virtual hosts runs them.
const onMachine = "HAWSER_TEST_RDMA_PLUGIN"

// machinePlugin is that binary, and its settings, or the test is skipped.
func machinePlugin(t *testing.T) string {
	t.Helper()
	binary := os.Getenv(onMachine)
	if binary == "" {
		t.Skip("on simulated devices only: " + onMachine + " names no binary for this machine's own (make lab-rdma)")
	}
	return binary
}

// The suite of the binary, on this machine's own devices.
func TestConformanceOnThisMachine(t *testing.T) {
	binary := machinePlugin(t)
	sdktest.Run(t, sdktest.Harness{
		New:      func(t testing.TB) sdk.Transport { return sdktest.Binary(t, binary) },
		External: true,
		Settings: json.RawMessage(os.Getenv("HAWSER_TEST_RDMA_SETTINGS")),
		BadSettings: []json.RawMessage{
			json.RawMessage(`{"device": ["rxe0"]}`),
			json.RawMessage(`{"endpoint": {"rnr_retry": 6}}`),
		},
		Arrive: 10 * time.Second,
	})
}
