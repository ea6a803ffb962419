package simverbs

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/verbstest"
)

// faulty checks that a provider recorded exactly one fault, which says so.
func faulty(t *testing.T, p *Provider, says string) {
	t.Helper()
	faults := p.Accounts().Faults
	if len(faults) != 1 || !strings.Contains(faults[0], says) {
		t.Errorf("faults are %q, want one of %q", faults, says)
	}
}

// bench is an opened device with a domain and memory.
type bench struct {
	*testing.T
	p   *Provider
	d   verbs.Device
	pd  verbs.PD
	mem []byte
	mr  verbs.MR
}

func newBench(t *testing.T) *bench {
	b := &bench{T: t, p: startHost(t, hostOptions(shortDir(t), "a", 1))}
	var err error
	b.d, err = b.p.Open("sim0")
	b.ok(err)
	b.pd, err = b.d.AllocPD()
	b.ok(err)
	b.mem, err = unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	b.ok(err)
	t.Cleanup(func() { unix.Munmap(b.mem) })
	b.mr, err = b.pd.RegisterMemory(b.mem, verbs.LocalWrite)
	b.ok(err)
	return b
}

func (b *bench) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) recv(id uint64, off int, n uint32) verbs.RecvWR {
	return verbs.RecvWR{ID: id, Addr: uint64(uintptr(unsafe.Pointer(&b.mem[0]))) + uint64(off), LKey: b.mr.LKey(), Length: n}
}

func TestReceivePostedTwice(t *testing.T) {
	b := newBench(t)
	s, err := b.pd.CreateSRQ(8)
	b.ok(err)
	_, err = s.Post([]verbs.RecvWR{b.recv(1, 0, 100), b.recv(2, 100, 100)})
	b.ok(err)
	if f := b.p.Accounts().Faults; len(f) > 0 {
		t.Fatal(f)
	}
	_, err = s.Post([]verbs.RecvWR{b.recv(3, 199, 1)})
	b.ok(err)
	faulty(t, b.p, "receive 3 was posted into the memory of receive 2")
}

func TestRegionClosedInUse(t *testing.T) {
	b := newBench(t)
	s, err := b.pd.CreateSRQ(8)
	b.ok(err)
	_, err = s.Post([]verbs.RecvWR{b.recv(1, 0, 100)})
	b.ok(err)
	b.ok(b.mr.Close())
	faulty(t, b.p, "under 0 sends and 1 receives")
}

func TestClosedTwice(t *testing.T) {
	b := newBench(t)
	b.ok(b.mr.Close())
	if err := b.mr.Close(); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	faulty(t, b.p, "ibv_dereg_mr twice")
}

func TestClosedProvider(t *testing.T) {
	b := newBench(t)
	b.ok(b.p.Close())
	faulty(t, b.p, "closed with sim0 open")
}

// TestSendBufferChanged: the bytes of a send are the device's until it completed.
func TestSendBufferChanged(t *testing.T) {
	w := newWorld(t, verbstest.Setup{})
	w.connect(verbstest.Attr{Timeout: 16})
	w.receives(1, 0)
	w.ok(w.Cut(portA, portB))
	w.send(0, 1)
	w.ok(w.ends[0].Fill(100, []byte("changed")))
	w.ok(w.Heal(portA, portB))
	w.statuses(0, verbs.Success) // of the second transmission
	if f := w.providers[0].Accounts().Faults; len(f) == 0 || !strings.Contains(f[0], "the bytes of send 1") {
		t.Errorf("faults: %q", f)
	}
}

// TestTooManyReads: a target does no more reads at a time than it was told to.
func TestTooManyReads(t *testing.T) {
	w := newWorld(t, verbstest.Setup{})
	w.connect(verbstest.Attr{Reads: 4, Answers: 1})
	w.ok(w.Cut(portB, portA)) // no response comes before the second read
	read := func(id uint64) verbstest.WR {
		return verbstest.WR{ID: id, Op: verbs.Read, Slot: int(id), Length: 8, RemoteAt: w.at[1].Area, RKey: w.at[1].RKey}
	}
	_, err := w.ends[0].PostSend(w.at[0].QP, read(1), read(2))
	w.ok(err)
	w.event(1, verbs.QPRequestError)
	w.ok(w.Heal(portB, portA))
}

// TestOverrun: a completion queue that is too small is dead, and its queue
// pairs with it.
func TestOverrun(t *testing.T) {
	w := newWorld(t, verbstest.Setup{CQ: 2})
	w.connect(verbstest.Attr{})
	w.receives(1, 0, 1, 2)
	// The receiver polls nothing.
	w.send(0, 1, 2)
	w.statuses(0, verbs.Success, verbs.Success)
	w.send(0, 3)
	w.event(1, verbs.CQError)
	w.event(1, verbs.QPFatal)
	if s, err := w.ends[1].State(w.at[1].QP); err != nil || s != verbs.Err {
		t.Errorf("%v %v", s, err)
	}
	w.statuses(1, verbs.Success, verbs.Success)
	w.quiet(1)
	faulty(t, w.providers[1], "overran")
}

