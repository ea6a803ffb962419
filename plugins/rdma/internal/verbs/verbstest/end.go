// Package verbstest is a table of tests that every provider of verbs has to
// pass: what the rdma transport relies on, and the orders that it may not
// break.
//
// A test drives two [End]s. Each is one open device with a completion queue,
// a shared receive queue and an area of memory, in this process, in another
// one or on another host ([Serve], [Dial]), so that the same table runs in all
// these places.
package verbstest

import (
	"errors"
	"fmt"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// End is one side of a test. Its methods block for a bounded time only.
type End interface {
	// Start opens the device and makes everything but queue pairs.
	Start(Setup) error
	// Stop closes all, in order, and returns the first refusal.
	Stop() error
	// Clean fails if something exists or was done wrong, where the provider
	// keeps accounts. Called after Stop.
	Clean() error

	// NewQP makes a queue pair, which is named by its address.
	NewQP(sends int) (Address, error)
	// Connect moves a queue pair from RESET as far as RTR or RTS.
	Connect(num uint32, peer Address, a Attr, to verbs.QPState) error
	// Move moves to INIT, ERR or RESET.
	Move(num uint32, to verbs.QPState) error
	State(num uint32) (verbs.QPState, error)
	CloseQP(num uint32) error

	// Fill and Bytes write and read a slot.
	Fill(slot int, data []byte) error
	Bytes(slot int, n int) ([]byte, error)
	// Share registers a file's memory with this access, in place of what it
	// registered before, and returns where it is; no access only ends that.
	// It is mapped read-only unless the access is LocalWrite. The file holds
	// the pattern of seed 9 at first; Shared reads it.
	Share(access verbs.Access) (Shared, error)
	Shared(n int) ([]byte, error)
	// PostRecv posts slots as receives, with the slot as id.
	PostRecv(slots ...int) (int, error)
	// PostSend posts work requests on slots.
	PostSend(num uint32, wrs ...WR) (int, error)

	// Poll returns once n completions came or the wait is over. It sleeps on
	// the channel.
	Poll(n int, wait time.Duration) ([]verbs.WC, error)
	// Event returns the next event of that type, and drops those before it.
	Event(t verbs.EventType, wait time.Duration) (verbs.Event, error)
	// Refused tries calls that have to be refused while queue pairs exist: it
	// returns what closing the device, the domain, the queues fails with.
	Refused() (map[string]syscall.Errno, error)
}

// Setup is what an end is made with. Zero fields have defaults.
type Setup struct {
	CQ    int // entries, default 256
	SRQ   int // receives, default 64
	Slots int // default 128
	Recv  int // bytes of each receive, default SlotSize
}

// SlotSize is the size of a slot of memory.
const SlotSize = 64 << 10

// Address is what the peer of a queue pair has to know.
type Address struct {
	QP   uint32
	GID  [16]byte
	LID  uint16
	MTU  verbs.MTU
	Area uint64 // the memory's address and key, for reads and writes
	RKey uint32
}

// Shared is shared memory of SlotSize bytes, as a peer has to know it.
type Shared struct {
	At   uint64
	RKey uint32
}

// Attr are the attributes that tests vary. Zero fields have defaults.
type Attr struct {
	Timeout  int // default 14
	RetryCnt int // default 7; -1 is none
	RNRRetry int // default 7; -1 is none
	RNRTimer int // default 12
	PSN      uint32
	PeerPSN  uint32
	MTU      verbs.MTU // default the smaller of both
	NoReads  bool
	Reads    int  // outstanding at a time, as initiator; default 16
	Answers  int  // as target; default 16
	NoAccess bool // the peer may neither read nor write
}

// WR is a work request on a slot.
type WR struct {
	ID       uint64
	Slot     int
	Length   uint32
	Op       verbs.Op
	Imm      uint32
	RemoteAt uint64
	RKey     uint32
	BadKey   bool // the local key
	Signaled bool
	Inline   bool
	Fenced   bool
}

// local is an end in this process.
type local struct {
	p      verbs.Provider
	config Config
	setup  Setup

	dev    verbs.Device
	port   verbs.Port
	gid    verbs.GID
	pd     verbs.PD
	ch     verbs.Channel
	cq     verbs.CQ
	srq    verbs.SRQ
	mem    []byte
	mr     verbs.MR
	shared shared
	qps    map[uint32]verbs.QP
	events chan verbs.Event
	wakes  chan struct{}
	ended  chan struct{} // closed when both goroutines are gone
}

// Config says what an end runs on.
type Config struct {
	Device string
	Port   int
	// Clean fails where the provider's accounts are not clean. Nil without accounts.
	Clean func() error
}

// Local returns an end in this process.
func Local(p verbs.Provider, c Config) End { return &local{p: p, config: c} }

func (e *local) Start(s Setup) (err error) {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&s.CQ, 256)
	def(&s.SRQ, 64)
	def(&s.Slots, 128)
	def(&s.Recv, SlotSize)
	e.setup, e.qps = s, map[uint32]verbs.QP{}
	if e.dev, err = e.p.Open(e.config.Device); err != nil {
		return err
	}
	if err := e.pickPort(); err != nil {
		return err
	}
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return err
	}
	if e.ch, err = e.dev.CreateChannel(); err != nil {
		return err
	}
	if e.cq, err = e.dev.CreateCQ(s.CQ, e.ch); err != nil {
		return err
	}
	if e.srq, err = e.pd.CreateSRQ(s.SRQ); err != nil {
		return err
	}
	if e.mem, err = unix.Mmap(-1, 0, s.Slots*SlotSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE); err != nil {
		return err
	}
	if e.mr, err = e.pd.RegisterMemory(e.mem, verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite); err != nil {
		return err
	}
	e.listen()
	return nil
}

