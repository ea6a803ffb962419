package simverbs

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/verbstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

func TestSmoke(t *testing.T) {
	dir := shortDir(t)
	var ends []verbstest.End
	for i, h := range []string{"a", "b"} {
		p, err := New(hostOptions(dir, h, i+1))
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		ends = append(ends, verbstest.Local(p, verbstest.Config{Device: "sim0", Port: 1, Clean: func() error {
			if a := p.Accounts(); !a.IsClean() {
				return fmt.Errorf("%+v", a)
			}
			return nil
		}}))
	}
	var at [2]verbstest.Address
	var err error
	for i, e := range ends {
		if err := e.Start(verbstest.Setup{}); err != nil {
			t.Fatal(err)
		}
		if at[i], err = e.NewQP(64); err != nil {
			t.Fatal(err)
		}
	}
	for i, e := range ends {
		if err := e.Connect(at[i].QP, at[1-i], verbstest.Attr{}, verbs.RTS); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ends[1].PostRecv(0, 1, 2); err != nil {
		t.Fatal(err)
	}
	ends[0].Fill(5, []byte("hello"))
	start := time.Now()
	if _, err := ends[0].PostSend(at[0].QP, verbstest.WR{ID: 1, Slot: 5, Length: 5, Signaled: true}); err != nil {
		t.Fatal(err)
	}
	t.Log(ends[0].Poll(1, time.Second))
	t.Log(ends[1].Poll(1, time.Second))
	t.Log(time.Since(start))
	if b, _ := ends[1].Bytes(0, 5); !bytes.Equal(b, []byte("hello")) {
		t.Fatalf("%q", b)
	}
	for _, e := range ends {
		if err := e.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := e.Clean(); err != nil {
			t.Fatal(err)
		}
	}
}
