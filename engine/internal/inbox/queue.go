// Package inbox is the receiver's half of the notification protocol
// (docs/protocol.md): the bounded queue that all transports feed, and per
// sender the session that recognises copies and says how much room there is.
package inbox

import (
	"context"
	"slices"
	"sync"

	"github.com/hawser-transport/hawser/engine/internal/outbox"
)

// Queue is a bounded first-in first-out queue of items with a size in bytes. It
// may be divided into parts, each with a bound of its own beside that of all
// together. It is safe for concurrent use.
type Queue[T any] struct {
	frames, bytes int // bounds
	onRoom        func(*Session)
	rest          *Part[T]   // what belongs to no other part
	parts         []*Part[T] // all, rest first; constant once items come

	mu struct {
		sync.Mutex
		n      int
		bytes  int
		hungry []*Session // told of little room, in order
		closed bool
		// waiting is how many wait in AwaitRoom, and turn whose part is next.
		waiting, turn int
	}
	active activity
}

type slot[T any] struct {
	item T
	size int
}

// NewQueue returns a queue for so many frames and bytes. onRoom is called,
// without a lock held, for each session that was told of little or no room
// once there is more.
func NewQueue[T any](frames, bytes int, onRoom func(*Session)) *Queue[T] {
	q := &Queue[T]{frames: frames, bytes: bytes, onRoom: onRoom}
	q.rest = q.NewPart(frames, bytes)
	return q
}

// Rest is the part for what belongs to no other.
func (q *Queue[T]) Rest() *Part[T] { return q.rest }

// Put adds an item to the rest, and reports false if there is no room.
func (q *Queue[T]) Put(item T, size int) bool { return q.rest.Put(item, size) == Entered }

// Get returns the rest's oldest item. See [Part.Get].
func (q *Queue[T]) Get(ctx context.Context) (T, error) { return q.rest.Get(ctx) }

// wake has every part's reader look.
func (q *Queue[T]) wake() {
	for _, p := range q.parts {
		p.wake()
	}
}

func (q *Queue[T]) feed(fed []*Session) {
	for _, s := range fed {
		q.onRoom(s)
	}
}

// A session that hears of less than lowFrames and lowBytes of free room is
// told when twice as much is free again, so that a slow reader costs an ack
// per many frames and not one per frame.
func (q *Queue[T]) lowFrames() int { return max(1, min(q.frames/4, outbox.Span/2)) }
func (q *Queue[T]) lowBytes() int  { return max(1, q.bytes/4) }

// fedLocked returns the hungry sessions that can be told of room now, oldest
// first, a bounded number per call while more calls are to come.
func (q *Queue[T]) fedLocked() []*Session {
	if len(q.mu.hungry) == 0 {
		return nil
	}
	if !q.plentyLocked() {
		return nil
	}
	n := len(q.mu.hungry)
	if q.mu.n > 0 {
		n = min(n, 64)
	}
	fed := append([]*Session(nil), q.mu.hungry[:n]...)
	q.mu.hungry = slices.Delete(q.mu.hungry, 0, n)
	for _, s := range fed {
		s.hungry.Store(false)
	}
	return fed
}

// plentyLocked reports whether a hungry session is worth an ack.
func (q *Queue[T]) plentyLocked() bool {
	return q.mu.n == 0 || q.frames-q.mu.n >= 2*q.lowFrames() && q.bytes-q.mu.bytes >= 2*q.lowBytes()
}

// share is how many frames and bytes one session may count on: the free room,
// at most its part among the active sessions, at least one frame while there
// is a free place; an idle session has one frame's share. To a session that
// something was dropped of it says that there is none, which is how its sender
// learns of that, and has the room, if there is any, told right after.
func (q *Queue[T]) share(s *Session, idle, dropped bool) (frames, bytes uint64) {
	active := q.active.count()
	q.mu.Lock()
	defer q.mu.Unlock()
	free, freeBytes := q.frames-q.mu.n, q.bytes-q.mu.bytes
	if (dropped || free < q.lowFrames() || freeBytes < q.lowBytes()) && s.hungry.CompareAndSwap(false, true) {
		q.mu.hungry = append(q.mu.hungry, s)
	}
	switch {
	case dropped && q.plentyLocked():
		q.wake()
		return 0, 0
	case dropped || free <= 0 || freeBytes <= 0:
		return 0, 0
	case idle:
		return 1, 1
	}
	return uint64(min(free, max(1, q.frames/active))), uint64(min(freeBytes, max(1, q.bytes/active)))
}

// callLocked wakes one of those that wait for room, if there is any, the parts
// in turn. It is called when a place was freed, and again when one was taken
// and there is room for more: whoever was woken takes at least one.
func (q *Queue[T]) callLocked() {
	if q.mu.waiting == 0 {
		return
	}
	for range q.parts {
		p := q.parts[q.mu.turn]
		q.mu.turn = (q.mu.turn + 1) % len(q.parts)
		if len(p.waiting) > 0 && p.roomLocked() == Entered {
			close(p.waiting[0])
			p.waiting = slices.Delete(p.waiting, 0, 1)
			q.mu.waiting--
			return
		}
	}
}

// AwaitRoom waits until something may fit the part. Whoever it returns true to
// tries to put something, or others wait in vain. It reports false once the
// queue is closed.
func (p *Part[T]) AwaitRoom() bool {
	q := p.q
	q.mu.Lock()
	closed, room := q.mu.closed, p.roomLocked() == Entered
	if closed || room {
		q.mu.Unlock()
		return !closed
	}
	called := make(chan struct{})
	p.waiting = append(p.waiting, called)
	q.mu.waiting++
	q.mu.Unlock()
	<-called
	return true
}

// Forget drops a session that has ended from those that wait for room, for
// good.
func (q *Queue[T]) Forget(s *Session) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s.hungry.Swap(true) {
		q.mu.hungry = slices.DeleteFunc(q.mu.hungry, func(h *Session) bool { return h == s })
	}
}

// Len is how many items wait in all parts, and their bytes.
func (q *Queue[T]) Len() (frames, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.n, q.mu.bytes
}

// Floors is how often a sender's floor passed numbers that never entered.
func (q *Queue[T]) Floors() uint64 { return q.active.floors.Load() }

// Close stops Put; Get hands out what is left, then fails.
func (q *Queue[T]) Close() {
	q.mu.Lock()
	q.mu.closed = true
	for _, p := range q.parts {
		for _, called := range p.waiting {
			close(called)
		}
		p.waiting = nil
	}
	q.mu.waiting = 0
	q.mu.Unlock()
	q.wake()
}
