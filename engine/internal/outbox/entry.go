package outbox

import (
	"iter"
	"time"
)

// Entry is one notification on its way. The caller fills the exported fields
// and owns the Entry's memory; everything else belongs to the Box.
type Entry struct {
	// Frame is what is sent; the sender writes its header anew for every copy.
	Frame []byte
	// Deadline is when the entry ends unresolved.
	Deadline time.Time
	// Owner is the caller's.
	Owner any
	// Avoid is the owner of the lane whose copy got no answer: another one is
	// better, if there is one.
	Avoid any

	seq    uint64
	order  uint64 // of sending, within the box
	lane   *Lane  // of the last copy
	sentAt time.Time
	copies int // given to a transport
	unsent int // of those, known not to have left
	where  place
	prev   *Entry
	next   *Entry

	// Where it is among the deadlines.
	heap           int
	earlier, later *Entry
}

// place says which list an entry is in.
type place uint8

const (
	nowhere place = iota
	waiting       // no copy given to a transport yet, no number drawn
	sent          // in its lane
	resend        // has a number, wants another copy
)

// Seq is the entry's sequence number, 0 before the first copy.
func (e *Entry) Seq() uint64 { return e.seq }

// Copies is how many copies were given to transports; it numbers the last one.
func (e *Entry) Copies() int { return e.copies }

// SentAt is when the last copy was given to a transport.
func (e *Entry) SentAt() time.Time { return e.sentAt }

// Held reports whether the entry is in a box. One that is not has ended.
func (e *Entry) Held() bool { return e.where != nowhere }

// MayHaveLeft reports whether a copy may have left the host.
func (e *Entry) MayHaveLeft() bool { return e.copies > e.unsent }

// Lane is the lane of the last copy, or nil.
func (e *Entry) Lane() *Lane { return e.lane }

// Lane is the entries that were last sent over one endpoint, in order of
// sending.
type Lane struct {
	// Owner is the caller's: the way that the endpoint is on.
	Owner any

	list  list
	acked [fastAcks]uint64 // the highest orders acked, ascending
	// AckedAt is when an entry of a single copy over this lane was last acked.
	AckedAt time.Time
}

// Len is how many entries are pending on the lane.
func (l *Lane) Len() int { return l.list.n }

// Entries yields what is pending on the lane, in order of sending. What is
// yielded may be taken off the lane meanwhile.
func (l *Lane) Entries() iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for e := l.list.head; e != nil; {
			next := e.next
			if !yield(e) {
				return
			}
			e = next
		}
	}
}

// noteAck remembers the highest orders of sending that were acked.
func (l *Lane) noteAck(order uint64) {
	if order <= l.acked[0] {
		return
	}
	i := 0
	for i+1 < fastAcks && l.acked[i+1] < order {
		l.acked[i] = l.acked[i+1]
		i++
	}
	l.acked[i] = order
}

// list is an intrusive doubly linked list.
type list struct {
	head, tail *Entry
	n          int
}

func (l *list) pushBack(e *Entry) { l.insertAfter(l.tail, e) }

// insertAfter puts e behind at, or first if at is nil.
func (l *list) insertAfter(at, e *Entry) {
	e.prev = at
	if at == nil {
		e.next, l.head = l.head, e
	} else {
		e.next, at.next = at.next, e
	}
	if e.next == nil {
		l.tail = e
	} else {
		e.next.prev = e
	}
	l.n++
}

func (l *list) remove(e *Entry) {
	if e.prev == nil {
		l.head = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		l.tail = e.prev
	} else {
		e.next.prev = e.prev
	}
	e.prev, e.next = nil, nil
	l.n--
}
