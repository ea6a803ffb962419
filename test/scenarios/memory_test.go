//go:build linux

package scenarios

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/internal/cuda/simcuda"
)

// carrier is a transport that moves memory, and the one that takes over when it
// cannot, or carries the notifications.
type carrier struct {
	name, next string
	// remote and local are what memory at either side is shared as: a GPU's, or,
	// without a kind, the host's.
	remote, local cuda.Kind
	gpus          *gpus // of a row
	sim           simcuda.Options
}

// Devices are simulated, unless they are real.
var (
	hostCarriers = []carrier{{name: "tcp", next: "rpcfallback"}, {name: "rpcfallback", next: "tcp"}, {name: "rdma", next: "tcp"}}
	// gpuCarriers move between a GPU and the host, and between two GPUs.
	gpuCarriers = []carrier{
		{name: "mnnvl", next: "tcp", remote: cuda.PosixFD},
		{name: "mnnvl", next: "tcp", remote: cuda.IPC, local: cuda.PosixFD},
	}
)

func (c carrier) String() string {
	if c.remote == 0 {
		return c.name
	}
	return c.name + "-" + c.remote.String()
}

// hosts counts simulated hosts of RDMA.
var hosts atomic.Int64

// transports is its configuration at one node.
func (c carrier) transports() (list []engine.TransportConfig, err error) {
	list = []engine.TransportConfig{{Name: c.name}, {Name: c.next}}
	switch {
	case c.gpus != nil && c.gpus.file != "":
		list[0].Env = map[string]string{simVariable: c.gpus.file}
	case c.name == "rdma" && onHardware():
		list[0].Config = rdmaConfig()
	case c.name == "rdma":
		list[0].Env, err = simulatedRDMA()
	}
	return list, err
}

// simulatedRDMA makes a host of its own, and returns what its plugin's
// environment has to have.
func simulatedRDMA() (map[string]string, error) {
	dir := filepath.Join(root, "sim")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	n := hosts.Add(1)
	name := fmt.Sprint("h", n)
	out, err := exec.Command(filepath.Join(bin, "hawser-rdma-faulty"), "sim", dir, "host", name, fmt.Sprintf("10.77.%d.%d", n/250, n%250+1)).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("simulate RDMA: %w: %s", err, out)
	}
	return map[string]string{"HAWSER_RDMA_SIM": filepath.Join(dir, name+".json")}, nil
}

// overEach runs a test over each transport, and wants nothing left when all
// have run: no descriptor, process, goroutine, mapping of a region or memory of
// a GPU. Real RDMA devices must have carried something.
func overEach(t *testing.T, f func(t *testing.T, c carrier)) {
	t.Helper()
	over(t, slices.Concat(hostCarriers, gpuCarriers), f)
}

func over(t *testing.T, carriers []carrier, f func(t *testing.T, c carrier)) {
	t.Helper()
	ofEach(t, carriers, func(t *testing.T, c carrier) {
		before := packets(t)
		f(t, c)
		if sent := packets(t) - before; c.name == "rdma" && onHardware() && sent == 0 {
			t.Error("the RDMA devices have sent nothing: all of it went another way")
		} else if sent > 0 {
			t.Logf("the RDMA devices sent %d packets", sent)
		}
	})
}

// ofEach is over where another transport may have to carry.
func ofEach(t *testing.T, carriers []carrier, f func(t *testing.T, c carrier)) {
	t.Helper()
	leaveNothing(t)
	for _, c := range carriers {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel() // they mostly wait
			f(t, c.on(t))
		})
	}
}

// overInTurn is over on GPUs that rows share, for those that measure them.
func overInTurn(t *testing.T, f func(t *testing.T, c carrier)) {
	t.Helper()
	if !onHardware() {
		overEach(t, f)
		return
	}
	leaveNothing(t)
	for _, c := range slices.Concat(hostCarriers, gpuCarriers) {
		t.Run(c.String(), func(t *testing.T) { f(t, c.on(t)) })
	}
}

