package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/simverbs"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// The tests on this machine's own devices, as the lab of virtual hosts runs
// them, need the plugin's binary, and may have settings for it.
const (
	machineBinary   = "HAWSER_TEST_RDMA_PLUGIN"
	machineSettings = "HAWSER_TEST_RDMA_SETTINGS"
)

// onMachine returns the binary and the settings, or skips the test.
func onMachine(t *testing.T) (binary string, settings json.RawMessage) {
	t.Helper()
	binary = os.Getenv(machineBinary)
	if binary == "" {
		t.Skip("needs an RDMA device and " + machineBinary + ": make lab-rdma has both")
	}
	return binary, json.RawMessage(cmp.Or(os.Getenv(machineSettings), "{}"))
}

// The suite of the binary, on this machine's own devices.
func TestMachineConformance(t *testing.T) {
	binary, settings := onMachine(t)
	sdktest.Run(t, sdktest.Harness{
		Inbox:    true, // done is what the peer's device has, landed or handed over
		New:      func(t testing.TB) sdk.Transport { return sdktest.Binary(t, binary) },
		External: true,
		Settings: settings,

		OnlyWritable: true, // Linux before 6.2
		BadSettings: []json.RawMessage{
			json.RawMessage(`{"device": ["rxe0"]}`),
			json.RawMessage(`{"endpoint": {"rnr_retry": 6}}`),
		},
		Arrive: 10 * time.Second, // accept_wait_ms
	})
}

// cycles is how often endpoints are made and retired.
const cycles = 200

// Endpoints that were made and retired, and regions that were registered, leave
// nothing: neither verbs' objects nor file descriptors.
func TestMachineCycles(t *testing.T) {
	binary, settings := onMachine(t)
	cycle(t, func(int) sdk.Transport { return sdktest.Binary(t, binary) }, settings, resources(t))
}

// The same on the simulated provider.
func TestCycles(t *testing.T) {
	binary := build(t)
	dir, err := os.MkdirTemp("", "rdma")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	objects := func() map[string]int {
		sum := map[string]int{}
		for n := 1; n <= 2; n++ {
			list, err := simverbs.Control(dir).Accounts(fmt.Sprintf("h%d", n))
			if err != nil || len(list) != 1 {
				t.Fatalf("%v, %v", list, err)
			}
			a := list[0]
			sum["qp"], sum["mr"], sum["cq"] = sum["qp"]+a.QPs, sum["mr"]+a.MRs, sum["cq"]+a.CQs
			sum["faults"] += len(a.Faults)
		}
		return sum
	}
	cycle(t, func(n int) sdk.Transport { return sdktest.Binary(t, binary, simulation+"="+host(t, dir, n)) }, json.RawMessage("{}"), objects)
}

// cycle makes and retires endpoints between two plugins and compares what
// exists after the first cycle, when all that is made once is there, with what
// exists after the last.
func cycle(t *testing.T, fresh func(n int) sdk.Transport, settings json.RawMessage, objects func() map[string]int) {
	a := rigtest.Start(t, fresh(1), sdk.Config{Instance: 1, Settings: settings})
	b := rigtest.Start(t, fresh(2), sdk.Config{Instance: 2, Settings: settings})
	count := func() map[string]int {
		all := maps.Clone(objects())
		for i, pid := range children(t) {
			fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
			if err != nil {
				t.Fatal(err)
			}
			all[fmt.Sprintf("fds of plugin %d", i+1)] = len(fds)
		}
		return all
	}
	var first map[string]int
	for i := range cycles {
		once(t, a, b, uint64(i+1))
		if i%4 == 0 {
			onceMemory(t, a, b, uint64(i+1))
		}
		if i == 0 {
			first = settled(t, count, nil)
		}
	}
	t.Logf("after the first of %d cycles: %v", cycles, first)
	if len(first) < 4 {
		t.Errorf("too little was counted: %v", first)
	}
	if last := settled(t, count, first); !within(last, first) {
		t.Errorf("after the last: %v", last)
	}
}

// within reports whether of everything that was counted there is no more than
// before. There may be less: a process closes what its start needed.
func within(now, before map[string]int) bool {
	for what, n := range now {
		if n > before[what] {
			return false
		}
	}
	return len(now) == len(before)
}

// once connects, sends in both directions and retires.
func once(t *testing.T, a, b *rigtest.Node, generation uint64) {
	t.Helper()
	there, back := rigtest.NewRecorder(t), rigtest.NewRecorder(t)
	ea, eb := rigtest.Connect(t, a, b, generation, there, back)
	for _, e := range []sdk.Endpoint{ea, eb} {
		if err := (&rigtest.Sender{Endpoint: e}).Try([]byte("hello")); err != nil {
			t.Fatal(err)
		}
	}
	there.WaitReceived(1)
	back.WaitReceived(1)
	ea.Close()
	eb.Close()
	there.WaitEnded()
	back.WaitEnded()
}

// onceMemory registers memory, writes over an endpoint for it, and takes back
// all of it.
func onceMemory(t *testing.T, a, b *rigtest.Node, generation uint64) {
	t.Helper()
	here, there := rigtest.Register(t, a, 5000, true), rigtest.Register(t, b, 5000, true)
	there.Announce(t, a)
	ra, rb := rigtest.NewRecorder(t), rigtest.NewRecorder(t)
	ea, eb := rigtest.ConnectMemory(t, a, b, 0, generation, ra, rb)
	if err := (&rigtest.Sender{Endpoint: ea}).Try(rigtest.Op(sdk.Write, here, 0, there, 0, 5000)); err != nil {
		t.Fatal(err)
	}
	ra.WaitDone(1)
	ea.Close()
	eb.Close()
	ra.WaitEnded()
	rb.WaitEnded()
	for _, err := range []error{
		a.Mover().Withdraw(rigtest.Context(t), b.Inc, there.Region.Capability),
		a.Mover().Deregister(rigtest.Context(t), here.Region.Capability),
		b.Mover().Deregister(rigtest.Context(t), there.Region.Capability),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// settled counts until the counts are within those wanted, or else until they have been
// the same for a second: retirement goes on after Ended.
func settled(t *testing.T, count func() map[string]int, want map[string]int) map[string]int {
	t.Helper()
	last, since := count(), time.Now()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		now := count()
		switch {
		case want != nil && within(now, want):
			return now
		case !maps.Equal(now, last):
			last, since = now, time.Now()
		case want == nil && time.Since(since) > time.Second:
			return now
		}
	}
	return last
}

// resources counts what `rdma resource` says this machine holds.
func resources(t *testing.T) func() map[string]int {
	objects := regexp.MustCompile(`\b(qp|mr|cq|srq|pd) (\d+)`)
	return func() map[string]int {
		out, err := exec.Command("rdma", "resource", "show").Output()
		if err != nil {
			t.Fatalf("rdma resource show: %v", err)
		}
		sum := map[string]int{}
		for _, m := range objects.FindAllStringSubmatch(string(out), -1) {
			n, _ := strconv.Atoi(m[2])
			sum[m[1]] += n
		}
		return sum
	}
}

// children are this process's, in the order of their numbers.
func children(t *testing.T) (pids []int) {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		b, _ := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		for _, f := range strings.Fields(string(b)) {
			pid, _ := strconv.Atoi(f)
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}
