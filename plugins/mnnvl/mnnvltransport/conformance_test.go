//go:build linux

package mnnvltransport

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

var badSettings = []json.RawMessage{
	json.RawMessage(`{"device": ["0"]}`),
	json.RawMessage(`{"devices": "0"}`),
	json.RawMessage(`{"devices": [""]}`),
	json.RawMessage(`{"streams": 0}`),
	json.RawMessage(`{"mapping_idle_secs": 0}`),
}

// each runs a test with memory of each kind that the machine grants.
func each(t *testing.T, run func(t *testing.T, kind cuda.Kind)) {
	for _, kind := range []cuda.Kind{cuda.PosixFD, cuda.Fabric, cuda.IPC} {
		t.Run(kind.String(), func(t *testing.T) {
			if hardware() != nil {
				grants(t, kind)
			}
			run(t, kind)
		})
	}
}

// grants skips where this machine refuses a kind.
func grants(t *testing.T, kind cuda.Kind) {
	t.Helper()
	d, err := hardware().Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close() //nolint:errcheck // test
	err = d.Do(func(c cuda.Context) error {
		a, err := cuda.Allocate(c, 1, kind)
		if err != nil {
			return err
		}
		return a.Close(c)
	})
	if err != nil {
		t.Skipf("SKIPPED, this machine does not grant %v handles: %v", kind, err)
	}
}

func TestConformance(t *testing.T) {
	each(t, func(t *testing.T, kind cuda.Kind) {
		if kind == cuda.IPC && hardware() != nil {
			t.Skip("SKIPPED, a process cannot open its own IPC handles: see TestConformanceOfTheBinary")
		}
		l := newLab(t)
		l.kinds = []cuda.Kind{kind}
		sdktest.Run(t, sdktest.Harness{
			New:         func(t testing.TB) sdk.Transport { return l.transport(t) },
			Memory:      l.memory,
			Secure:      kind == cuda.Fabric,
			Settings:    json.RawMessage(`{"accept_wait_ms": 1000}`),
			BadSettings: badSettings,
			Arrive:      time.Second,
		})
	})
}

// pluginPath names a binary that was built elsewhere, where there is no Go.
const pluginPath = "HAWSER_MNNVL_PLUGIN"

func plugin(t testing.TB, tags ...string) string {
	t.Helper()
	if path := os.Getenv(pluginPath); path != "" && len(tags) == 0 {
		return path
	}
	if hardware() != nil {
		t.Skipf("SKIPPED, there is no plugin of this build: %s does not name it", pluginPath)
	}
	binary := filepath.Join(t.TempDir(), "hawser-mnnvl")
	args := append([]string{"build", "-o", binary}, tags...)
	if out, err := exec.Command("go", append(args, "..")...).CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}

// binary starts the plugin on the lab's machine.
func (l *lab) binary(t testing.TB, path string) sdk.Transport {
	t.Helper()
	if hardware() != nil {
		return sdktest.Binary(t, path, os.Environ()...) // where the driver's library is
	}
	return sdktest.Binary(t, path, "HAWSER_CUDA_SIM="+l.file(t))
}

// The suite with each instance in a process of its own.
func TestConformanceOfTheBinary(t *testing.T) {
	path := plugin(t)
	each(t, func(t *testing.T, kind cuda.Kind) {
		if hardware() == nil && kind != cuda.PosixFD {
			t.Skip("as in process, where the simulated driver makes each transport a process")
		}
		l := newLab(t)
		l.kinds = []cuda.Kind{kind}
		sdktest.Run(t, sdktest.Harness{
			New:         func(t testing.TB) sdk.Transport { return l.binary(t, path) },
			Memory:      l.memory,
			External:    true,
			Settings:    json.RawMessage(`{"accept_wait_ms": 1000}`),
			BadSettings: badSettings,
			Arrive:      time.Second,
		})
	})
}
