package simverbs

import (
	"errors"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/verbstest"
)

// soon bounds what has to happen.
const soon = 10 * time.Second

// world is two hosts, an end on each one's sim0, and the fabric's controls.
type world struct {
	*testing.T
	*Controller
	providers [2]*Provider
	ends      [2]verbstest.End
	at        [2]verbstest.Address
}

var portA, portB = PortName{"a", "sim0", 1}, PortName{"b", "sim0", 1}

func newWorld(t *testing.T, setup verbstest.Setup) *world {
	dir := shortDir(t)
	w := &world{T: t, Controller: Control(dir)}
	for i, h := range []string{"a", "b"} {
		w.providers[i] = startHost(t, hostOptions(dir, h, i+1))
		w.ends[i] = endOf(w.providers[i], "sim0")
		w.ok(w.ends[i].Start(setup))
	}
	return w
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) connect(a verbstest.Attr) {
	w.Helper()
	var err error
	for i, e := range w.ends {
		w.at[i], err = e.NewQP(64)
		w.ok(err)
	}
	for i, e := range w.ends {
		w.ok(e.Connect(w.at[i].QP, w.at[1-i], a, verbs.RTS))
	}
}

func (w *world) send(i int, ids ...uint64) {
	w.Helper()
	for _, id := range ids {
		_, err := w.ends[i].PostSend(w.at[i].QP, verbstest.WR{ID: id, Slot: 100, Length: 8, Signaled: true})
		w.ok(err)
	}
}

func (w *world) receives(i int, slots ...int) {
	w.Helper()
	_, err := w.ends[i].PostRecv(slots...)
	w.ok(err)
}

func (w *world) statuses(i int, want ...verbs.Status) {
	w.Helper()
	wcs, err := w.ends[i].Poll(len(want), soon)
	w.ok(err)
	if len(wcs) != len(want) {
		w.Fatalf("%d completions, want %d: %+v", len(wcs), len(want), wcs)
	}
	for k := range want {
		if wcs[k].Status != want[k] {
			w.Fatalf("completion %d: %v, want %v", k, wcs[k].Status, want[k])
		}
	}
}

func (w *world) quiet(i int) {
	w.Helper()
	wcs, err := w.ends[i].Poll(1, 20*time.Millisecond)
	w.ok(err)
	if len(wcs) > 0 {
		w.Fatalf("completed: %+v", wcs[0])
	}
}

func (w *world) event(i int, t verbs.EventType) verbs.Event {
	w.Helper()
	e, err := w.ends[i].Event(t, soon)
	w.ok(err)
	return e
}

// stop stops both ends; their accounts have to be clean.
func (w *world) stop() {
	w.Helper()
	for _, e := range w.ends {
		w.ok(e.Stop())
		w.ok(e.Clean())
	}
}

// TestCut: a link that is cut for less than the retries take loses nothing,
// and nothing is executed twice, whichever way was cut.
func TestCut(t *testing.T) {
	for name, cut := range map[string][2]PortName{"requests": {portA, portB}, "answers": {portB, portA}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, verbstest.Setup{})
			w.connect(verbstest.Attr{Timeout: 18, RetryCnt: 7})
			w.receives(1, 0, 1, 2, 3, 4, 5)
			w.send(0, 1)
			w.statuses(0, verbs.Success)
			w.statuses(1, verbs.Success)
			w.ok(w.Cut(cut[0], cut[1]))
			w.send(0, 2, 3)
			if name == "answers" {
				w.statuses(1, verbs.Success, verbs.Success)
			}
			w.quiet(0)
			w.ok(w.Heal(cut[0], cut[1]))
			w.statuses(0, verbs.Success, verbs.Success)
			if name == "requests" {
				w.statuses(1, verbs.Success, verbs.Success)
			}
			w.quiet(1)
			w.stop()
		})
	}
}

// TestDeadPath: the time of a dead path is what timeout and retries imply, and
// what a busy machine adds.
func TestDeadPath(t *testing.T) {
	for name, kill := range map[string]func(*world) error{
		"cut both ways": func(w *world) error { return w.CutBoth(portA, portB) },
		"peer's port":   func(w *world) error { return w.PortDown(portB) },
		"own port":      func(w *world) error { return w.PortDown(portA) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, verbstest.Setup{})
			w.connect(verbstest.Attr{Timeout: 15, RetryCnt: 1})
			w.ok(kill(w))
			start := time.Now()
			w.send(0, 1, 2)
			w.statuses(0, verbs.RetryExceeded, verbs.Flushed)
			if took, implied := time.Since(start), 2*4096*time.Nanosecond<<15; took < implied || took > implied+10*time.Second {
				t.Errorf("took %v, implied are %v", took, implied)
			}
			w.stop()
		})
	}
}

// TestPortFlap: a port that went down and up again raises both events, and the
// queue pairs that outlived it go on.
func TestPortFlap(t *testing.T) {
	w := newWorld(t, verbstest.Setup{})
	w.connect(verbstest.Attr{Timeout: 18})
	w.receives(1, 0)
	w.ok(w.PortDown(portA))
	if e := w.event(0, verbs.PortError); e.Port != 1 {
		t.Errorf("%+v", e)
	}
	d, err := w.providers[0].Open("sim0")
	w.ok(err)
	state := func() verbs.Port {
		ports, err := d.Ports()
		w.ok(err)
		return ports[0]
	}
	if p := state(); p.Active || p.State != "down" {
		t.Errorf("%+v", p)
	}
	w.send(0, 1)
	w.quiet(1)
	w.ok(w.PortUp(portA))
	w.event(0, verbs.PortActive)
	if p := state(); !p.Active {
		t.Errorf("%+v", p)
	}
	w.statuses(0, verbs.Success)
	w.statuses(1, verbs.Success)
	w.ok(d.Close())
	w.stop()
}

