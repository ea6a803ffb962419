// Package outbox is the sender's half of the notification protocol
// (docs/protocol.md) as pure state: what waits, what was sent and is not
// resolved, what must be sent again, and how far the receiver lets the sender
// go. It does no I/O, starts no goroutine and takes the time from its caller. A
// Box belongs to one receiving incarnation; it is not safe for concurrent use.
package outbox

import (
	"math"
	"slices"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/dedup"
	"github.com/hawser-transport/hawser/engine/internal/frame"
)

// Span bounds how far the highest number in use may be above the lowest
// unresolved one. It is the width of the receiver's window, so that no first
// copy can fall out of it.
const Span = dedup.Size

// fastAcks is how many later frames of the same lane must be acked before an
// entry counts as lost.
const fastAcks = 3

// overhead is what an entry counts beside its frame against the outbox's
// bound, in bytes: about what its bookkeeping takes.
const overhead = 256

// Box is the outbox towards one peer.
type Box struct {
	waiting   list
	resend    list // by sequence number
	ring      []*Entry
	deadlines deadlines
	lanes     []*Lane

	session uint64
	unacked bool   // the session's receiver acks nothing
	next    uint64 // the number to draw
	low     uint64 // the lowest unresolved number, or next
	order   uint64

	roomSeq   uint64
	roomBytes uint64
	ackSeq    uint64 // the highest number of an ack
	acked     uint64 // the highest cumulative ack

	fast   uint64 // entries that fastResend took, since TakeFastResends
	bytes  uint64 // of entries with a number
	size   int    // of all entries, with overhead
	rto    rto
	credit creditTimer
}

// New returns an empty box without a session. ackTimeout is the first and the
// longest time that an entry waits for its ack.
func New(ackTimeout time.Duration) *Box {
	return &Box{ring: make([]*Entry, 16), next: 1, low: 1, rto: newRTO(ackTimeout)}
}

// NewLane adds a lane.
func (b *Box) NewLane(owner any) *Lane {
	l := &Lane{Owner: owner}
	b.lanes = append(b.lanes, l)
	return l
}

// Add takes an entry that waits for its first copy.
func (b *Box) Add(e *Entry) {
	e.where = waiting
	b.waiting.pushBack(e)
	b.deadlines.add(e)
	b.size += Cost(len(e.Frame))
}

// Cost is what a frame of n bytes counts against the outbox's bound.
func Cost(n int) int { return n + overhead }

// Size is what all entries count against the outbox's bound.
func (b *Box) Size() int { return b.size }

// Len is how many entries are held.
func (b *Box) Len() int { return b.deadlines.n }

// Unresolved is how many entries have a number.
func (b *Box) Unresolved() int { return b.deadlines.n - b.waiting.n }

// Open begins a session with the room that its receiver granted. Numbers start
// at 1. No entry may have a number.
func (b *Box) Open(session, roomSeq, roomBytes uint64) {
	b.unacked = false
	b.session, b.next, b.low, b.acked, b.ackSeq = session, 1, 1, 0, 0
	b.roomSeq, b.roomBytes = roomSeq, roomBytes
	b.credit = creditTimer{}
}

// OpenUnacked begins a session with a receiver that neither acks nor grants
// room: its entries end by Remove, or go again when their lane ends.
func (b *Box) OpenUnacked(session uint64) {
	b.Open(session, math.MaxUint64, math.MaxUint64)
	b.unacked = true
}

// Session is the session in use, or 0.
func (b *Box) Session() uint64 { return b.session }

// Floor is the lowest unresolved number, or the next one.
func (b *Box) Floor() uint64 { return b.low }

// CloseSession ends the session. It returns the entries of which a copy may
// have left, in their order; every other one waits again and goes on under the
// next session.
func (b *Box) CloseSession() []*Entry {
	var ended, kept []*Entry
	for seq := b.low; seq < b.next; seq++ {
		if e := b.at(seq); e == nil {
			continue
		} else if e.MayHaveLeft() {
			ended = append(ended, e)
		} else {
			kept = append(kept, e)
		}
	}
	for _, e := range ended {
		b.remove(e)
	}
	for i := len(kept) - 1; i >= 0; i-- {
		e := kept[i]
		b.remove(e)
		*e = Entry{Frame: e.Frame, Deadline: e.Deadline, Owner: e.Owner}
		b.Add(e)
		b.waiting.remove(e)
		b.waiting.insertAfter(nil, e)
	}
	b.session = 0
	return ended
}

