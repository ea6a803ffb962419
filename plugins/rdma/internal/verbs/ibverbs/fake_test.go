//go:build linux && cgo

package ibverbs

import (
	"debug/elf"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// Numbers of testdata/fake.c.
const (
	refusedID  = 0xbad
	doorbellID = 0xd00
	eventID    = 0xe00
)

// fakeLibrary compiles a library without hardware.
func fakeLibrary(t testing.TB, args ...string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("SKIPPED, no C compiler")
	}
	file := filepath.Join(t.TempDir(), "fake.so")
	args = append(args, "-shared", "-fPIC", "-o", file, "testdata/fake.c")
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return file
}

// fake is a device of the fake library, and what is made from it.
type fake struct {
	p   *provider
	d   verbs.Device
	pd  verbs.PD
	ch  verbs.Channel
	cq  verbs.CQ
	srq verbs.SRQ
	qp  verbs.QP
	mem []byte
}

func openFake(t testing.TB) *fake {
	t.Helper()
	h := tree(t, map[string]string{"dev/infiniband/uverbs0": ""})
	f := &fake{p: &provider{file: fakeLibrary(t), host: h}}
	step := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	f.d, err = f.p.Open("fake0")
	step(err)
	t.Cleanup(func() {
		f.d.Interrupt()
		for _, c := range []interface{ Close() error }{f.qp, f.srq, f.cq, f.ch} {
			if err := c.Close(); err != nil {
				t.Errorf("closing %T: %v", c, err)
			}
		}
		f.d.(*device).users.Store(0) // the domain, which the fake never lets go
		if err := f.d.Close(); err != nil {
			t.Error(err)
		}
	})
	f.pd, err = f.d.AllocPD()
	step(err)
	f.ch, err = f.d.CreateChannel()
	step(err)
	f.cq, err = f.d.CreateCQ(256, f.ch)
	step(err)
	f.srq, err = f.pd.CreateSRQ(16)
	step(err)
	f.qp, err = f.pd.CreateQP(verbs.QPInit{SendCQ: f.cq, RecvCQ: f.cq, SRQ: f.srq, SendWRs: 16, MaxSGE: 1})
	step(err)
	f.mem, err = unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	step(err)
	t.Cleanup(func() { unix.Munmap(f.mem) })
	return f
}

func (f *fake) poll(t testing.TB, n int) []verbs.WC {
	t.Helper()
	wcs := make([]verbs.WC, n+1)
	k, err := f.cq.Poll(wcs)
	if k != n || err != nil {
		t.Fatalf("polled %d, %v; want %d", k, err, n)
	}
	return wcs[:n]
}

