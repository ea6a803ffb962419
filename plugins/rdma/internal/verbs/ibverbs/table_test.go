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
	"golang.org/x/sys/unix"

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

// serveEnd answers one test after the other until it is killed. The other side
// says first which device the end is on.
func serveEnd(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		var device string
		if _, err = fmt.Fscanln(conn, &device); err == nil {
			err = verbstest.Serve(conn, verbstest.Local(New(), verbstest.Config{Device: device, Port: 1, Clean: cleanFiles()}))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		conn.Close()
	}
}

// dialEnd returns an end on a device of the other host.
func dialEnd(t *testing.T, device string) verbstest.End {
	t.Helper()
	addr := os.Getenv(peerEnd)
	if addr == "" {
		t.Skipf("SKIPPED, needs a second host in %s: run testdata/lab.sh", peerEnd)
	}
	conn, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := fmt.Fprintln(conn, device); err != nil {
		t.Fatal(err)
	}
	return verbstest.Dial(conn)
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

// localEnd returns an end in this process.
func localEnd(t *testing.T, p verbs.Provider, device string) verbstest.End {
	clean := cleanFiles()
	t.Cleanup(func() {
		if err := clean(); err != nil {
			t.Error(err)
		}
	})
	return verbstest.Local(p, verbstest.Config{Device: device, Port: 1})
}

// cleanFiles fails if more files of devices are open when it is called than were
// when it was made.
func cleanFiles() func() error {
	before := openFiles()
	return func() error {
		if after := openFiles(); len(after) > len(before) {
			return fmt.Errorf("left open: %v, were %v", after, before)
		}
		return nil
	}
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
		return verbstest.Traits{
			OnlyWritable: beforeLinux(6, 2),
			// Its completion queue is a ring in memory that only the reader empties.
			KeepsCompletions: true,
			// It raises events of ports and GIDs, none of these.
			NoEvents: []verbs.EventType{verbs.LastWQEReached, verbs.CommEstablished, verbs.QPAccessError},
			// It compares with the device's largest, not with the port's active one.
			AnyMTU:     true,
			NoAccess:   verbs.RemoteInvalidReq,
			TooShort:   verbs.RemoteOp,
			Protection: verbs.LocalQPOp,
		}
	}
	return verbstest.Traits{}
}

// beforeLinux reports whether the kernel is older.
func beforeLinux(major, minor int) bool {
	var u unix.Utsname
	var a, b int
	if unix.Uname(&u) == nil {
		_, _ = fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b)
	}
	return a < major || a == major && b < minor
}

func TestOneDevice(t *testing.T) {
	p, infos := devices(t, 1)
	verbstest.Run(t, func(t *testing.T) verbstest.Rig {
		return verbstest.Rig{A: localEnd(t, p, infos[0].Name), B: localEnd(t, p, infos[0].Name), Traits: traits(infos[0])}
	})
}

func TestTwoDevices(t *testing.T) {
	p, infos := devices(t, 2)
	if infos[0].Driver == "rxe" {
		// The kernel resolves no address of its own host on another link:
		// moving to RTR ends with ETIMEDOUT after seconds.
		t.Skip("SKIPPED, two Soft-RoCE devices of one host do not reach each other")
	}
	verbstest.Run(t, func(t *testing.T) verbstest.Rig {
		return verbstest.Rig{A: localEnd(t, p, infos[0].Name), B: localEnd(t, p, infos[1].Name), Traits: traits(infos[0])}
	})
}

func TestTwoHosts(t *testing.T) {
	p, infos := devices(t, 1)
	verbstest.Run(t, func(t *testing.T) verbstest.Rig {
		return verbstest.Rig{A: localEnd(t, p, infos[0].Name), B: dialEnd(t, infos[0].Name), Traits: traits(infos[0])}
	})
}