func TestGIDChange(t *testing.T) {
	w := newWorld(t, verbstest.Setup{})
	w.connect(verbstest.Attr{Timeout: 13, RetryCnt: 1})
	moved := verbs.GID{Index: 3, Addr: netip.MustParseAddr("::ffff:10.9.9.9"), Type: verbs.GIDRoCEv2}
	w.ok(w.SetGIDs(portB, moved))
	w.event(1, verbs.GIDChange)
	w.send(0, 1)
	w.statuses(0, verbs.RetryExceeded)
	old := w.at[1]
	a, err := w.ends[0].NewQP(4)
	w.ok(err)
	if err := w.ends[0].Connect(a.QP, old, verbstest.Attr{}, verbs.RTR); !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("connecting to an address that is gone: %v", err)
	}
	// A process of the host that starts now has the new address.
	p := startHost(t, hostOptions(w.dir, "b", 2))
	d, err := p.Open("sim0")
	w.ok(err)
	ports, err := d.Ports()
	w.ok(err)
	if len(ports[0].GIDs) != 1 || ports[0].GIDs[0] != moved {
		t.Errorf("%+v", ports[0].GIDs)
	}
	w.ok(d.Close())
	w.stop()
}

// TestLateHost: a host that starts after the others is reachable.
func TestLateHost(t *testing.T) {
	dir := shortDir(t)
	a := startHost(t, hostOptions(dir, "a", 1))
	b := startHost(t, hostOptions(dir, "b", 2))
	w := &world{T: t, providers: [2]*Provider{a, b}}
	for i, p := range w.providers {
		w.ends[i] = endOf(p, "sim1")
		w.ok(w.ends[i].Start(verbstest.Setup{}))
	}
	w.connect(verbstest.Attr{})
	w.receives(1, 0)
	w.send(0, 1)
	w.statuses(0, verbs.Success)
	w.stop()
}

// TestFrozenProcess: a process that is stopped does not answer, and executes
// what lay in its socket when it goes on, once.
func TestFrozenProcess(t *testing.T) {
	dir := shortDir(t)
	e, process := startChild(t, hostOptions(dir, "b", 2))
	w := &world{T: t, Controller: Control(dir)}
	w.ends = [2]verbstest.End{endOf(startHost(t, hostOptions(dir, "a", 1)), "sim0"), e}
	for _, e := range w.ends {
		w.ok(e.Start(verbstest.Setup{}))
	}
	w.connect(verbstest.Attr{Timeout: 16, RetryCnt: 3})
	w.receives(1, 0, 1, 2)
	w.send(0, 1)
	w.statuses(0, verbs.Success)
	w.statuses(1, verbs.Success)
	defer process.Signal(syscall.SIGCONT) //nolint:errcheck // so that it can end, whatever happens here
	stop(t, process.Pid)
	w.send(0, 2)
	w.statuses(0, verbs.RetryExceeded)
	w.ok(process.Signal(syscall.SIGCONT))
	w.statuses(1, verbs.Success)
	w.quiet(1)
	w.stop()
}

// TestKilledProcess: its queue pairs answer no more, its numbers are free.
func TestKilledProcess(t *testing.T) {
	dir := shortDir(t)
	e, process := startChild(t, hostOptions(dir, "b", 2))
	w := &world{T: t, Controller: Control(dir)}
	w.ends = [2]verbstest.End{endOf(startHost(t, hostOptions(dir, "a", 1)), "sim0"), e}
	for _, e := range w.ends {
		w.ok(e.Start(verbstest.Setup{}))
	}
	w.connect(verbstest.Attr{Timeout: 13, RetryCnt: 1})
	w.ok(process.Kill())
	w.send(0, 1)
	w.statuses(0, verbs.RetryExceeded)
	_, err := process.Wait()
	w.ok(err)
	w.ok(w.ends[0].CloseQP(w.at[0].QP))
	dead := w.at[1].QP
	w.ends[1] = endOf(startHost(t, hostOptions(dir, "b", 2)), "sim0")
	w.ok(w.ends[1].Start(verbstest.Setup{}))
	w.connect(verbstest.Attr{})
	if w.at[1].QP != dead {
		t.Errorf("the number is %d, want the dead process's %d", w.at[1].QP, dead)
	}
	w.receives(1, 0)
	w.send(0, 2)
	w.statuses(0, verbs.Success)
	w.stop()
	if names, err := os.ReadDir(numbersDir(dir, "b", "sim0")); err != nil || len(names) > 0 {
		t.Errorf("numbers are left: %v %v", names, err)
	}
}

// TestStalePacket: what was sent before a queue pair was ready is not for it,
// though the number and the sequence fit.
func TestStalePacket(t *testing.T) {
	w := newWorld(t, verbstest.Setup{})
	w.connect(verbstest.Attr{})
	w.receives(1, 0)
	p := w.providers[1]
	pkt := &packet{
		Header: header{Kind: packetSend, QP: w.at[1].QP, MTU: 4096, Sent: now() - int64(time.Minute)},
		From:   portA.String(), To: portB.String(),
	}
	deliver := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.deliver(pkt)
	}
	deliver()
	w.quiet(1)
	pkt.Header.Sent, pkt.From = now(), PortName{"a", "sim1", 1}.String()
	deliver() // from an address that is not the peer's
	w.quiet(1)
	pkt.From = portA.String()
	deliver()
	w.statuses(1, verbs.Success)
	w.stop()
}
