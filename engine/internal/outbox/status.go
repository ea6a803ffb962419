package outbox

// Status is what a box holds, for people.
type Status struct {
	// Waiting had no copy given to a transport yet, Sent is under way, and
	// Resend wants another copy.
	Waiting, Sent, Resend int
	// Bytes is of all of them, with overhead.
	Bytes int
	// Room is how many new sequence numbers may go out now, and RoomBytes how
	// many bytes may be added to what is under way.
	Room      int
	RoomBytes uint64
	// Held: the receiver's room holds something back.
	Held bool
}

// Status tells what the box holds.
func (b *Box) Status() Status {
	s := Status{
		Waiting: b.waiting.n, Resend: b.resend.n, Sent: b.Unresolved() - b.resend.n, Bytes: b.size,
		Held: b.Len() > 0 && b.needsCredit(),
	}
	if b.session == 0 {
		return s
	}
	if last := min(b.roomSeq, b.low+Span-1); last >= b.next {
		s.Room = int(last - b.next + 1)
	}
	if b.roomBytes > b.bytes {
		s.RoomBytes = b.roomBytes - b.bytes
	}
	return s
}
