//go:build linux

package simcuda

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/internal/cuda/cudatest"
)

// optionsFile names, in the environment of a peer, its machine's options.
const optionsFile = "SIMCUDA_TEST_OPTIONS"

func TestMain(m *testing.M) {
	if cudatest.IsPeer() {
		if err := servePeer(os.Getenv(optionsFile)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func servePeer(file string) error {
	o, err := Load(file)
	if err != nil {
		return err
	}
	d, err := New(o)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := cudatest.Serve(d); err != nil {
		return err
	}
	return clean(d)
}

func clean(d *Driver) error {
	if c := d.Counts(); !c.IsClean() {
		return fmt.Errorf("left: %+v", c)
	}
	return nil
}

func startDriver(t *testing.T, o Options) *Driver {
	t.Helper()
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func startPeer(t *testing.T, o Options) *cudatest.Peer {
	t.Helper()
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "machine.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return cudatest.StartPeer(t, optionsFile+"="+file)
}

// TestTable runs with the memory of other processes on another device; the other
// tests are of one.
func TestTable(t *testing.T) { cudatest.Run(t, rigs(FabricWorks)) }

// TestSkips: what a machine does not grant is skipped, and nothing hangs.
func TestSkips(t *testing.T) { cudatest.RunSharing(t, cuda.Fabric, rigs(FabricRefused)) }

// rigs makes one of a machine with two devices for each test.
func rigs(fabric Fabric) func(t *testing.T) cudatest.Rig {
	return func(t *testing.T) cudatest.Rig {
		o := Options{Dir: t.TempDir(), Devices: []Device{{Fabric: fabric}, {Fabric: fabric}}}
		d := startDriver(t, o)
		return cudatest.Rig{
			Driver: d, Peer: func(t *testing.T) *cudatest.Peer { return startPeer(t, o) },
			Clean: func() error { return clean(d) }, Traits: cudatest.Traits{SameAddress: true},
		}
	}
}
