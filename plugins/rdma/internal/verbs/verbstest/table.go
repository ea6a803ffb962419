package verbstest

import (
	"syscall"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// Rig is what the table runs on: two ends that are not started, on ports that
// reach each other. They may share a device.
type Rig struct {
	A, B   End
	Traits Traits
}

// Traits are where devices may differ.
type Traits struct {
	// ExactQueues: queues hold what was asked for, not more.
	ExactQueues bool
	// ExactTime: a dead path is reported within twice of what timeout and
	// retry count imply. Devices stretch it.
	ExactTime bool
	// KeepsCompletions: RESET and destroy leave completions that were not polled.
	KeepsCompletions bool
	// NoEvents lists events that the device does not raise.
	NoEvents []verbs.EventType
	// OnlyWritable: memory that is mapped read-only cannot be registered.
	OnlyWritable bool
	// AnyMTU: a path MTU above the port's is not refused.
	AnyMTU bool
	// What the device calls these errors; zero is what InfiniBand's
	// specification and most devices call them.
	NoAccess   verbs.Status // RemoteAccess: the queue pair allows no access
	TooShort   verbs.Status // RemoteInvalidReq: the receive is too short
	Protection verbs.Status // LocalProtection: a wrong local key
}

func (t Traits) raises(e verbs.EventType) bool {
	for _, n := range t.NoEvents {
		if n == e {
			return false
		}
	}
	return true
}

// Run runs the table. Open makes the rig of one test; what it opened it cleans
// up itself.
func Run(t *testing.T, open func(t *testing.T) Rig) {
	for _, c := range table {
		t.Run(c.name, func(t *testing.T) {
			rig := open(t)
			p := &pair{TB: t, ends: [2]End{rig.A, rig.B}, traits: rig.Traits}
			stopped := false
			stop := func() {
				if stopped {
					return
				}
				stopped = true
				for i, e := range p.ends {
					if err := e.Stop(); err != nil {
						t.Errorf("stopping end %d: %v", i, err)
					}
				}
				for i, e := range p.ends {
					if err := e.Clean(); err != nil {
						t.Errorf("end %d: %v", i, err)
					}
				}
			}
			defer stop()
			if !c.setsUp {
				p.start(Setup{}, Setup{})
			}
			c.run(p)
		})
	}
}

var table = []struct {
	name   string
	run    func(*pair)
	setsUp bool // makes its own ends
}{
	{name: "send", run: testSend},
	{name: "many in order both ways", run: testMany},
	{name: "unsignaled", run: testUnsignaled},
	{name: "write and read", run: testWriteRead},
	{name: "remote access", run: testRemoteAccess},
	{name: "access of the queue pair", run: testNoAccess},
	{name: "read-only memory", run: testReadOnly},
	{name: "memory that was given back", run: testRevoked},
	{name: "more reads than at a time", run: testReads},
	{name: "receive too short", run: testTooShort, setsUp: true},
	{name: "local protection", run: testLocalProtection},
	{name: "receiver not ready", run: testNotReady},
	{name: "receiver never ready", run: testNeverReady},
	{name: "retry exhaustion", run: testRetryExhaustion},
	{name: "post in the wrong state", run: testPostStates},
	{name: "full send queue", run: testFullQueue},
	{name: "full receive queue", run: testFullSRQ, setsUp: true},
	{name: "error flushes", run: testErrorFlushes},
	{name: "reset drops", run: testResetDrops},
	{name: "destroy drops", run: testDestroyDrops},
	{name: "reset and connect again", run: testReconnect},
	{name: "first message before RTS", run: testCommEstablished},
	{name: "shared receives", run: testSharedReceives},
	{name: "refused attributes", run: testRefusedAttributes},
	{name: "busy objects", run: testBusy},
	{name: "start and stop", run: testCycles, setsUp: true},
}

func testSend(p *pair) {
	p.connect(16, Attr{PSN: 0xfffffe, PeerPSN: 0xfffffe})
	p.receives(1, 0, 1, 2, 3, 4)
	p.fill(0, 10, 1, SlotSize)
	p.fill(0, 11, 2, 40)
	p.send(0,
		WR{ID: 100, Slot: 10, Length: 100, Signaled: true},
		WR{ID: 101, Slot: 10, Length: SlotSize, Signaled: true},
		WR{ID: 102, Op: verbs.SendImm, Imm: 0xdeadbeef, Signaled: true},
		WR{ID: 103, Slot: 11, Length: 40, Inline: true, Signaled: true},
		WR{ID: 104, Signaled: true})
	// Inline bytes are the caller's again at once.
	p.fill(0, 11, 99, 40)
	p.statuses(0, result{100, 0}, result{101, 0}, result{102, 0}, result{103, 0}, result{104, 0})
	got := p.poll(1, 5)
	for i, want := range []verbs.WC{
		{ID: 0, Length: 100}, {ID: 1, Length: SlotSize}, {ID: 2, HasImm: true, Imm: 0xdeadbeef}, {ID: 3, Length: 40}, {ID: 4},
	} {
		want.QP, want.Recv = p.at[1].QP, true
		if !want.HasImm {
			got[i].Imm = 0 // not defined
		}
		if got[i] != want {
			p.Fatalf("receive %d is %+v, want %+v", i, got[i], want)
		}
	}
	p.holds(1, 0, 1, 100)
	p.holds(1, 1, 1, SlotSize)
	p.holds(1, 3, 2, 40)
}

// testMany streams both ways at once, more than any queue holds.
func testMany(p *pair) {
	const messages, window = 600, 32
	p.connect(window, Attr{})
	slots := make([]int, 2*window)
	for i := range slots {
		slots[i] = i
	}
	p.receives(0, slots[:window]...)
	p.receives(1, slots[:window]...)
	var posted, sent, received [2]int
	deadline := time.Now().Add(6 * soon)
	for sent[0]+sent[1]+received[0]+received[1] < 4*messages {
		if time.Now().After(deadline) {
			p.Fatalf("sent %v and received %v of %d", sent, received, messages)
		}
		for i := range 2 {
			for posted[i] < messages && posted[i]-sent[i] < window {
				n := posted[i]
				slot := window + n%window
				p.fill(i, slot, byte(n), 64)
				p.send(i, WR{ID: uint64(n), Slot: slot, Length: 64, Signaled: true})
				posted[i]++
			}
			wcs, err := p.ends[i].Poll(window, 5*time.Millisecond)
			p.ok(err)
			for _, wc := range wcs {
				switch {
				case wc.Status != verbs.Success:
					p.Fatalf("%+v", wc)
				case wc.Recv:
					p.holds(i, int(wc.ID), byte(received[i]), 64)
					received[i]++
					p.receives(i, int(wc.ID))
				default:
					if wc.ID != uint64(sent[i]) {
						p.Fatalf("send %d completed, want %d", wc.ID, sent[i])
					}
					sent[i]++
				}
			}
		}
	}
}

func testUnsignaled(p *pair) {
	p.connect(8, Attr{})
	p.receives(1, 0, 1, 2, 3, 4, 5, 6, 7, 8)
	for round := range 2 {
		// The signaled one gives the slots of those before it back as well.
		for i := range 7 {
			p.send(0, WR{ID: uint64(i), Slot: 20, Length: 1, Signaled: i == 6})
		}
		p.statuses(0, result{6, 0})
		p.poll(1, 7)
		if round == 0 {
			p.receives(1, 10, 11, 12, 13, 14)
		}
	}
	p.quiet(0, 20*time.Millisecond)
	// An error completes, signaled or not.
	p.ok(p.ends[1].Move(p.at[1].QP, verbs.Err))
	p.ok(p.ends[0].Move(p.at[0].QP, verbs.Err))
	p.send(0, WR{ID: 9, Slot: 20, Length: 1})
	p.statuses(0, result{9, verbs.Flushed})
}

func testWriteRead(p *pair) {
	p.connect(16, Attr{})
	p.fill(0, 0, 1, 50000)
	p.fill(1, 3, 2, 60000)
	at := func(slot int) uint64 { return p.at[1].Area + uint64(slot*SlotSize) }
	key := p.at[1].RKey
	p.send(0,
		WR{ID: 1, Op: verbs.Write, Slot: 0, Length: 50000, RemoteAt: at(7), RKey: key, Signaled: true},
		WR{ID: 2, Op: verbs.Read, Slot: 1, Length: 60000, RemoteAt: at(3), RKey: key, Signaled: true},
		WR{ID: 3, Op: verbs.Read, Slot: 2, Length: 50000, RemoteAt: at(7), RKey: key, Signaled: true},
		WR{ID: 4, Op: verbs.Write, Slot: 0, Length: 10, RemoteAt: at(8), RKey: key, Signaled: true, Fenced: true})
	p.statuses(0, result{1, 0}, result{2, 0}, result{3, 0}, result{4, 0})
	p.holds(0, 1, 2, 60000)
	p.holds(0, 2, 1, 50000)
	p.quiet(1, 10*time.Millisecond) // neither takes a receive
	p.holds(1, 7, 1, 50000)
	p.holds(1, 8, 1, 10)
}

func testRemoteAccess(p *pair) {
	last := func() uint64 { return p.at[1].Area + 128*SlotSize - 10 }
	for _, wr := range []WR{
		{Op: verbs.Write, Length: 10, RemoteAt: 0, RKey: 1 << 30}, // no such key
		{Op: verbs.Write, Length: 11},                             // past the end
		{Op: verbs.Read, Length: 11},                              // past the end
		{Op: verbs.Read, Length: 10, RemoteAt: 8, RKey: 0},        // before the start
	} {
		p.connect(8, Attr{})
		if wr.RKey == 0 {
			wr.RKey = p.at[1].RKey
		}
		if wr.RemoteAt == 0 {
			wr.RemoteAt = last()
		}
		wr.ID, wr.Signaled = 1, true
		p.send(0, wr, WR{ID: 2})
		p.statuses(0, result{1, verbs.RemoteAccess}, result{2, verbs.Flushed})
		p.state(0, verbs.Err)
		if p.traits.raises(verbs.QPAccessError) {
			p.event(1, verbs.QPAccessError)
			p.state(1, verbs.Err)
		}
	}
}

func testNoAccess(p *pair) {
	p.connect(8, Attr{NoAccess: true})
	p.send(0, WR{ID: 1, Op: verbs.Write, Length: 10, RemoteAt: p.at[1].Area, RKey: p.at[1].RKey})
	p.statuses(0, result{1, or(p.traits.NoAccess, verbs.RemoteAccess)})
	p.state(0, verbs.Err)
}

func or(s, def verbs.Status) verbs.Status {
	if s != verbs.Success {
		return s
	}
	return def
}

// testReadOnly: memory that is mapped read-only can be registered, and read.
func testReadOnly(p *pair) {
	p.connect(8, Attr{})
	s, err := p.ends[1].Share(verbs.RemoteRead)
	if p.traits.OnlyWritable {
		p.refused(err, syscall.EFAULT)
		return
	}
	p.ok(err)
	p.send(0, WR{ID: 1, Op: verbs.Read, Slot: 1, Length: SlotSize, RemoteAt: s.At, RKey: s.RKey, Signaled: true})
	p.statuses(0, result{1, 0})
	p.holds(0, 1, 9, SlotSize)
	p.fill(0, 0, 1, 100)
	p.send(0, WR{ID: 2, Op: verbs.Write, Slot: 0, Length: 100, RemoteAt: s.At, RKey: s.RKey}, WR{ID: 3})
	p.statuses(0, result{2, verbs.RemoteAccess}, result{3, verbs.Flushed})
	p.state(0, verbs.Err)
	p.shared(9, SlotSize)
}

// testRevoked: a key is worth nothing once its region has been closed.
func testRevoked(p *pair) {
	for _, op := range []verbs.Op{verbs.Write, verbs.Read} {
		p.connect(8, Attr{})
		s, err := p.ends[1].Share(verbs.LocalWrite | verbs.RemoteRead | verbs.RemoteWrite)
		p.ok(err)
		p.fill(0, 0, 3, SlotSize)
		p.send(0, WR{ID: 1, Op: verbs.Write, Slot: 0, Length: 5000, RemoteAt: s.At, RKey: s.RKey, Signaled: true})
		p.statuses(0, result{1, 0})
		p.shared(3, 5000)
		_, err = p.ends[1].Share(0)
		p.ok(err)
		p.send(0, WR{ID: 2, Op: op, Slot: 0, Length: 100, RemoteAt: s.At, RKey: s.RKey}, WR{ID: 3})
		p.statuses(0, result{2, verbs.RemoteAccess}, result{3, verbs.Flushed})
		p.holds(0, 0, 3, SlotSize)
		p.state(0, verbs.Err)
	}
}

// testReads: more reads are posted than either side does at a time.
func testReads(p *pair) {
	const reads = 12
	p.connect(2*reads, Attr{Reads: 2, Answers: 2})
	s, err := p.ends[1].Share(verbs.RemoteRead | verbs.LocalWrite)
	p.ok(err)
	var want []result
	for i := range uint64(reads) {
		p.send(0, WR{ID: i, Op: verbs.Read, Slot: int(i), Length: 4000, RemoteAt: s.At, RKey: s.RKey, Signaled: true})
		want = append(want, result{i, 0})
	}
	p.statuses(0, want...)
	for i := range reads {
		p.holds(0, i, 9, 4000)
	}
}

func testTooShort(p *pair) {
	p.start(Setup{}, Setup{Recv: 100})
	p.connect(8, Attr{})
	p.receives(1, 0, 1)
	p.send(0, WR{ID: 1, Slot: 5, Length: 100, Signaled: true}, WR{ID: 2, Slot: 6, Length: 101}, WR{ID: 3, Slot: 7})
	p.statuses(0, result{1, 0}, result{2, or(p.traits.TooShort, verbs.RemoteInvalidReq)}, result{3, verbs.Flushed})
	p.statuses(1, result{0, 0}, result{1, verbs.LocalLength})
	p.state(0, verbs.Err)
	p.state(1, verbs.Err)
}

func testLocalProtection(p *pair) {
	p.connect(8, Attr{})
	p.receives(1, 0, 1, 2)
	p.send(0, WR{ID: 1, Slot: 5, Length: 8, Signaled: true}, WR{ID: 2, Slot: 6, Length: 8, BadKey: true}, WR{ID: 3, Slot: 7, Length: 8})
	p.statuses(0, result{1, 0}, result{2, or(p.traits.Protection, verbs.LocalProtection)}, result{3, verbs.Flushed})
	p.state(0, verbs.Err)
	p.statuses(1, result{0, 0})
	p.quiet(1, 10*time.Millisecond)
}

// testNotReady: with an RNR retry of 7 a sender waits for as long as it takes.
func testNotReady(p *pair) {
	p.connect(8, Attr{Timeout: 14, RetryCnt: 3, RNRTimer: 8})
	p.fill(0, 5, 5, 200)
	p.send(0, WR{ID: 1, Slot: 5, Length: 200, Signaled: true}, WR{ID: 2, Slot: 6, Length: 8, Signaled: true})
	p.quiet(0, 400*time.Millisecond) // longer than a dead path takes
	p.receives(1, 3)
	p.statuses(0, result{1, 0})
	p.statuses(1, result{3, 0})
	p.holds(1, 3, 5, 200)
	p.quiet(0, 20*time.Millisecond)
	p.receives(1, 4)
	p.statuses(0, result{2, 0})
	p.statuses(1, result{4, 0})
}

func testNeverReady(p *pair) {
	p.connect(8, Attr{RNRRetry: 2, RNRTimer: 14})
	p.send(0, WR{ID: 1, Slot: 5, Length: 8}, WR{ID: 2, Slot: 6, Length: 8})
	p.statuses(0, result{1, verbs.RNRExceeded}, result{2, verbs.Flushed})
	p.state(0, verbs.Err)
}

// testRetryExhaustion: a queue pair in the error state answers nothing.
func testRetryExhaustion(p *pair) {
	const timeout, retries = 15, 3
	p.connect(8, Attr{Timeout: timeout, RetryCnt: retries})
	p.receives(1, 0, 1)
	p.send(0, WR{ID: 1, Slot: 5, Length: 8, Signaled: true})
	p.statuses(0, result{1, 0})
	p.statuses(1, result{0, 0})
	p.ok(p.ends[1].Move(p.at[1].QP, verbs.Err))
	start := time.Now()
	p.send(0, WR{ID: 2, Slot: 5, Length: 8}, WR{ID: 3, Slot: 5, Length: 8}, WR{ID: 4, Slot: 5, Length: 8})
	p.statuses(0, result{2, verbs.RetryExceeded}, result{3, verbs.Flushed}, result{4, verbs.Flushed})
	took, implied := time.Since(start), (retries+1)*4096*time.Nanosecond<<timeout
	p.Logf("dead path reported in %v, implied %v", took, implied)
	if took < implied*9/10 || p.traits.ExactTime && took > implied+10*time.Second {
		p.Errorf("a dead path was reported in %v, implied are %v", took, implied)
	}
	p.state(0, verbs.Err)
	p.quiet(1, 10*time.Millisecond)
}
