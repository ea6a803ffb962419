//go:build linux

package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
	driver "github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/internal/cuda/local"
	"github.com/hawser-transport/hawser/internal/cuda/simcuda"
)

const (
	// onGPUs runs the tests with this machine's GPUs, and with the plugins that
	// lie beside this binary: there is no Go there.
	onGPUs = "HAWSER_GPU_TEST"
	// asExample makes this binary the example.
	asExample = "KVTRANSFER_TEST_RUN"
)

var bin string // of the plugins

func TestMain(m *testing.M) {
	if os.Getenv(asExample) != "" {
		main()
		return
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	if os.Getenv(onGPUs) != "" {
		exe, err := os.Executable()
		if err != nil {
			panic(err)
		}
		bin = filepath.Dir(exe)
		return m.Run()
	}
	var err error
	if bin, err = os.MkdirTemp("", "kvtransfer-"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(bin)
	for name, dir := range map[string]string{
		"hawser-tcp": "../../plugins/tcp", "hawser-rpcfallback": "../../plugins/rpcfallback", "hawser-mnnvl": "../../plugins/mnnvl",
	} {
		if out, err := exec.Command("go", "build", "-o", filepath.Join(bin, name), dir).CombinedOutput(); err != nil {
			panic(string(out))
		}
	}
	return m.Run()
}

// example is the example as a command.
func example(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	// The race detector sleeps a second before each exit if it is not told.
	cmd.Env = append(os.Environ(), asExample+"=1", "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	return cmd
}

// run runs the example, with the plugins of a folder, on a simulated machine
// unless that is nil.
func run(t *testing.T, plugins, gpu string, machine *simcuda.Options, more ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := example(ctx, append([]string{"-plugins", plugins, "-gpu", gpu}, more...)...)
	if machine != nil {
		b, err := json.Marshal(machine)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "machine.json")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd.Env = append(cmd.Env, local.Simulation+"="+file)
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// succeeds wants the whole hand-over in what the example has printed.
func succeeds(t *testing.T, out string, err error, prefill, decode string) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"prefill-0 keeps its blocks in " + prefill, "decode-0 keeps its blocks in " + decode,
		"decode-0 read 32 blocks, 8 MiB, of request 17 from prefill-0\n", "prefill-0 has its 32 blocks back\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
}

// fails wants an error that says something.
func fails(t *testing.T, out string, err error, says ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error:\n%s", out)
	}
	for _, want := range says {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
}

// The example does what it says, in two processes with real plugins.
func TestRun(t *testing.T) {
	out, err := run(t, bin, "off", nil)
	succeeds(t, out, err, "host memory\n", "host memory\n")
}

// The same from GPU to GPU, on this machine's.
func TestRunOnGPUs(t *testing.T) {
	if os.Getenv(onGPUs) == "" {
		t.Skip("SKIPPED, needs GPUs: TestRunSimulated is the same on simulated ones")
	}
	for _, gpu := range []string{"on", "auto"} {
		out, err := run(t, bin, gpu, nil)
		succeeds(t, out, err, "the memory of GPU 0", "the memory of GPU ")
		t.Log(out)
	}
}

// simulated is for tests of a simulated machine.
func simulated(t *testing.T) {
	if os.Getenv(onGPUs) != "" {
		t.Skip("SKIPPED, on the simulated machine only")
	}
}

// And with every kind of handle, where there are two GPUs, one, or none.
func TestRunSimulated(t *testing.T) {
	simulated(t)
	const one, two = "the memory of GPU 0 (Simulated GPU)\n", "the memory of GPU 1 (Simulated GPU)\n"
	fabric, fd, ipc := simcuda.Device{Fabric: simcuda.FabricWorks}, simcuda.Device{Fabric: simcuda.FabricRefused}, simcuda.Device{NoPosixFD: true}
	for _, c := range []struct {
		name, gpu, prefill, decode string
		machine                    simcuda.Options
	}{
		{"fabric", "auto", one, two, simcuda.Options{Devices: []simcuda.Device{fabric, fabric}}},
		{"fd", "on", one, two, simcuda.Options{Devices: []simcuda.Device{fd, fd, fd}}},
		{"ipc", "auto", one, two, simcuda.Options{Devices: []simcuda.Device{ipc, ipc}}},
		{"one GPU", "auto", one, one, simcuda.Options{Devices: []simcuda.Device{fd}}},
		{"no driver", "auto", "host memory\n", "host memory\n", simcuda.Options{Missing: "libcuda.so.1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := run(t, bin, c.gpu, &c.machine)
			succeeds(t, out, err, c.prefill, c.decode)
		})
	}
}

func TestNoGPU(t *testing.T) {
	simulated(t)
	out, err := run(t, bin, "on", &simcuda.Options{Missing: "libcuda.so.1"})
	fails(t, out, err, "missing libcuda.so.1")
	out, err = run(t, bin, "perhaps", &simcuda.Options{})
	fails(t, out, err, "-gpu is auto, on or off")
}

// A GPU's memory moves over mnnvl and over nothing else: where the copies
// between the GPUs fail, which only that plugin makes, or the plugin is missing,
// the example fails and says so.
func TestNothingElseMovesIt(t *testing.T) {
	simulated(t)
	machine := simcuda.Options{Devices: make([]simcuda.Device, 2)}
	for range 4096 { // each is one copy of one process
		machine.Inject = append(machine.Inject, simcuda.Injection{Call: "cuMemcpyAsync", Result: driver.PeerUnsupported})
	}
	out, err := run(t, bin, "on", &machine)
	fails(t, out, err, "32 of 32 blocks were not read: op ", "failed on mnnvl", "mnnvl alone moves a GPU's memory")
	if n := strings.Count(out, "failed on mnnvl"); n > 2 {
		t.Errorf("two processes say the same %d times:\n%s", n, out)
	}

	machine.Inject = nil
	without := t.TempDir()
	for _, name := range []string{"hawser-tcp", "hawser-rpcfallback"} {
		if err := os.Symlink(filepath.Join(bin, name), filepath.Join(without, name)); err != nil {
			t.Fatal(err)
		}
	}
	out, err = run(t, without, "on", &machine)
	fails(t, out, err, "no transport takes it", "mnnvl alone moves a GPU's memory")
}

// Decode notices a block that is not what the manifest says, and memory that is
// not the region that the manifest means.
func TestRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	prefill, err := open(ctx, "prefill", bin, &place{}, network{})
	if err != nil {
		t.Fatal(err)
	}
	defer shut(prefill)
	const size = 4096
	cache, err := prefill.AllocateHost(4*size, engine.RegionOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	good := manifest{Request: "r", Address: cache.Address(), BlockSize: size, Capability: cache.Capability()}
	for i := range 4 {
		good.Checksums = append(good.Checksums, compute(cache.Bytes()[i*size:][:size], i))
	}
	for _, c := range []struct {
		name, want string
		change     func(*manifest)
	}{
		{"nothing is wrong", "", func(*manifest) {}},
		{"a block", "block 2 of r has checksum", func(m *manifest) { m.Checksums[2]++ }},
		{"another life's memory", "no buffer with capability", func(m *manifest) { m.Capability[0]++ }},
		{"too much", "not 1 to", func(m *manifest) { m.BlockSize = 1 << 62 }},
		{"nothing", "not 1 to", func(m *manifest) { m.Checksums = nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := good
			m.Checksums = append([]uint32(nil), good.Checksums...)
			c.change(&m)
			decode, err := open(ctx, "decode", bin, &place{}, network{})
			if err != nil {
				t.Fatal(err)
			}
			defer shut(decode)
			served := make(chan error, 1)
			go func() { served <- serveOne(ctx, decode, &place{}) }()
			err = offer(ctx, prefill, decode.Self().Address, m)
			for _, got := range []error{err, <-served} {
				if c.want == "" && got != nil || c.want != "" && (got == nil || !strings.Contains(got.Error(), c.want)) {
					t.Errorf("got %v, not %q", got, c.want)
				}
			}
		})
	}
	if err := cache.Close(ctx); err != nil {
		t.Error(err)
	}
}