func TestWorkRequestsAndCompletions(t *testing.T) {
	f := openFake(t)
	must(t, f.qp.ToRTS(verbs.RTSAttr{}))
	n, err := f.qp.Post([]verbs.SendWR{
		{ID: 1, Length: 5, Op: verbs.SendImm, Imm: 0x01020304},
		{ID: 2, Length: 6, Op: verbs.Write, RKey: uint32(verbs.RemoteAccess), Signaled: true, Inline: true, Fenced: true, Solicited: true},
		{ID: 3, Op: verbs.Read, RKey: uint32(verbs.Flushed)},
		{ID: 4, Op: verbs.Send, RKey: uint32(verbs.Flushed)},
		{ID: 5, Op: verbs.SendImm, RKey: uint32(verbs.Flushed), Imm: 9},
		{ID: 6},
	})
	if n != 6 || err != nil {
		t.Fatal(n, err)
	}
	if n, err = f.srq.Post([]verbs.RecvWR{{ID: 7, Length: 99}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	// The fake shows operation, flags, ranges and calls in a failed one's vendor code.
	const fence, signaled, solicited, inline = 1 << 8, 2 << 8, 4 << 8, 8 << 8
	want := []verbs.WC{
		{ID: 1, QP: 77, Length: 5, Imm: 0x01020304, Recv: true, HasImm: true},
		{ID: 2, QP: 77, Status: verbs.RemoteAccess, Vendor: 0<<16 | fence | signaled | solicited | inline | 1<<4 | 1},
		{ID: 3, QP: 77, Status: verbs.Flushed, Vendor: 4<<16 | 1},
		{ID: 4, QP: 77, Status: verbs.Flushed, Vendor: 2<<16 | 1},
		{ID: 5, QP: 77, Status: verbs.Flushed, Vendor: 3<<16 | 1},
		{ID: 6, QP: 77},
		{ID: 7, Length: 99, Recv: true},
	}
	if got := f.poll(t, 7); !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
}

// TestPostCounts: what was posted is told exactly, across the shim's batches.
func TestPostCounts(t *testing.T) {
	f := openFake(t)
	for _, state := range []func() error{f.qp.ToReset, func() error { return f.qp.ToInit(verbs.InitAttr{}) }, func() error { return f.qp.ToRTR(verbs.RTRAttr{MTU: 1024}) }} {
		must(t, state())
		if n, err := f.qp.Post([]verbs.SendWR{{ID: 1}}); n != 0 || !errors.Is(err, syscall.EINVAL) {
			s, _ := f.qp.State()
			t.Fatalf("posted %d in %v: %v", n, s, err)
		}
		f.poll(t, 0)
	}
	must(t, f.qp.ToRTS(verbs.RTSAttr{}))
	for _, c := range []struct {
		total, at int
		id        uint64
		op        verbs.Op
		posted    int
		errno     syscall.Errno
	}{
		{total: 100, posted: 100},
		{total: 100, at: 0, id: refusedID, posted: 0, errno: syscall.ENOMEM},
		{total: 100, at: 31, id: refusedID, posted: 31, errno: syscall.ENOMEM},
		{total: 100, at: 32, id: refusedID, posted: 32, errno: syscall.ENOMEM},
		{total: 100, at: 70, id: refusedID, posted: 70, errno: syscall.ENOMEM},
		// All of that batch may leave the host, nothing after it.
		{total: 100, at: 40, id: doorbellID, posted: 64, errno: syscall.EIO},
		{total: 100, at: 0, op: 9, posted: 0, errno: syscall.EINVAL},
		{total: 100, at: 35, op: 9, posted: 35, errno: syscall.EINVAL},
	} {
		wrs := make([]verbs.SendWR, c.total)
		for i := range wrs {
			wrs[i].ID = 1
		}
		wrs[c.at].ID, wrs[c.at].Op = c.id, c.op
		n, err := f.qp.Post(wrs)
		if n != c.posted || (c.errno == 0) != (err == nil) || c.errno != 0 && !errors.Is(err, c.errno) {
			t.Errorf("%+v: posted %d, %v", c, n, err)
		}
		f.poll(t, c.posted)

		if c.op != 0 || c.id == doorbellID {
			continue
		}
		recvs := make([]verbs.RecvWR, c.total)
		recvs[c.at].ID = c.id
		n, err = f.srq.Post(recvs)
		if n != c.posted || (c.errno == 0) != (err == nil) || c.errno != 0 && !errors.Is(err, c.errno) {
			t.Errorf("%+v: posted %d receives, %v", c, n, err)
		}
		f.poll(t, c.posted)
	}
}

// TestEventsAreAcknowledged: the fake refuses to destroy what has events that
// were taken and not acknowledged, where the library waits for ever.
func TestEventsAreAcknowledged(t *testing.T) {
	f := openFake(t)
	must(t, f.qp.ToRTS(verbs.RTSAttr{}))
	post := func(kind uint64) {
		t.Helper()
		if _, err := f.qp.Post([]verbs.SendWR{{ID: eventID + kind}}); err != nil {
			t.Fatal(err)
		}
	}
	for kind, want := range map[uint64]verbs.Event{
		16: {Type: verbs.LastWQEReached, QP: 77},
		1:  {Type: verbs.QPFatal, QP: 77},
		10: {Type: verbs.PortError, Port: 3},
		5:  {Type: verbs.EventOther},
		99: {Type: verbs.EventOther},
	} {
		post(kind)
		got, err := f.d.Event()
		if got != want || err != nil {
			t.Errorf("event %d is %+v, %v; want %+v", kind, got, err, want)
		}
	}
	must(t, f.cq.Arm())
	must(t, f.ch.Wait())
	f.ch.Interrupt()
	f.d.Interrupt()
	must(t, f.cq.Arm())
	post(16)
	for range 2 { // from then on, whatever there is
		if err := f.ch.Wait(); err != verbs.ErrClosed {
			t.Fatal(err)
		}
		if _, err := f.d.Event(); err != verbs.ErrClosed {
			t.Fatal(err)
		}
	}
}

func TestDeviceAndPorts(t *testing.T) {
	f := openFake(t)
	f.p.host.write(t, "sys/class/infiniband/fake0/ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n")
	f.d.(*device).host = f.p.host
	l, err := f.d.Limits()
	if l.QPs != 7 || l.SRQWRs != 9 || err != nil {
		t.Fatal(l, err)
	}
	ports, err := f.d.Ports()
	must(t, err)
	want := verbs.Port{
		Number: 1, Active: true, State: "active", Link: verbs.Ethernet, MTU: 2048, Gbps: 100,
		GIDs: []verbs.GID{{Addr: netip.MustParseAddr("fe80::1"), Type: verbs.GIDRoCEv1}}, // from sysfs: this library is old
	}
	if !reflect.DeepEqual(ports[0], want) {
		t.Fatalf("got %+v, want %+v", ports[0], want)
	}
	if err := f.d.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Fatalf("a device in use was closed: %v", err)
	}
	if err := f.pd.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Fatalf("-1 and errno: %v", err)
	}
	if err := f.qp.ToRTR(verbs.RTRAttr{MTU: 1000}); !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("an MTU of 1000: %v", err)
	}
	if _, err := f.p.Open("fake1"); !errors.Is(err, syscall.ENODEV) {
		t.Fatal(err)
	}
	other := &device{}
	if _, err := other.CreateCQ(1, f.ch); !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("a channel of another device: %v", err)
	}
}

