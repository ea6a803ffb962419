package main

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The suite that the transport passes in process, with each instance in a
// process of its own.
func TestConformanceOfTheBinary(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "hawser-tcp")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	sdktest.Run(t, sdktest.Harness{
		New:      func(t testing.TB) sdk.Transport { return sdktest.Binary(t, binary) },
		External: true,
		Settings: json.RawMessage(`{"accept_wait_ms": 1000, "connect_timeout_ms": 1000}`),
		BadSettings: []json.RawMessage{
			json.RawMessage(`{"lisen": "127.0.0.1:0"}`),
			json.RawMessage(`{"listen": 7}`),
			json.RawMessage(`{"accept_wait_ms": 0}`),
		},
		Arrive: time.Second,
	})
}
