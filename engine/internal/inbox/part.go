package inbox

import (
	"context"

	"github.com/hawser-transport/hawser/sdk"
)

// Part is a part of a [Queue] with its own bound and its own readers. The
// queue's lock guards it.
type Part[T any] struct {
	q             *Queue[T]
	frames, limit int           // in frames and bytes
	ready         chan struct{} // a token: something may be there

	waiting []chan struct{} // for room, in the order in which they came

	ring  []slot[T]
	head  int
	n     int
	bytes int
}

// NewPart adds a part for so many frames and bytes. It must not be called once
// items come.
func (q *Queue[T]) NewPart(frames, bytes int) *Part[T] {
	p := &Part[T]{q: q, frames: frames, limit: bytes, ready: make(chan struct{}, 1), ring: make([]slot[T], 16)}
	q.parts = append(q.parts, p)
	return p
}

// Put adds an item. It answers Entered, NoRoom if the whole queue is full or
// closed, and PartFull if only the part is. A frame of any size is admitted
// while the bytes already there are below the bound.
func (p *Part[T]) Put(item T, size int) Verdict {
	q := p.q
	q.mu.Lock()
	if v := p.roomLocked(); v != Entered {
		q.mu.Unlock()
		return v
	}
	if p.n == len(p.ring) {
		p.growLocked()
	}
	p.ring[(p.head+p.n)&(len(p.ring)-1)] = slot[T]{item, size}
	p.n++
	p.bytes += size
	q.mu.n++
	q.mu.bytes += size
	first := p.n == 1
	q.callLocked()
	q.mu.Unlock()
	if first {
		p.wake()
	}
	return Entered
}

// roomLocked says what would become of an item.
func (p *Part[T]) roomLocked() Verdict {
	q := p.q
	switch {
	case q.mu.closed || q.mu.n >= q.frames || q.mu.bytes >= q.bytes:
		return NoRoom
	case p.n >= p.frames || p.bytes >= p.limit:
		return PartFull
	}
	return Entered
}

func (p *Part[T]) growLocked() {
	ring := make([]slot[T], 2*len(p.ring))
	n := copy(ring, p.ring[p.head:])
	copy(ring[n:], p.ring[:p.head])
	p.ring, p.head = ring, 0
}

func (p *Part[T]) wake() {
	select {
	case p.ready <- struct{}{}:
	default:
	}
}

// Get returns the oldest item, waiting for one until ctx ends or the queue is
// closed and the part empty, which is [sdk.Closed].
func (p *Part[T]) Get(ctx context.Context) (T, error) {
	for {
		item, ok, closed := p.tryGet()
		if ok {
			return item, nil
		}
		if closed {
			p.wake() // the next one waiting
			return item, sdk.Errorf(sdk.Closed, "receive: the engine is closed")
		}
		select {
		case <-p.ready:
		case <-ctx.Done():
			return item, context.Cause(ctx)
		}
	}
}

func (p *Part[T]) tryGet() (item T, ok, closed bool) {
	q := p.q
	q.mu.Lock()
	if p.n == 0 {
		closed = q.mu.closed
		fed := q.fedLocked() // dropped, and only said so after the queue was emptied
		q.mu.Unlock()
		q.feed(fed)
		return item, false, closed
	}
	s := &p.ring[p.head]
	item = s.item
	p.bytes -= s.size
	q.mu.bytes -= s.size
	*s = slot[T]{}
	p.head = (p.head + 1) & (len(p.ring) - 1)
	p.n--
	q.mu.n--
	q.callLocked()
	more := p.n > 0
	fed := q.fedLocked()
	q.mu.Unlock()
	if more {
		p.wake()
	}
	q.feed(fed)
	return item, true, false
}

// Len is how many items wait in the part.
func (p *Part[T]) Len() int {
	n, _ := p.Size()
	return n
}

// Size is how many items wait in the part, and their bytes.
func (p *Part[T]) Size() (frames, bytes int) {
	p.q.mu.Lock()
	defer p.q.mu.Unlock()
	return p.n, p.bytes
}

// Bounds are the part's.
func (p *Part[T]) Bounds() (frames, bytes int) { return p.frames, p.limit }
