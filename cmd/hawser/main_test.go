package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// bin is where the program and the plugins are.
var bin string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	var err error
	if bin, err = os.MkdirTemp("", "hawser-cmd-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(bin)
	run := filepath.Join(bin, "run") // for admin sockets
	if err := errors.Join(os.Mkdir(run, 0o700), os.Setenv("XDG_RUNTIME_DIR", run)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for name, dir := range map[string]string{
		"hawser": ".", "hawser-tcp": "../../plugins/tcp", "hawser-rpcfallback": "../../plugins/rpcfallback",
		"hawser-rdma": "../../plugins/rdma",
	} {
		if out, err := exec.Command("go", "build", "-o", filepath.Join(bin, name), dir).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", name, err, out)
			return 1
		}
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// hawser prepares the program's run; it is killed when the test takes too long.
func hawser(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	c := exec.CommandContext(ctx, filepath.Join(bin, "hawser"), args...)
	c.Env = append(os.Environ(), "HAWSER_PLUGIN_PATH=", "HAWSER_CONFIG=")
	return c
}

// output runs the program and returns what it printed and its exit code.
func output(t *testing.T, c *exec.Cmd) (out, errs string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	c.Stdout, c.Stderr = &o, &e
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return o.String(), e.String(), c.ProcessState.ExitCode()
}

// TestDemo runs rows of the demo as a user would, with fewer notifications.
func TestDemo(t *testing.T) {
	rows := []string{"no fault", "transport disabled", "tcp killed", "all killed", "receiver restarted"}
	if testing.Short() {
		rows = rows[:1]
	}
	for _, row := range rows {
		t.Run(row, func(t *testing.T) {
			out, errs, code := output(t, hawser(t, "demo", "--row", row, "--count", "2000", "--seed", "7", "-o", "json"))
			if code != 0 {
				t.Fatalf("exit code %d\n%s%s", code, out, errs)
			}
			var r struct {
				Name       string
				Holds      bool
				Expected   int
				Received   int
				Duplicates int
				Faults     []struct {
					At    int
					Proof string
				}
			}
			first, _, _ := strings.Cut(out, "\n")
			if err := json.Unmarshal([]byte(first), &r); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if r.Name != row || !r.Holds || r.Received != r.Expected || r.Received < 1500 || r.Duplicates != 0 {
				t.Errorf("got %+v", r)
			}
			if row != "no fault" && len(r.Faults) == 0 {
				t.Error("no fault happened")
			}
			for _, f := range r.Faults {
				if f.At <= 0 || f.At >= 2000 || f.Proof == "" {
					t.Errorf("fault %+v", f)
				}
			}
		})
	}
}

// TestDemoLeavesNothing interrupts and kills the demo amid a row.
func TestDemoLeavesNothing(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			c := hawser(t, "demo", "--row", "tcp killed", "-v")
			words, err := c.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			// The nodes log when a transport is up, and by then all processes
			// of interest are there.
			lines := bufio.NewScanner(words)
			for up := 0; up < 4 && lines.Scan(); {
				if strings.Contains(lines.Text(), "transport up") {
					up++
				}
			}
			children := processes(t)
			if children < 3 {
				t.Errorf("only %d processes", children)
			}
			if err := c.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			for lines.Scan() { // ends when nobody holds it any more
			}
			_ = c.Wait()
			if code := c.ProcessState.ExitCode(); signal == syscall.SIGINT && code != 130 {
				t.Errorf("exit code %d", code)
			}
			until(t, "all processes to be gone", func() bool { return processes(t) == 0 })
		})
	}
}

// processes counts the running programs from bin. A plugin runs from a memory
// file whose name is the binary's, and has bin in no place but its arguments.
func processes(t *testing.T) (n int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if b, err := os.ReadFile(d); err == nil && bytes.Contains(b, []byte(bin)) {
			n++
		}
	}
	return n
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for limit := time.Now().Add(10 * time.Second); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// node is a running `hawser node` or recv whose lines can be read.
type node struct {
	*exec.Cmd
	out     *os.File // its standard output
	lines   *bufio.Scanner
	address string
	up      map[string]any // what it said first
}

func start(t *testing.T, args ...string) *node {
	t.Helper()
	n := &node{Cmd: hawser(t, append(args, "-o", "json")...)}
	out, err := n.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	n.Stderr = os.Stderr
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Process.Kill(); _ = n.Wait() })
	n.out = out.(*os.File)
	n.lines = bufio.NewScanner(out)
	n.lines.Buffer(nil, 1<<20)
	n.up = n.next(t)
	n.address, _ = n.up["address"].(string)
	if n.up["event"] != "listening" || n.address == "" {
		t.Fatalf("got %v", n.up)
	}
	return n
}