func TestInject(t *testing.T) {
	b := newBench(t)
	b.p.Inject(Injection{Call: "ibv_reg_mr", Device: "sim1", Errno: syscall.EIO})
	b.p.Inject(Injection{Call: "ibv_reg_mr", Device: "sim0", Errno: syscall.ENOMEM, After: 1})
	m, err := b.pd.RegisterMemory(b.mem, verbs.LocalWrite)
	b.ok(err)
	_, err = b.pd.RegisterMemory(b.mem, verbs.LocalWrite)
	var ce *verbs.CallError
	if !errors.As(err, &ce) || ce.Call != "ibv_reg_mr" || ce.Object != "sim0" || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%v", err)
	}
	b.ok(m.Close())
	m, err = b.pd.RegisterMemory(b.mem, verbs.LocalWrite)
	b.ok(err)
	b.ok(m.Close())

	// From another process, and one move of a queue pair only.
	w := newWorld(t, verbstest.Setup{})
	w.ok(w.Inject("a", Injection{Call: "ibv_modify_qp(RTS)", Errno: syscall.EAGAIN}))
	at, err := w.ends[0].NewQP(4)
	w.ok(err)
	if err := w.ends[0].Connect(at.QP, at, verbstest.Attr{}, verbs.RTS); !errors.Is(err, syscall.EAGAIN) {
		t.Error(err)
	}
	if s, _ := w.ends[0].State(at.QP); s != verbs.RTR {
		t.Errorf("the queue pair is in %v", s)
	}
	w.ok(w.ends[0].CloseQP(at.QP))

	// A batch that breaks off: those before were posted.
	w.connect(verbstest.Attr{})
	w.receives(1, 0, 1, 2)
	w.ok(w.Inject("a", Injection{Call: "ibv_post_send(WR)", Errno: syscall.ENOMEM, After: 2}))
	n, err := w.ends[0].PostSend(w.at[0].QP, verbstest.WR{Signaled: true}, verbstest.WR{Signaled: true}, verbstest.WR{Signaled: true})
	if n != 2 || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%d %v", n, err)
	}
	w.statuses(0, verbs.Success, verbs.Success)
	w.statuses(1, verbs.Success, verbs.Success)
	w.quiet(0)
	w.stop()
}

// TestMTUMismatch: ends that cut messages differently do not understand each other.
func TestMTUMismatch(t *testing.T) {
	w := newWorld(t, verbstest.Setup{})
	var err error
	for i, e := range w.ends {
		w.at[i], err = e.NewQP(8)
		w.ok(err)
	}
	w.ok(w.ends[0].Connect(w.at[0].QP, w.at[1], verbstest.Attr{MTU: 1024}, verbs.RTS))
	w.ok(w.ends[1].Connect(w.at[1].QP, w.at[0], verbstest.Attr{MTU: 2048}, verbs.RTS))
	w.receives(1, 0, 1)
	_, err = w.ends[0].PostSend(w.at[0].QP, verbstest.WR{Length: 1024, Signaled: true}, verbstest.WR{Length: 1025, Signaled: true})
	w.ok(err)
	w.statuses(0, verbs.Success, verbs.RemoteInvalidReq)
	w.stop()
}

// TestStrangeDevices: what a machine may have beside good devices.
func TestStrangeDevices(t *testing.T) {
	dir := shortDir(t)
	o := Options{Dir: dir, Host: "a", Devices: []Device{
		{Name: "locked", OpenError: syscall.EACCES, Ports: []Port{{}}},
		{Name: "portless"},
		{Name: "nogid", Ports: []Port{{Netdev: "eth7"}}},
		{Name: "ib", Ports: []Port{{Link: verbs.InfiniBand, LID: 3, SMLID: 1}}},
	}}
	p := startHost(t, o)
	infos, err := p.Devices()
	if err != nil || len(infos) != 4 || infos[2].Netdevs[0] != "eth7" || infos[0].Driver != "sim" {
		t.Fatalf("%+v %v", infos, err)
	}
	if _, err := p.Open("locked"); !errors.Is(err, syscall.EACCES) {
		t.Error(err)
	}
	if _, err := p.Open("none"); !errors.Is(err, syscall.ENODEV) {
		t.Error(err)
	}
	for name, want := range map[string]func([]verbs.Port) bool{
		"portless": func(p []verbs.Port) bool { return len(p) == 0 },
		"nogid":    func(p []verbs.Port) bool { return len(p) == 1 && len(p[0].GIDs) == 0 && p[0].Link == verbs.Ethernet },
		"ib":       func(p []verbs.Port) bool { return p[0].Link == verbs.InfiniBand && p[0].LID == 3 && p[0].SMLID == 1 },
	} {
		d, err := p.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if ports, err := d.Ports(); err != nil || !want(ports) {
			t.Errorf("%s: %+v %v", name, ports, err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	missing := startHost(t, Options{Dir: dir, Host: "b", Missing: "libibverbs.so.1"})
	var me *verbs.MissingError
	if _, err := missing.Devices(); !errors.As(err, &me) || me.What != "libibverbs.so.1" {
		t.Error(err)
	}
	// Two hosts cannot have one address.
	o.Host = "c"
	o.Devices[2].Ports[0].GIDs = hostOptions(dir, "x", 1).Devices[0].Ports[0].GIDs
	startHost(t, o)
	o.Host = "d"
	if p, err := New(o); err == nil {
		p.Close()
		t.Error("two hosts have one GID")
	}
}