// TakeWaiting removes and returns everything that waits for its first copy.
func (b *Box) TakeWaiting() []*Entry {
	var taken []*Entry
	for e := b.waiting.head; e != nil; e = b.waiting.head {
		b.remove(e)
		taken = append(taken, e)
	}
	return taken
}

// TakeUnsent removes and returns everything of which no copy can have left, in
// no particular order.
func (b *Box) TakeUnsent() []*Entry {
	taken := b.TakeWaiting()
	for e := b.resend.head; e != nil; {
		next := e.next
		if !e.MayHaveLeft() {
			b.remove(e)
			taken = append(taken, e)
		}
		e = next
	}
	return taken
}

// ResendAll has everything that was sent and is not resolved sent again.
func (b *Box) ResendAll() {
	for _, l := range b.lanes {
		for e := l.list.head; e != nil; e = l.list.head {
			b.again(e, nil)
		}
	}
}

// HasRoom is false at room 0: the lowest unresolved number may not go out.
func (b *Box) HasRoom() bool { return b.low <= b.roomSeq }

// TakeFastResends is how many entries were to be sent again since the last
// call, because three that were sent later over their lane were acked.
func (b *Box) TakeFastResends() uint64 {
	n := b.fast
	b.fast = 0
	return n
}

// Head returns the entry to send next, or nil if room, span or the lack of a
// session holds everything back.
func (b *Box) Head() *Entry {
	if b.session == 0 {
		return nil
	}
	if e := b.resend.head; e != nil && e.seq <= b.roomSeq {
		return e
	}
	return b.firstCopy()
}

// After returns the entry to send next if e, which Head or After returned, has
// to wait for something of its own.
func (b *Box) After(e *Entry) *Entry {
	if e.where != resend {
		return e.next
	}
	if e = e.next; e != nil && e.seq <= b.roomSeq {
		return e
	}
	return b.firstCopy()
}

// firstCopy returns the entry whose first copy may go out next, or nil.
func (b *Box) firstCopy() *Entry {
	if b.waiting.head == nil || b.next > b.roomSeq || b.next >= b.low+Span || b.bytes >= b.roomBytes {
		return nil
	}
	return b.waiting.head
}

// Posted records that a copy of e is being given to a lane's transport, and
// draws e's number if it has none.
func (b *Box) Posted(e *Entry, l *Lane, now time.Time) {
	if e.where == waiting {
		b.draw(e)
	}
	b.unlink(e)
	b.order++
	e.order, e.lane, e.sentAt, e.where = b.order, l, now, sent
	e.copies++
	l.list.pushBack(e)
}

func (b *Box) draw(e *Entry) {
	e.seq = b.next
	b.next++
	if b.next-b.low > uint64(len(b.ring)) {
		b.grow()
	}
	b.ring[e.seq&uint64(len(b.ring)-1)] = e
	b.bytes += uint64(len(e.Frame))
}

func (b *Box) grow() {
	ring := make([]*Entry, 2*len(b.ring))
	for seq := b.low; seq < b.next-1; seq++ {
		ring[seq&uint64(len(ring)-1)] = b.at(seq)
	}
	b.ring = ring
}

func (b *Box) at(seq uint64) *Entry { return b.ring[seq&uint64(len(b.ring)-1)] }

// NotPosted records that one copy of e, numbered by Copies, never left. If it
// was the last one, e wants another at once; otherwise nothing changes but
// what is known.
func (b *Box) NotPosted(e *Entry, number int) {
	if e.where == nowhere {
		return
	}
	e.unsent++
	b.Unknown(e, number)
}

// Handover ends a lane: everything pending on it, completed or not, is to be
// sent again, elsewhere if possible. It returns how many entries that are.
func (b *Box) Handover(l *Lane) int {
	n := l.list.n
	for e := l.list.head; e != nil; e = l.list.head {
		b.again(e, l.Owner)
	}
	b.lanes = slices.DeleteFunc(b.lanes, func(m *Lane) bool { return m == l })
	return n
}