// on gives the carrier the GPUs that it moves memory of.
func (c carrier) on(t *testing.T) carrier {
	t.Helper()
	switch {
	case c.remote == 0:
	case !onHardware():
		c.gpus = simulatedGPUs(t, c.sim)
	default:
		var err error
		var missing *cuda.MissingError
		if c.gpus, err = ownGPUs(); errors.As(err, &missing) && os.Getenv(gpuTestVariable) == "" {
			t.Skipf("SKIPPED, %v", err)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// leaveNothing has the test's end look for what it left.
func leaveNothing(t *testing.T) {
	t.Helper()
	used := usedOnHardware(t)
	descriptorsBefore, goroutines := descriptors(t), runtime.NumGoroutine()
	if used > 0 {
		descriptorsBefore += driversFiles
	}
	t.Cleanup(func() {
		var left string
		clean := func() bool {
			now := usedOnHardware(t)
			left = fmt.Sprintf("%d descriptors of %d, %d goroutines of %d, %d mapped regions, processes %q, %d KiB of GPUs of %d",
				descriptors(t), descriptorsBefore, runtime.NumGoroutine(), goroutines, mappedRegions(os.Getpid()), processes(root), now>>10, used>>10)
			return descriptors(t) <= descriptorsBefore && runtime.NumGoroutine() <= goroutines &&
				mappedRegions(os.Getpid()) == 0 && len(processes(root)) == 0 && now <= used+driversOwn
		}
		for end := time.Now().Add(patience); !clean(); time.Sleep(pollEvery) {
			if time.Now().After(end) {
				t.Errorf("left behind: %s", left)
				return
			}
		}
		if used > 0 {
			t.Logf("in the end: %s", left)
		}
	})
}

// driversOwn and driversFiles are by how much a real driver's own use of a GPU
// may grow, in bytes, and of descriptors.
const driversOwn, driversFiles = 8 << 20, 8

// usedOnHardware is how much memory of this machine's GPUs is in use. Simulated
// machines look by themselves.
func usedOnHardware(t *testing.T) uint64 {
	t.Helper()
	if !onHardware() {
		return 0
	}
	m, err := ownGPUs()
	if err != nil {
		return 0 // it has none
	}
	return m.used(t)
}

// mappedRegions counts a process's mappings of regions.
func mappedRegions(pid int) int {
	maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	return strings.Count(string(maps), "memfd:hawser-region")
}

// open opens an engine, and waits for the transport: on slow machines another one
// may be up earlier.
func (c carrier) open(t *testing.T, cfg engine.Config, opts ...engine.Option) *node {
	t.Helper()
	n := open(t, cfg, opts...)
	until(t, c.name+" to be up", func() bool { return n.transport(t, c.name).State == "up" })
	return n
}

// config is that of a node, see configOf.
func (c carrier) config(t *testing.T, name string) engine.Config {
	t.Helper()
	list, err := c.transports()
	if err != nil {
		t.Fatal(err)
	}
	return configOf(name, list)
}

// configOf puts the transport first, lets plugins crash at will, and counts no
// failure against a path: the tests cause all of them.
func configOf(name string, transports []engine.TransportConfig) engine.Config {
	cfg := config(name)
	cfg.Transports = transports
	cfg.Plugins.CrashBudget = 100_000
	cfg.Plugins.RestartBackoffMS, cfg.Plugins.MaxRestartBackoffMS = 10, 20
	cfg.PathHealth.ErrorThreshold = 1000
	cfg.Transfer.OpBudget = 100
	return cfg
}

// segment opens another node's, until the test's end.
func (n *node) segment(t *testing.T, name string) *engine.Segment {
	t.Helper()
	g, err := n.OpenSegment(briefly(t), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// whole is an op on all of a local region, at an address of a peer's.
func whole(kind engine.OpKind, local *block, g *engine.Segment, address uint64) engine.Op {
	return engine.Op{Kind: kind, Local: local.Region, Segment: g, Address: address, Length: local.Len()}
}

// submit begins a transfer of one op.
func (n *node) submit(t *testing.T, op engine.Op) *engine.Transfer {
	t.Helper()
	x, err := n.Submit(briefly(t), []engine.Op{op}, engine.SubmitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// fill writes words that tell which content they are of, and where they
// belong.
func fill(b []byte, content uint64) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], content<<32|uint64(i/8))
	}
}

// contents says which contents the words of b are of, and how many words of
// each; what is at the wrong place is of content -1.
func contents(b []byte) string {
	found := map[int]int{}
	for i := 0; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		c := int(w >> 32)
		if w != 0 && uint32(w) != uint32(i/8) {
			c = -1
		}
		found[c]++
	}
	var list []string
	for _, c := range slices.Sorted(maps.Keys(found)) {
		list = append(list, fmt.Sprintf("%d words of content %d", found[c], c))
	}
	return strings.Join(list, ", ")
}

// filled is a region's bytes with one content.
func filled(size int, content uint64) []byte {
	b := make([]byte, size)
	fill(b, content)
	return b
}

// signal sends the process one, and reports whether there was one to get it.
func (h held) signal(s unix.Signal) bool { return unix.PidfdSendSignal(h.fd, s, nil, 0) == nil }

// stop stops the process, and waits until it is.
func (h held) stop(t *testing.T) {
	t.Helper()
	if !h.signal(unix.SIGSTOP) {
		return // it is gone, as the caller will see
	}
	until(t, "a process to stop", func() bool {
		state := field(h.pid, "State:")
		return state == "" || state[0] == 'T' || state[0] == 'Z' || state[0] == 'X'
	})
}

// unread is how many bytes the process has got over TCP and has not read.
func unread(pid int) (n int) {
	mine := map[string]bool{}
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		if at, err := os.Readlink(fd); err == nil {
			if inode, ok := strings.CutPrefix(at, "socket:["); ok {
				mine[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	table, _ := os.ReadFile("/proc/net/tcp")
	for line := range strings.Lines(string(table)) {
		const listening = "0A" // its queue is of connections
		f := strings.Fields(line)
		if len(f) > 9 && f[3] != listening && mine[f[9]] {
			_, queue, _ := strings.Cut(f[4], ":")
			bytes, _ := strconv.ParseInt(queue, 16, 64)
			n += int(bytes)
		}
	}
	return n
}