func (n *node) next(t *testing.T) (line map[string]any) {
	t.Helper()
	if !n.lines.Scan() {
		t.Fatal("no more lines")
	}
	if err := json.Unmarshal(n.lines.Bytes(), &line); err != nil {
		t.Fatalf("%v: %s", err, n.lines.Text())
	}
	return line
}

// TestSendToOlderNode: what nobody acknowledges is not called acknowledged.
func TestSendToOlderNode(t *testing.T) {
	for _, proto := range []string{"0", "1"} {
		config := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(config, []byte("notification: {proto: "+proto+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		n := start(t, "node", "--print", "--config", config)
		out, errs, code := output(t, hawser(t, "send", n.address, "--count", "3"))
		if code != 0 || !strings.Contains(out, "3 sent, 0 acknowledged, 3 handed over, 0 failed") {
			t.Errorf("protocol %s: exit code %d: %s%s", proto, code, out, errs)
		}
		for range 3 {
			n.next(t)
		}
	}
}

func TestSendToNode(t *testing.T) {
	config := filepath.Join(t.TempDir(), "c.yaml")
	write := func(text string) {
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("node: {name: receiver}\n")
	n := start(t, "node", "--print", "--config", config)
	send := hawser(t, "send", "b", "--peer", "b="+n.address, "-", "--name", "na\xffme", "--count", "3")
	send.Stdin = strings.NewReader("a\x00b\xff")
	out, errs, code := output(t, send)
	if code != 0 || !strings.Contains(out, "3 sent, 3 acknowledged, 0 failed") {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	for range 3 {
		if got := n.next(t); got["name_base64"] != "bmH/bWU=" || got["payload"] != "YQBi/w==" || got["transport"] != "tcp" {
			t.Errorf("got %v", got)
		}
	}

	write("node: {name: receiver}\ntransports: [{name: rpcfallback}]\n")
	if err := n.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if got := n.next(t); got["event"] != "reloaded" || len(got["transports"].([]any)) != 1 {
		t.Errorf("got %v", got)
	}
	// An address will do beside names, and a deadline that cannot be met is in
	// the summary.
	out, errs, code = output(t, hawser(t, "send", n.address, "--peer", "b="+n.address, "--deadline", "1ns", "--count", "2"))
	if code != 2 || !strings.Contains(out, "to "+n.address+": 2 sent, 0 acknowledged, 2 failed") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	out, errs, code = output(t, hawser(t, "send", n.address, "--deadline", "1ns", "-o", "json"))
	if code != 2 || !strings.Contains(out, `"failed": 1`) || !strings.Contains(out, `"peer": "`+n.address) {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	if _, errs, code := output(t, hawser(t, "send", n.address, "--peer", "b="+n.address, "--payload", "x")); code != 0 {
		t.Errorf("exit code %d: %s", code, errs)
	}
	if got := n.next(t); got["transport"] != "rpcfallback" || got["name"] != "hawser.send" {
		t.Errorf("got %v", got)
	}

	if err := n.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := n.Wait(); err != nil {
		t.Errorf("the node ended with %v", err)
	}
	_, errs, code = output(t, hawser(t, "send", n.address, "--deadline", "500ms"))
	out, _, failed := output(t, hawser(t, "send", n.address, "--deadline", "500ms", "-o", "json"))
	if code != 2 || failed != 2 || !strings.Contains(out, `"code": "not sent"`) {
		t.Errorf("exit codes %d and %d: %s%s", code, failed, errs, out)
	}
}

func TestRecv(t *testing.T) {
	n := start(t, "recv", "--count", "2", "--timeout", "30s")
	if _, errs, code := output(t, hawser(t, "send", n.address, "--size", "70000", "--count", "2")); code != 0 {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	for range 2 {
		// tcp takes no frames of that size.
		if got := n.next(t); got["bytes"] != 70000.0 || got["transport"] != "rpcfallback" {
			t.Errorf("%v bytes over %v", got["bytes"], got["transport"])
		}
	}
	if err := n.Wait(); err != nil {
		t.Errorf("recv ended with %v", err)
	}
	_, errs, code := output(t, hawser(t, "recv", "--count", "1", "--timeout", "300ms"))
	if code != 4 || !strings.Contains(errs, "0 of 1 received within 300ms") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

func TestBench(t *testing.T) {
	out, errs, code := output(t, hawser(t, "bench", "notify", "--rounds", "1", "--pings", "100", "--rate-count", "2000", "-o", "json"))
	var r struct {
		Rounds []struct {
			Carrier string
			Burst   struct{ Count int }
		}
		Median map[string]float64
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s%s", code, err, out, errs)
	}
	if len(r.Rounds) != 1 || r.Rounds[0].Carrier == "" || r.Rounds[0].Burst.Count != 2000 || r.Median["rate_per_second"] <= 0 {
		t.Errorf("got %+v", r)
	}
}

func TestBenchTransfer(t *testing.T) {
	out, errs, code := output(t, hawser(t, "bench", "transfer", "--rounds", "2", "--transport", "tcp,rpcfallback",
		"--size", "5000", "--size", "6000000", "--window", "2", "--bytes", "20000000", "-o", "json"))
	type result struct {
		Count          int
		BytesPerSecond float64 `json:"bytes_per_second"`
	}
	var r struct {
		Rounds [][]struct {
			Transport, Op   string
			Size            int
			Transfer, Plain result
			Ratio           float64
		}
		Medians []struct {
			Transport, Op string
			Size          int
			Ratio         float64
			Lowest        float64 `json:"lowest_ratio"`
			Highest       float64 `json:"highest_ratio"`
		}
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s%s", code, err, out, errs)
	}
	if len(r.Rounds) != 2 || len(r.Rounds[0]) != 8 || len(r.Medians) != 8 || r.Rounds[0][0].Transport != "tcp" || r.Rounds[1][0].Transport != "rpcfallback" {
		t.Fatalf("got %+v", r)
	}
	for _, m := range r.Rounds[1] {
		if m.Transfer.Count != 20000000/m.Size || m.Transfer.BytesPerSecond <= 0 || m.Plain.Count != m.Transfer.Count || m.Plain.BytesPerSecond <= 0 || m.Ratio <= 0 {
			t.Errorf("got %+v", m)
		}
	}
	for _, m := range r.Medians {
		if m.Lowest <= 0 || m.Lowest > m.Ratio || m.Ratio > m.Highest {
			t.Errorf("got %+v", m)
		}
	}
}

// TestDemoWithoutHawserFaulty: packages leave that binary out; its row is
// skipped, says so, and is no failure.
func TestDemoWithoutHawserFaulty(t *testing.T) {
	out, errs, code := output(t, hawser(t, "demo", "--row", "faulty tcp", "-o", "json"))
	if code != 0 || !strings.Contains(out, `plugin faulty was not found`) || !strings.Contains(out, `"rows_skipped":1`) {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	out, errs, code = output(t, hawser(t, "demo", "--row", "faulty tcp"))
	if code != 0 || !strings.Contains(out, "skip  ") || !strings.Contains(out, "1 could not be run") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}

// TestDemoRDMAWithoutADevice: the rows of rdma's table would run over tcp.
func TestDemoRDMAWithoutADevice(t *testing.T) {
	if doctor(t, "rdma").OK {
		t.Skip("this machine has RDMA devices")
	}
	out, errs, code := output(t, hawser(t, "demo", "--set", "rdma", "--row", "no fault", "-o", "json"))
	if code != 3 || strings.Contains(out, "rows_held") || !strings.Contains(errs, "rdma cannot carry on this machine: devices: ") || !strings.Contains(errs, "use --simulate") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}

// TestSimulatedNodes runs what docs/rdma.md says of nodes on simulated devices.
func TestSimulatedNodes(t *testing.T) {
	doc, err := os.ReadFile("../../docs/rdma.md")
	if err != nil {
		t.Fatal(err)
	}
	_, script, _ := strings.Cut(string(doc), "```sh\n")
	script, _, ok := strings.Cut(script, "```\n")
	if !ok {
		t.Fatal("there is no script")
	}
	dir, err := os.MkdirTemp("", "hs") // t.TempDir is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	// An address of its own: nobody else takes the port meanwhile.
	l, err := net.Listen("tcp", "127.0.7.2:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	_ = l.Close()
	script = strings.NewReplacer("/tmp/sim", dir, "127.0.0.1:7100", at, "--count 1", "--count 1 --timeout 30s").Replace(script)
	c := hawser(t)
	c.Path, c.Args = "/bin/sh", []string{"sh", "-ec", script}
	c.Env = append(c.Env, "PATH="+bin+":"+os.Getenv("PATH"))
	out, errs, code := output(t, c)
	for _, want := range []string{"port sim0/1", "rdma can carry", `"hello"`} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit code %d, no %s in\n%s%s", code, want, out, errs)
		}
	}
}