// pickPort takes the configured port and its best GID.
func (e *local) pickPort() error {
	ports, err := e.dev.Ports()
	if err != nil {
		return err
	}
	for _, p := range ports {
		if p.Number != e.config.Port {
			continue
		}
		e.port = p
		for i, g := range p.GIDs {
			if i == 0 || g.Type > e.gid.Type || g.Type == e.gid.Type && e.gid.Addr.IsLinkLocalUnicast() {
				e.gid = g
			}
		}
		return nil
	}
	return fmt.Errorf("%s has no port %d", e.config.Device, e.config.Port)
}

// listen starts what waits for events and completions.
func (e *local) listen() {
	e.events, e.wakes, e.ended = make(chan verbs.Event, 1024), make(chan struct{}, 1), make(chan struct{})
	dev, ch, events, wakes := e.dev, e.ch, e.events, e.wakes
	both := make(chan struct{}, 2)
	go func() {
		for {
			ev, err := dev.Event()
			if err != nil {
				break
			}
			events <- ev
		}
		both <- struct{}{}
	}()
	go func() {
		for ch.Wait() == nil {
			select {
			case wakes <- struct{}{}:
			default:
			}
		}
		both <- struct{}{}
	}()
	go func() {
		<-both
		<-both
		close(e.ended)
	}()
}

func (e *local) Stop() error {
	var errs []error
	done := func(err error) { errs = append(errs, err) }
	for num := range e.qps {
		done(e.CloseQP(num))
	}
	if e.ended != nil {
		e.dev.Interrupt()
		e.ch.Interrupt()
		<-e.ended
		e.ended = nil
	}
	// In the reverse order of Start, and what a failed Start did not make.
	if e.srq != nil {
		done(e.srq.Close())
	}
	done(e.shared.close())
	if e.mr != nil {
		done(e.mr.Close())
	}
	if e.mem != nil {
		done(unix.Munmap(e.mem))
	}
	if e.cq != nil {
		done(e.cq.Close())
	}
	if e.ch != nil {
		done(e.ch.Close())
	}
	if e.pd != nil {
		done(e.pd.Close())
	}
	if e.dev != nil {
		done(e.dev.Close())
	}
	*e = local{p: e.p, config: e.config}
	return errors.Join(errs...)
}

func (e *local) Clean() error {
	if e.config.Clean == nil {
		return nil
	}
	return e.config.Clean()
}

func (e *local) NewQP(sends int) (Address, error) {
	q, err := e.pd.CreateQP(verbs.QPInit{SendCQ: e.cq, RecvCQ: e.cq, SRQ: e.srq, SendWRs: sends, MaxSGE: 1, MaxInline: 64})
	if err != nil {
		return Address{}, err
	}
	e.qps[q.Num()] = q
	a := Address{QP: q.Num(), LID: e.port.LID, MTU: e.port.MTU, Area: e.base(), RKey: e.mr.RKey()}
	if e.gid.Addr.IsValid() {
		a.GID = e.gid.Addr.As16()
	}
	return a, nil
}

func (e *local) base() uint64 { return uint64(uintptr(unsafe.Pointer(&e.mem[0]))) }

func (e *local) qp(num uint32) (verbs.QP, error) {
	if q := e.qps[num]; q != nil {
		return q, nil
	}
	return nil, fmt.Errorf("the test has no queue pair %d", num)
}

func (e *local) Connect(num uint32, peer Address, a Attr, to verbs.QPState) error {
	q, err := e.qp(num)
	if err != nil {
		return err
	}
	a = a.complete(e.port.MTU, peer.MTU)
	init := verbs.InitAttr{Port: e.port.Number, Access: verbs.RemoteRead | verbs.RemoteWrite}
	if a.NoAccess {
		init.Access = 0
	}
	if a.NoReads {
		a.Reads, a.Answers = 0, 0
	}
	if err := q.ToInit(init); err != nil {
		return err
	}
	err = q.ToRTR(verbs.RTRAttr{
		MTU: a.MTU, PeerQP: peer.QP, PeerPSN: a.PeerPSN, MaxDestRD: a.Answers, MinRNRTimer: a.RNRTimer,
		Port: e.port.Number, PeerLID: peer.LID, HopLimit: 16,
		Global: e.port.Link != verbs.InfiniBand, PeerGID: peer.GID, SGIDIndex: e.gid.Index,
	})
	if err != nil || to == verbs.RTR {
		return err
	}
	return q.ToRTS(verbs.RTSAttr{Timeout: a.Timeout, RetryCnt: a.RetryCnt, RNRRetry: a.RNRRetry, PSN: a.PSN, MaxRD: a.Reads})
}

