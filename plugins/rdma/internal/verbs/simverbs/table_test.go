package simverbs

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/verbstest"
)

// asEnd names, in the environment of this test binary, the options of a host
// that it is to be an end on.
const asEnd = "SIMVERBS_TEST_END"

func TestMain(m *testing.M) {
	if file := os.Getenv(asEnd); file != "" {
		if err := serveEnd(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func serveEnd(file string) error {
	o, err := Load(file)
	if err != nil {
		return err
	}
	p, err := New(o)
	if err != nil {
		return err
	}
	defer p.Close()
	conn, err := net.Dial("unix", file+".sock")
	if err != nil {
		return err
	}
	defer conn.Close()
	return verbstest.Serve(conn, endOf(p, "sim0"))
}

// hostOptions describes a host with two devices of one port each.
func hostOptions(dir, host string, subnet int) Options {
	o := Options{Dir: dir, Host: host}
	for i := range 2 {
		o.Devices = append(o.Devices, Device{
			Name: fmt.Sprintf("sim%d", i),
			Ports: []Port{{Netdev: fmt.Sprintf("eth%d", i), GIDs: []verbs.GID{
				{Index: 0, Addr: netip.MustParseAddr(fmt.Sprintf("fe80::%d:%d", subnet, i+1)), Type: verbs.GIDRoCEv2},
				{Index: 1, Addr: netip.MustParseAddr(fmt.Sprintf("::ffff:10.%d.%d.1", subnet, i)), Type: verbs.GIDRoCEv2},
			}}},
		})
	}
	return o
}

// shortDir is a directory whose path is short enough for sockets.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "sim")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func startHost(t *testing.T, o Options) *Provider {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func endOf(p *Provider, device string) verbstest.End {
	return verbstest.Local(p, verbstest.Config{Device: device, Port: 1, Clean: func() error {
		if a := p.Accounts(); !a.IsClean() {
			return fmt.Errorf("%+v", a)
		}
		return nil
	}})
}

// startProcess starts this binary as an end on a host.
func startProcess(t *testing.T, o Options) verbstest.End {
	e, _ := startChild(t, o)
	return e
}

func startChild(t *testing.T, o Options) (verbstest.End, *os.Process) {
	t.Helper()
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(shortDir(t), "host.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", file+".sock")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asEnd+"="+file)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		cmd.Wait()
	})
	return verbstest.Dial(conn), cmd.Process
}

var exact = verbstest.Traits{ExactQueues: true, ExactTime: true}

func TestTwoHosts(t *testing.T) {
	verbstest.Run(t, func(t *testing.T) verbstest.Rig {
		dir := shortDir(t)
		a, b := startHost(t, hostOptions(dir, "a", 1)), startHost(t, hostOptions(dir, "b", 2))
		return verbstest.Rig{A: endOf(a, "sim0"), B: endOf(b, "sim1"), Traits: exact}
	})
}

// TestOneDevice: both ends are opened on one device of one process.
func TestOneDevice(t *testing.T) {
	verbstest.Run(t, func(t *testing.T) verbstest.Rig {
		p := startHost(t, hostOptions(shortDir(t), "a", 1))
		return verbstest.Rig{
			A: verbstest.Local(p, verbstest.Config{Device: "sim0", Port: 1}), B: verbstest.Local(p, verbstest.Config{Device: "sim0", Port: 1}),
			Traits: exact,
		}
	})
}

func TestTwoProcesses(t *testing.T) {
	dir := shortDir(t)
	rig := verbstest.Rig{
		A:      endOf(startHost(t, hostOptions(dir, "a", 1)), "sim0"),
		B:      startProcess(t, hostOptions(dir, "b", 2)),
		Traits: exact,
	}
	verbstest.Run(t, func(*testing.T) verbstest.Rig { return rig })
}

// TestTwoProcessesOfOneHost: the processes share the device and its GIDs.
func TestTwoProcessesOfOneHost(t *testing.T) {
	o := hostOptions(shortDir(t), "a", 1)
	rig := verbstest.Rig{A: endOf(startHost(t, o), "sim0"), B: startProcess(t, o), Traits: exact}
	verbstest.Run(t, func(*testing.T) verbstest.Rig { return rig })
}

// TestOtherDevices: InfiniBand, and completions that are kept as Soft-RoCE does.
func TestOtherDevices(t *testing.T) {
	verbstest.Run(t, func(t *testing.T) verbstest.Rig {
		dir := shortDir(t)
		rig := verbstest.Rig{Traits: exact}
		rig.Traits.KeepsCompletions = true
		rig.Traits.NoEvents = []verbs.EventType{verbs.LastWQEReached}
		for i, end := range []*verbstest.End{&rig.A, &rig.B} {
			o := Options{Dir: dir, Host: string("ab"[i]), Devices: []Device{{
				Name: "sim0", KeepsCompletions: true, NoLastWQE: true,
				Ports: []Port{{Link: verbs.InfiniBand, LID: uint16(i + 1), MTU: 2048}},
			}}}
			*end = endOf(startHost(t, o), "sim0")
		}
		return rig
	})
}
