package inbox

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/dedup"
	"github.com/hawser-transport/hawser/engine/internal/frame"
)

// idle is after how long without a frame a session no longer counts as active
// when room is shared out.
const idle = time.Minute

// Session is what the receiver holds of one sender's session. It is safe for
// concurrent use: frames of one session come over several transports.
type Session struct {
	// Owner is the engine's.
	Owner any

	id     uint64
	hungry atomic.Bool // in the queue's list
	busy   *activity

	mu struct {
		sync.Mutex
		window  dedup.Window
		acks    uint64
		seen    time.Time
		active  bool
		ended   bool
		dropped bool // something, for want of room, and no ack has said so yet
	}
}

// NewSession makes the state of a session that hello installs.
func (q *Queue[T]) NewSession(id uint64, now time.Time) *Session {
	s := &Session{id: id, busy: &q.active}
	s.mu.seen = now
	s.touchLocked(now)
	return s
}

// ID is the session's number.
func (s *Session) ID() uint64 { return s.id }

// Seen is when the session last heard from its sender.
func (s *Session) Seen() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.seen
}

// Verdict is what became of a notification.
type Verdict uint8

const (
	// Entered: it is in the queue.
	Entered Verdict = iota
	// Duplicate: it entered before, or its sender has ended it.
	Duplicate
	// NoRoom: the queue is full; it left no trace.
	NoRoom
	// PartFull: the queue has room, but not the part for its name; it left no
	// trace. Its sender is not told, and sends it again after its ack timeout.
	PartFull
	// TooLate: at protocol 1, so far behind that a copy cannot be told from
	// what never came.
	TooLate
	// OutOfRange: its number is beyond what its floor allows.
	OutOfRange
	// Ended: the session has ended meanwhile; it was dropped.
	Ended
)

// Take judges a notification of this session: it tests the window, tries the
// queue, and only then sets the bit. put enters it into the queue, or answers
// NoRoom or PartFull. At protocol
// 2 the header's ack is the sender's floor, which counts even if the frame is
// dropped.
func (s *Session) Take(h frame.Header, proto int, now time.Time, put func() Verdict) Verdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.ended {
		return Ended
	}
	s.touchLocked(now)
	if h.Seq == 0 || h.Seq > dedup.Last {
		return OutOfRange
	}
	if proto >= 2 {
		if h.Ack == 0 || h.Seq < h.Ack || h.Seq-h.Ack >= dedup.Size {
			return OutOfRange
		}
		s.resolveLocked(h.Ack)
	} else if s.mu.window.Late(h.Seq) {
		return TooLate
	}
	if s.mu.window.Seen(h.Seq) {
		return Duplicate
	}
	if v := put(); v != Entered {
		s.mu.dropped = s.mu.dropped || v == NoRoom
		return v
	}
	s.mu.window.Take(h.Seq)
	return Entered
}

// Floor takes in the floor of a request for room.
func (s *Session) Floor(floor uint64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.ended {
		return
	}
	s.touchLocked(now)
	s.resolveLocked(floor)
}

// resolveLocked counts everything below the sender's floor as resolved.
func (s *Session) resolveLocked(floor uint64) {
	if s.mu.window.Resolve(floor) {
		s.busy.floors.Add(1)
	}
}

// Ack makes the session's next acknowledgement. buf is used for its ranges. The
// first one after a drop for want of room grants none.
func (q *Queue[T]) Ack(s *Session, buf []frame.Range) (number uint64, a frame.Ack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Under the session's lock: a higher number never carries older room.
	frames, bytes := q.share(s, !s.mu.active, s.mu.dropped)
	s.mu.dropped = false
	s.mu.acks++
	a.Cumulative = s.mu.window.Cumulative()
	a.RoomSeq, a.RoomBytes = a.Cumulative+frames, bytes
	a.Ranges = s.mu.window.Ranges(buf[:0])
	return s.mu.acks, a
}

// Room is what a hello grants.
func (q *Queue[T]) Room(s *Session) (seq, bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	frames, bytes := q.share(s, !s.mu.active, false)
	return s.mu.window.Cumulative() + frames, bytes
}

func (s *Session) touchLocked(now time.Time) {
	s.mu.seen = now
	if !s.mu.active {
		s.mu.active = true
		s.busy.add(1)
	}
}

// Rest stops counting the session as active if it has been silent for a
// minute, or, with ended, in any case and for good.
func (s *Session) Rest(now time.Time, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.ended = s.mu.ended || ended
	if s.mu.active && (ended || now.Sub(s.mu.seen) >= idle) {
		s.mu.active = false
		s.busy.add(-1)
	}
}

// activity counts active sessions, and what floors did in all of them.
type activity struct {
	n      atomic.Int64
	floors atomic.Uint64
}

func (a *activity) add(d int64) { a.n.Add(d) }
func (a *activity) count() int  { return int(max(1, a.n.Load())) }
