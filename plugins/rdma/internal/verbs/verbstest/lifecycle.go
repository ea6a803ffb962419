package verbstest

import (
	"errors"
	"syscall"
	"time"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

func testPostStates(p *pair) {
	p.qps(8)
	post := func() error {
		n, err := p.ends[0].PostSend(p.at[0].QP, WR{ID: 1, Slot: 1, Length: 8})
		if err != nil && n != 0 {
			p.Fatalf("%d were posted by a call that was refused", n)
		}
		return err
	}
	p.refused(post(), syscall.EINVAL)
	p.ok(p.ends[0].Move(p.at[0].QP, verbs.Init))
	p.refused(post(), syscall.EINVAL)
	p.quiet(0, 10*time.Millisecond)
	p.ok(p.ends[0].Move(p.at[0].QP, verbs.Err))
	p.ok(post())
	p.statuses(0, result{1, verbs.Flushed})
}

// testFullQueue: a slot is free once its completion was polled.
func testFullQueue(p *pair) {
	const depth, beyond = 8, 600
	p.connect(depth, Attr{RNRTimer: 1})
	wrs := make([]WR, beyond)
	for i := range wrs {
		wrs[i] = WR{ID: uint64(i), Slot: 1, Length: 8, Signaled: true}
	}
	n, err := p.ends[0].PostSend(p.at[0].QP, wrs...)
	p.refused(err, syscall.ENOMEM)
	if n < depth || p.traits.ExactQueues && n > depth {
		p.Fatalf("%d of a queue of %d were posted", n, depth)
	}
	if _, err = p.ends[0].PostSend(p.at[0].QP, wrs[0]); !errors.Is(err, syscall.ENOMEM) {
		p.Fatalf("posting to a full queue: %v", err)
	}
	p.receives(1, 1, 2, 3)
	p.poll(1, 3)
	p.statuses(0, result{0, 0}, result{1, 0})
	if !p.traits.ExactQueues {
		p.send(0, wrs[0])
		return
	}
	p.send(0, wrs[0], wrs[1])
	_, err = p.ends[0].PostSend(p.at[0].QP, wrs[0])
	p.refused(err, syscall.ENOMEM)
}

func testFullSRQ(p *pair) {
	const depth = 16
	p.start(Setup{}, Setup{SRQ: depth, Slots: 100})
	slots := make([]int, 100)
	for i := range slots {
		slots[i] = i
	}
	n, err := p.ends[1].PostRecv(slots...)
	if p.traits.ExactQueues {
		p.refused(err, syscall.ENOMEM)
	}
	if n < depth || p.traits.ExactQueues && n > depth {
		p.Fatalf("%d receives in a queue of %d", n, depth)
	}
	p.connect(8, Attr{})
	p.send(0, WR{ID: 1, Slot: 1, Length: 8, Signaled: true})
	p.statuses(0, result{1, 0})
	if p.traits.ExactQueues {
		// Taken, and its completion not polled.
		_, err = p.ends[1].PostRecv(n)
		p.refused(err, syscall.ENOMEM)
	}
	p.statuses(1, result{0, 0})
	p.receives(1, 0)
}

func testErrorFlushes(p *pair) {
	p.connect(8, Attr{RNRTimer: 20})
	p.receives(1, 0, 1)
	p.send(0, WR{ID: 1, Slot: 1, Length: 8, Signaled: true}, WR{ID: 2, Slot: 1, Length: 8, Signaled: true})
	p.statuses(0, result{1, 0}, result{2, 0})
	p.poll(1, 2)
	// No receive is left, so these are in flight.
	p.send(0, WR{ID: 3, Slot: 1, Length: 8}, WR{ID: 4, Slot: 1, Length: 8, Signaled: true})
	p.ok(p.ends[0].Move(p.at[0].QP, verbs.Err))
	p.statuses(0, result{3, verbs.Flushed}, result{4, verbs.Flushed})
	p.state(0, verbs.Err)
	// The shared queue's receives are not the queue pair's: they stay.
	p.ok(p.ends[1].Move(p.at[1].QP, verbs.Err))
	p.receives(1, 2)
	p.quiet(1, 10*time.Millisecond)
	for i := range 2 {
		if p.traits.raises(verbs.LastWQEReached) {
			p.event(i, verbs.LastWQEReached)
		}
	}
}

// drops exchanges messages whose completions nobody polls, and runs what drops them.
func (p *pair) drops(do func()) {
	p.connect(8, Attr{})
	p.receives(1, 0, 1, 2)
	p.send(0, WR{ID: 1, Slot: 1, Length: 8, Signaled: true}, WR{ID: 2, Slot: 1, Length: 8, Signaled: true}, WR{ID: 3, Slot: 1, Length: 8, Signaled: true})
	// Acknowledged: so the receiver's completions are there too.
	p.statuses(0, result{1, 0}, result{2, 0}, result{3, 0})
	do()
}

// testResetDrops: sends that were acknowledged are lost without a word.
func testResetDrops(p *pair) {
	p.drops(func() { p.ok(p.ends[1].Move(p.at[1].QP, verbs.Reset)) })
	if p.traits.KeepsCompletions {
		p.statuses(1, result{0, 0}, result{1, 0}, result{2, 0})
	} else {
		p.quiet(1, 20*time.Millisecond)
	}
	p.state(1, verbs.Reset)
}

func testDestroyDrops(p *pair) {
	p.drops(func() { p.ok(p.ends[1].CloseQP(p.at[1].QP)) })
	if !p.traits.KeepsCompletions {
		p.quiet(1, 20*time.Millisecond)
		return
	}
	p.statuses(1, result{0, 0}, result{1, 0}, result{2, 0})
}

func testReconnect(p *pair) {
	p.connect(8, Attr{})
	p.receives(1, 0, 1, 2)
	p.send(0, WR{ID: 1, Slot: 1, Length: 8, Signaled: true})
	p.statuses(0, result{1, 0})
	p.statuses(1, result{0, 0})
	for i := range 2 {
		p.ok(p.ends[i].Move(p.at[i].QP, verbs.Err))
		p.ok(p.ends[i].Move(p.at[i].QP, verbs.Reset))
	}
	p.join(Attr{PSN: 1000, PeerPSN: 1000})
	p.send(0, WR{ID: 2, Slot: 1, Length: 8, Signaled: true})
	p.statuses(0, result{2, 0})
	p.statuses(1, result{1, 0})
}

func testCommEstablished(p *pair) {
	p.qps(8)
	p.receives(1, 0)
	p.ok(p.ends[1].Connect(p.at[1].QP, p.at[0], Attr{}, verbs.RTR))
	p.ok(p.ends[0].Connect(p.at[0].QP, p.at[1], Attr{}, verbs.RTS))
	p.send(0, WR{ID: 1, Slot: 1, Length: 8, Signaled: true})
	p.statuses(0, result{1, 0})
	p.statuses(1, result{0, 0})
	if p.traits.raises(verbs.CommEstablished) {
		p.event(1, verbs.CommEstablished)
	}
}

// testSharedReceives: two queue pairs take from one queue, and completions name theirs.
func testSharedReceives(p *pair) {
	p.receives(1, 0, 1, 2, 3)
	p.connect(8, Attr{})
	first := p.at
	p.connect(8, Attr{})
	second := p.at
	if first[0].QP == second[0].QP || first[1].QP == second[1].QP {
		p.Fatalf("two queue pairs of a device have the same number: %v %v", first, second)
	}
	for i, at := range [][2]Address{first, second, second, first} {
		p.at = at
		p.send(0, WR{ID: uint64(i), Slot: 5, Length: 8, Signaled: true})
		p.statuses(0, result{uint64(i), 0})
		p.statuses(1, result{uint64(i), 0})
	}
	// One's end is not the other's.
	p.ok(p.ends[1].Move(first[1].QP, verbs.Err))
	p.at = second
	p.receives(1, 4)
	p.send(0, WR{ID: 9, Slot: 5, Length: 8, Signaled: true})
	p.statuses(0, result{9, 0})
	p.statuses(1, result{4, 0})
}

func testRefusedAttributes(p *pair) {
	p.qps(8)
	e, num := p.ends[0], p.at[0].QP
	reset := func() { p.ok(e.Move(num, verbs.Reset)) }
	p.refused(e.Connect(num, p.at[1], Attr{MTU: 1000}, verbs.RTR), syscall.EINVAL)
	reset()
	if p.at[0].MTU < 4096 && !p.traits.AnyMTU {
		p.refused(e.Connect(num, p.at[1], Attr{MTU: 2 * p.at[0].MTU}, verbs.RTR), syscall.EINVAL)
		reset()
	}
	p.ok(e.Connect(num, p.at[1], Attr{}, verbs.RTS))
	p.refused(e.Connect(num, p.at[1], Attr{}, verbs.RTS), syscall.EINVAL) // not from RTS
	p.refused(e.Move(num, verbs.Init), syscall.EINVAL)
	p.state(0, verbs.RTS)
	if _, err := e.NewQP(1 << 30); err == nil {
		p.Fatal("a queue pair with a thousand million sends was made")
	}
}

func testBusy(p *pair) {
	p.qps(8)
	refused, err := p.ends[0].Refused()
	p.ok(err)
	for what, errno := range refused {
		if errno != syscall.EBUSY {
			p.Errorf("closing the %s while it is used: %v, want %v", what, errno, syscall.EBUSY)
		}
	}
	if len(refused) != 5 {
		p.Errorf("tried %v", refused)
	}
}

// testCycles: nothing is left of an end that stopped with work outstanding.
func testCycles(p *pair) {
	for range 5 {
		p.start(Setup{Slots: 8}, Setup{Slots: 8})
		p.connect(8, Attr{})
		p.receives(1, 0)
		p.send(0, WR{ID: 1, Slot: 1, Length: 8, Signaled: true}, WR{ID: 2, Slot: 1, Length: 8, Signaled: true})
		p.statuses(1, result{0, 0})
		for _, e := range p.ends {
			p.ok(e.Stop())
			p.ok(e.Clean())
		}
	}
}
