package rdmatransport

import (
	"errors"
	"syscall"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/sdk"
)

// pumpLocked posts what may be posted.
func (e *endpoint) pumpLocked() {
	if e.cause != nil || !e.joined {
		return
	}
	e.starved = false
	e.grantLocked()
	for e.postLocked() {
	}
}

// postLocked posts one batch of the queue and says whether to go on.
func (e *endpoint) postLocked() bool {
	want := min(e.queue.n, postBatch, min(maxFlying, e.d.depth-controls)-e.flying.n)
	if !e.memory {
		want = min(want, int(e.edge-e.sent))
	}
	if want <= 0 {
		return false
	}
	room := e.roomLocked(want)
	if room == 0 {
		return false
	}
	batch := e.d.batches.Get().(*[postBatch]verbs.SendWR)
	defer e.d.batches.Put(batch)
	s := e.queue.head
	for i := range room {
		batch[i] = s.request(e.serial, e.d.settings.Endpoint.MaxInline)
		s = s.next
	}
	n, err := e.qp.Post(batch[:room])
	for range n {
		e.flying.push(e.queue.pop())
	}
	e.sent += uint64(n)
	e.postedLocked(n, room-n, err)
	return err == nil && n == want
}

// roomLocked reserves places in the completion queue. With none it sees to it
// that the endpoint is woken when there are some.
func (e *endpoint) roomLocked(want int) int {
	n := e.d.takeRoom(want)
	if n == 0 && !e.starved {
		e.starved = true
		e.d.starve(e)
	}
	return n
}

// postedLocked takes the result of a post: how many the device took, how many
// it did not, and why. A full send queue is not a failure while completions
// will make room in it.
func (e *endpoint) postedLocked(taken, left int, err error) {
	if taken > 0 {
		if e.posted == 0 {
			e.progress = e.d.watch.ticks.Load()
		}
		e.posted += taken
		e.d.watch.arm(e.d)
	}
	e.d.giveRoom(left)
	if err != nil && !(errors.Is(err, syscall.ENOMEM) && e.posted > 0) {
		e.breakLocked(sdk.Errorf(sdk.Unavailable, "the queue pair to %s takes nothing: %w", e.peer, err))
	}
}

// tellLocked posts a control message, unless one of its kind is posted.
func (e *endpoint) tellLocked(kind, count uint32) bool {
	if e.controls&(1<<kind) != 0 || e.roomLocked(1) == 0 {
		return false
	}
	batch := e.d.batches.Get().(*[postBatch]verbs.SendWR)
	defer e.d.batches.Put(batch)
	batch[0] = verbs.SendWR{
		ID: controlOf(e.serial, kind), Op: verbs.SendImm, Imm: kind<<kindShift | count&countMask, Signaled: true,
	}
	n, err := e.qp.Post(batch[:1])
	if n == 1 {
		e.controls |= 1 << kind
	}
	e.postedLocked(n, 1-n, err)
	return n == 1
}

// grantLocked lets the peer send more, once that is worth a message.
func (e *endpoint) grantLocked() {
	if e.consumed == 0 {
		return
	}
	share := e.d.share(e.granted - e.consumed)
	if edge := e.consumed + share; edge >= e.granted+max(share/2, 1) && e.tellLocked(grant, uint32(edge)&countMask) {
		e.d.granted.Add(int64(edge - e.granted))
		e.granted = edge
	}
}

// sentLocked takes the completion of a send. It says whether that was one of
// this endpoint's that had none.
func (e *endpoint) sentLocked(wc *verbs.WC) bool {
	id := uint32(wc.ID)
	var s *slot
	if kind := id &^ controlID; id&controlID != 0 {
		if kind > bye || e.controls&(1<<kind) == 0 {
			return false
		}
		e.controls &^= 1 << kind
	} else if s = e.flying.take(id); s == nil {
		return false
	}
	e.posted--
	e.progress = e.d.watch.ticks.Load()
	if wc.Status == verbs.Success {
		e.joined = true
	} else {
		e.breakLocked(sdk.Errorf(sdk.Unavailable, "a send to %s failed: %s (vendor code %#x)", e.peer, wc.Status, wc.Vendor))
	}
	if s == nil {
		return true
	}
	c := sdk.Completion{ID: s.frame, Outcome: sdk.Done}
	if wc.Status != verbs.Success {
		c.Outcome, c.Code = sdk.Unknown, sdk.CodeOf(e.cause)
		if s.move != nil && wc.Status == verbs.RemoteAccess {
			c.Code = sdk.StaleCapability // and those behind it are flushed
		}
	}
	e.bytes -= s.size
	e.release(s)
	if !e.over {
		p := e.parcelLocked()
		p.outcomes = append(p.outcomes, c)
	}
	return true
}

// landedLocked takes a receive. It says whether the endpoint keeps the buffer.
func (e *endpoint) landedLocked(wc *verbs.WC, index uint32, mem []byte) (kept bool) {
	if wc.Status != verbs.Success {
		e.breakLocked(sdk.Errorf(sdk.Unavailable, "a receive from %s failed: %s (vendor code %#x)", e.peer, wc.Status, wc.Vendor))
		return false
	}
	e.joined = true
	if wc.HasImm {
		e.controlLocked(wc.Imm)
		return false
	}
	if e.over || int64(wc.Length) > int64(len(mem)) {
		return false
	}
	// A peer that sends more than it was granted would take others' buffers.
	if e.received++; e.received > e.granted {
		e.endLocked(sdk.Errorf(sdk.Unavailable, "%s broke the protocol: frame %d, with %d granted", e.peer, e.received, e.granted))
		return false
	}
	if e.held.Load() && e.d.receives.scarce() {
		e.missed++
		return false
	}
	p := e.parcelLocked()
	p.frames = append(p.frames, mem[:wc.Length:wc.Length])
	p.buffers = append(p.buffers, index)
	return true
}

func (e *endpoint) controlLocked(imm uint32) {
	switch kind, count := imm>>kindShift, imm&countMask; kind {
	case ready:
	case grant:
		edge, ok := widen(e.edge, count)
		if !ok {
			e.endLocked(sdk.Errorf(sdk.Unavailable, "%s broke the protocol: grant %d after %d", e.peer, count, e.edge&countMask))
			return
		}
		e.edge = edge
	case bye:
		e.left = true
		e.endLocked(sdk.Errorf(sdk.Unavailable, "%s closed the endpoint", e.peer))
	default:
		e.endLocked(sdk.Errorf(sdk.Unavailable, "%s broke the protocol: control message %#x", e.peer, imm))
	}
}