func (a Attr) complete(mine, peers verbs.MTU) Attr {
	or := func(v *int, d int) {
		switch *v {
		case 0:
			*v = d
		case -1:
			*v = 0
		}
	}
	or(&a.Timeout, 14)
	or(&a.RetryCnt, 7)
	or(&a.RNRRetry, 7)
	or(&a.RNRTimer, 12)
	or(&a.Reads, 16)
	or(&a.Answers, 16)
	if a.MTU == 0 {
		a.MTU = min(mine, peers)
	}
	return a
}

func (e *local) Move(num uint32, to verbs.QPState) error {
	q, err := e.qp(num)
	if err != nil {
		return err
	}
	switch to {
	case verbs.Init:
		return q.ToInit(verbs.InitAttr{Port: e.port.Number})
	case verbs.Err:
		return q.ToError()
	case verbs.Reset:
		return q.ToReset()
	}
	return fmt.Errorf("the test moves no queue pair to %v", to)
}

func (e *local) State(num uint32) (verbs.QPState, error) {
	q, err := e.qp(num)
	if err != nil {
		return 0, err
	}
	return q.State()
}

func (e *local) CloseQP(num uint32) error {
	q, err := e.qp(num)
	if err != nil {
		return err
	}
	delete(e.qps, num)
	return q.Close()
}

func (e *local) slot(i int) []byte { return e.mem[i*SlotSize : (i+1)*SlotSize] }

func (e *local) Fill(slot int, data []byte) error {
	copy(e.slot(slot), data)
	return nil
}

func (e *local) Bytes(slot, n int) ([]byte, error) {
	return append([]byte(nil), e.slot(slot)[:n]...), nil
}

func (e *local) PostRecv(slots ...int) (int, error) {
	wrs := make([]verbs.RecvWR, len(slots))
	for i, s := range slots {
		wrs[i] = verbs.RecvWR{ID: uint64(s), Addr: e.base() + uint64(s*SlotSize), LKey: e.mr.LKey(), Length: uint32(e.setup.Recv)}
	}
	return e.srq.Post(wrs)
}

func (e *local) PostSend(num uint32, wrs ...WR) (int, error) {
	q, err := e.qp(num)
	if err != nil {
		return 0, err
	}
	posts := make([]verbs.SendWR, len(wrs))
	for i, w := range wrs {
		posts[i] = verbs.SendWR{
			ID: w.ID, Addr: e.base() + uint64(w.Slot*SlotSize), LKey: e.mr.LKey(), Length: w.Length,
			RemoteAt: w.RemoteAt, RKey: w.RKey, Imm: w.Imm, Op: w.Op,
			Signaled: w.Signaled, Inline: w.Inline, Fenced: w.Fenced,
		}
		if w.BadKey {
			posts[i].LKey ^= 0x00ffff00
		}
	}
	return q.Post(posts)
}

func (e *local) Poll(n int, wait time.Duration) ([]verbs.WC, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	var got []verbs.WC
	take := func() error {
		wcs := make([]verbs.WC, n-len(got))
		k, err := e.cq.Poll(wcs)
		got = append(got, wcs[:k]...)
		return err
	}
	for {
		if err := take(); err != nil || len(got) == n {
			return got, err
		}
		if err := e.cq.Arm(); err != nil {
			return got, err
		}
		if err := take(); err != nil || len(got) == n {
			return got, err
		}
		select {
		case <-e.wakes:
		case <-timer.C:
			return got, nil
		}
	}
}

func (e *local) Event(t verbs.EventType, wait time.Duration) (verbs.Event, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case ev := <-e.events:
			if ev.Type == t {
				return ev, nil
			}
		case <-timer.C:
			return verbs.Event{}, fmt.Errorf("no event %d within %v", t, wait)
		}
	}
}

func (e *local) Refused() (map[string]syscall.Errno, error) {
	refused := map[string]syscall.Errno{}
	for _, c := range []struct {
		name  string
		close func() error
	}{
		{"device", e.dev.Close}, {"pd", e.pd.Close}, {"channel", e.ch.Close}, {"cq", e.cq.Close}, {"srq", e.srq.Close},
	} {
		err := c.close()
		var errno syscall.Errno
		if !errors.As(err, &errno) {
			return refused, fmt.Errorf("closing the %s: %w", c.name, err)
		}
		refused[c.name] = errno
	}
	return refused, nil
}