// again moves a sent entry to those that want another copy.
func (b *Box) again(e *Entry, avoid any) {
	b.unlink(e)
	e.where, e.Avoid = resend, avoid
	at := b.resend.tail
	for at != nil && at.seq > e.seq {
		at = at.prev
	}
	b.resend.insertAfter(at, e)
}

// Unknown records that the outcome of one copy of e, numbered by Copies, will
// not be known. If it was the last one, e wants another, elsewhere if possible.
func (b *Box) Unknown(e *Entry, number int) {
	if e.where == sent && e.copies == number {
		b.again(e, e.lane.Owner)
	}
}

// Expire ends and returns the entries whose deadline has come.
func (b *Box) Expire(now time.Time) []*Entry {
	var ended []*Entry
	for e := b.deadlines.first(); e != nil && !e.Deadline.After(now); e = b.deadlines.first() {
		b.remove(e)
		ended = append(ended, e)
	}
	return ended
}

// Remove ends one entry, whatever its state.
func (b *Box) Remove(e *Entry) {
	if e.where != nowhere {
		b.remove(e)
	}
}

// remove takes e out of everything and moves the floor.
func (b *Box) remove(e *Entry) {
	b.unlink(e)
	b.deadlines.remove(e)
	b.size -= Cost(len(e.Frame))
	if e.seq == 0 {
		return
	}
	b.bytes -= uint64(len(e.Frame))
	b.ring[e.seq&uint64(len(b.ring)-1)] = nil
	for b.low < b.next && b.at(b.low) == nil {
		b.low++
	}
}

func (b *Box) unlink(e *Entry) {
	switch e.where {
	case waiting:
		b.waiting.remove(e)
	case resend:
		b.resend.remove(e)
	case sent:
		e.lane.list.remove(e)
	}
	e.where = nowhere
}

// Ack takes in an acknowledgement and returns the entries it resolves; they
// are no longer the box's. number is the ack's own: room is taken from the
// highest only. An ack that names a number which was never drawn is not for
// what this box has sent, and nothing of it counts.
func (b *Box) Ack(number uint64, a frame.Ack, now time.Time, buf []*Entry) []*Entry {
	resolved := buf[:0]
	if !b.drawn(a) {
		return resolved
	}
	for seq := b.low; seq <= a.Cumulative; seq++ {
		resolved = b.resolve(seq, now, resolved)
	}
	for _, r := range a.Ranges {
		for seq := max(r.First, b.low); seq <= r.Last; seq++ {
			resolved = b.resolve(seq, now, resolved)
		}
	}
	b.acked = max(b.acked, a.Cumulative)
	if len(resolved) > 0 {
		b.rto.progress()
	}
	if number > b.ackSeq {
		b.ackSeq = number
		b.setRoom(a.RoomSeq, a.RoomBytes)
	}
	b.fastResend()
	return resolved
}

// drawn reports whether everything that the ack names has been drawn.
func (b *Box) drawn(a frame.Ack) bool {
	if a.Cumulative >= b.next {
		return false
	}
	for _, r := range a.Ranges {
		if r.Last >= b.next {
			return false
		}
	}
	return true
}

func (b *Box) resolve(seq uint64, now time.Time, resolved []*Entry) []*Entry {
	e := b.at(seq)
	if e == nil || e.seq != seq {
		return resolved
	}
	if e.copies == 1 && e.lane != nil {
		// Only a single copy says which lane was acked, and after how long.
		e.lane.noteAck(e.order)
		e.lane.AckedAt = now
		b.rto.sample(now.Sub(e.sentAt))
	}
	b.remove(e)
	return append(resolved, e)
}

// setRoom takes a new limit. At room 0 what is under way counts as dropped for
// want of room: it is sent again as soon as the limit allows, over the same
// lane if that is usable. A limit that shrinks to more than that says nothing
// about what is under way beyond it.
func (b *Box) setRoom(seq, bytes uint64) {
	b.roomSeq, b.roomBytes = seq, bytes
	if b.low <= seq {
		return
	}
	b.ResendAll()
}

// fastResend takes the entries for which three frames sent later over the same
// lane are acked.
func (b *Box) fastResend() {
	for _, l := range b.lanes {
		for e := l.list.head; e != nil && e.order < l.acked[0]; e = l.list.head {
			b.again(e, nil)
			b.fast++
		}
	}
}