func TestMemlock(t *testing.T) {
	f := openFake(t)
	mr, err := f.pd.RegisterMemory(f.mem, verbs.LocalWrite)
	must(t, err)
	if mr.LKey() != 11 || mr.RKey() != 22 {
		t.Fatal(mr.LKey(), mr.RKey())
	}
	must(t, mr.Close())
	if _, err := f.pd.RegisterMemory(nil, verbs.LocalWrite); !errors.Is(err, syscall.EINVAL) {
		t.Fatal(err)
	}

	var old unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old))
	must(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: min(64<<10, old.Max), Max: old.Max}))
	defer unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old)
	big, err := unix.Mmap(-1, 0, 2<<20, unix.PROT_READ, unix.MAP_ANON|unix.MAP_PRIVATE)
	must(t, err)
	defer unix.Munmap(big)
	_, err = f.pd.RegisterMemory(big, 0)
	var m *verbs.MissingError
	if !errors.As(err, &m) || !errors.Is(err, syscall.ENOMEM) ||
		!strings.Contains(err.Error(), "2048 KiB: the process's limit is 64 KiB") || !strings.Contains(err.Error(), "ibv_reg_mr on fake0") {
		t.Fatal(err)
	}
}

func TestLibraryIsOld(t *testing.T) {
	p := &provider{file: fakeLibrary(t, "-DWITHOUT_QUERY_QP"), host: host{t.TempDir()}}
	_, err := p.Devices()
	var m *verbs.MissingError
	if !errors.As(err, &m) || !strings.Contains(err.Error(), "ibv_query_qp is not in") {
		t.Fatal(err)
	}
}

// TestNotLinked: this binary starts where there is no library.
func TestNotLinked(t *testing.T) {
	self, err := os.Executable()
	must(t, err)
	f, err := elf.Open(self)
	must(t, err)
	defer f.Close()
	libraries, err := f.ImportedLibraries()
	must(t, err)
	symbols, err := f.ImportedSymbols()
	must(t, err)
	for _, l := range libraries {
		if strings.Contains(l, "ibverbs") {
			t.Errorf("linked with %s", l)
		}
	}
	if len(symbols) == 0 {
		t.Fatal("no imported symbols: not a binary with cgo")
	}
	for _, s := range symbols {
		if strings.HasPrefix(strings.TrimPrefix(s.Name, "_"), "ibv_") {
			t.Errorf("needs %s", s.Name)
		}
	}
}

// BenchmarkCrossing is what posting and polling costs with a driver that does
// next to nothing, by requests a call.
func BenchmarkCrossing(b *testing.B) {
	f := openFake(b)
	if err := f.qp.ToRTS(verbs.RTSAttr{}); err != nil {
		b.Fatal(err)
	}
	for _, batch := range []struct {
		name string
		n    int
	}{{"1", 1}, {"32", 32}} {
		wrs, wcs := make([]verbs.SendWR, batch.n), make([]verbs.WC, batch.n)
		b.Run("post and poll "+batch.name, func(b *testing.B) {
			for b.Loop() {
				if n, err := f.qp.Post(wrs); n != batch.n || err != nil {
					b.Fatal(n, err)
				}
				if n, err := f.cq.Poll(wcs); n != batch.n || err != nil {
					b.Fatal(n, err)
				}
			}
		})
		b.Run("poll empty "+batch.name, func(b *testing.B) {
			for b.Loop() {
				if n, err := f.cq.Poll(wcs); n != 0 || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}
