//go:build linux && cgo

package ibverbs

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/verbstest"
)

// Two hosts run the table together: this test binary with asEnd (an address to
// listen on) in the environment is an end on its host's first device; with
// peerEnd (the other's address) its tests use that end.
const (
	asEnd   = "IBVERBS_TEST_END"
	peerEnd = "IBVERBS_TEST_PEER"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(asEnd); addr != "" {
		fmt.Fprintln(os.Stderr, serveEnd(addr))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// serveEnd answers one test after the other until it is killed.
func serveEnd(addr string) error {
	p := New()
	infos, err := p.Devices()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		if err := verbstest.Serve(conn, endOf(p, infos[0].Name)); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		conn.Close()
	}
}

// devices returns at least n of this machine's, or skips.
func devices(t testing.TB, n int) (verbs.Provider, []verbs.Info) {
	t.Helper()
	p := New()
	infos, err := p.Devices()
	if len(infos) < n {
		t.Skipf("SKIPPED, needs %d RDMA devices, has %d (%v): run testdata/lab.sh", n, len(infos), err)
	}
	return p, infos
}

// endOf keeps account of what the library opened for it.
func endOf(p verbs.Provider, device string) verbstest.End {
	before := openFiles()
	return verbstest.Local(p, verbstest.Config{Device: device, Port: 1, Clean: func() error {
		if after := openFiles(); len(after) > len(before) {
			return fmt.Errorf("left open: %v, were %v", after, before)
		}
		return nil
	}})
}

// openFiles lists this process's files of RDMA devices.
func openFiles() (files []string) {
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, l := range links {
		if to, _ := os.Readlink(l); strings.Contains(to, "infiniband") {
			files = append(files, to)
		}
	}
	return files
}

// traits are the drivers' that the table ran on.
func traits(i verbs.Info) verbstest.Traits {
	switch i.Driver {
	case "rxe":
		return verbstest.Traits{}
	}
	return verbstest.Traits{}
}

func TestOneDevice(t *testing.T) {
	p, infos := devices(t, 1)
	verbstest.Run(t, func(*testing.T) verbstest.Rig {
		return verbstest.Rig{A: endOf(p, infos[0].Name), B: endOf(p, infos[0].Name), Traits: traits(infos[0])}
	})
}

func TestTwoDevices(t *testing.T) {
	p, infos := devices(t, 2)
	verbstest.Run(t, func(*testing.T) verbstest.Rig {
		return verbstest.Rig{A: endOf(p, infos[0].Name), B: endOf(p, infos[1].Name), Traits: traits(infos[0])}
	})
}

func TestTwoHosts(t *testing.T) {
	addr := os.Getenv(peerEnd)
	if addr == "" {
		t.Skipf("SKIPPED, needs a second host in %s: run testdata/lab.sh", peerEnd)
	}
	p, infos := devices(t, 1)
	verbstest.Run(t, func(t *testing.T) verbstest.Rig {
		conn, err := net.DialTimeout("tcp", addr, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return verbstest.Rig{A: endOf(p, infos[0].Name), B: verbstest.Dial(conn), Traits: traits(infos[0])}
	})
}
