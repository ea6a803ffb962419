package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The same suite, with the transport in processes of its own.
func TestConformanceOfTheBinary(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "transport")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	sdktest.Run(t, sdktest.Harness{
		New:      func(t testing.TB) sdk.Transport { return sdktest.Binary(t, binary) },
		External: true,
	})
}
