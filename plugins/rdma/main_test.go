package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/simverbs"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "hawser-rdma")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}

// The suite that the transport passes in process, with each instance in a
// process of its own, on a simulated host of its own.
func TestConformanceOfTheBinary(t *testing.T) {
	binary := build(t)
	dir, err := os.MkdirTemp("", "rdma") // t.TempDir is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var hosts atomic.Int32
	var names sync.Map // of the hosts
	sdktest.Run(t, sdktest.Harness{
		Inbox: true, // done is what the peer's device has, landed or handed over
		New: func(t testing.TB) sdk.Transport {
			n := int(hosts.Add(1))
			tr := sdktest.Binary(t, binary, simulation+"="+host(t, dir, n))
			names.Store(tr, fmt.Sprintf("h%d", n))
			return tr
		},
		Lose: func(t testing.TB, tr sdk.Transport, _ string, lost bool) {
			name, _ := names.Load(tr)
			change := simverbs.Control(dir).PortUp
			if lost {
				change = simverbs.Control(dir).PortDown
			}
			if err := change(simverbs.PortName{Host: name.(string), Device: "sim0", Port: 1}); err != nil {
				t.Fatal(err)
			}
		},
		External: true,
		Settings: json.RawMessage(`{"accept_wait_ms": 1000, "endpoint": {"send_timeout": 17}}`),
		BadSettings: []json.RawMessage{
			json.RawMessage(`{"device": ["sim0"]}`),
			json.RawMessage(`{"endpoint": {"rnr_retry": 6}}`),
		},
		Arrive: time.Second,
	})
}

// host writes the options of a host with two rails, and returns their file.
func host(t testing.TB, dir string, n int) string {
	t.Helper()
	o := simverbs.Options{Host: fmt.Sprintf("h%d", n)}
	for rail := range 2 {
		o.Devices = append(o.Devices, simverbs.Device{
			Name: fmt.Sprintf("sim%d", rail), NUMA: rail,
			Ports: []simverbs.Port{{GIDs: []verbs.GID{{
				Addr: netip.AddrFrom16(netip.AddrFrom4([4]byte{10, 77, byte(rail), byte(n)}).As16()), Type: verbs.GIDRoCEv2,
			}}}},
		})
	}
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, o.Host+".json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Without RDMA Configure says at once what is missing and what to do; with it
// there is a path.
func TestOnThisMachine(t *testing.T) {
	tr := sdktest.Binary(t, build(t))
	defer tr.Close(rigtest.Context(t)) //nolint:errcheck // test
	began := time.Now()
	setup, err := tr.Configure(rigtest.Context(t), sdk.Config{Instance: 1, Settings: json.RawMessage("{}")})
	if err == nil {
		if len(setup.Paths) == 0 {
			t.Error("configured without a path")
		}
		t.Logf("this machine has %+v", setup.Paths)
		return
	}
	t.Logf("Configure: %v", err)
	if !errors.Is(err, sdk.Unsupported) || !regexp.MustCompile(`install|load|group|memlock|address|device`).MatchString(err.Error()) {
		t.Errorf("Configure: %v", err)
	}
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("it took %s to say so", d)
	}
}
