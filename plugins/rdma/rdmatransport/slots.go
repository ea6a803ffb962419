package rdmatransport

import (
	"errors"
	"sync"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// slotClasses are the sizes of send buffers, and how many are made at a time.
var slotClasses = [...]struct{ size, count int }{{1 << 10, 64}, {8 << 10, 16}, {maxFrame, 8}}

// slot is a send buffer, from the moment that a frame is taken until its
// completion names it, or an op with its part of a region. It is on one list at
// a time.
type slot struct {
	next  *slot
	id    uint32
	class int
	mem   []byte // its whole size
	addr  uint64
	lkey  uint32
	move  *move  // nil for a frame
	frame uint64 // the frame's id
	size  int    // and length
}

// slotList is a queue of slots.
type slotList struct {
	head, tail *slot
	n          int
}

func (l *slotList) push(s *slot) {
	s.next = nil
	if l.tail == nil {
		l.head = s
	} else {
		l.tail.next = s
	}
	l.tail = s
	l.n++
}

// join moves all of m's slots behind l's.
func (l *slotList) join(m *slotList) {
	if m.head == nil {
		return
	}
	if l.tail == nil {
		l.head = m.head
	} else {
		l.tail.next = m.head
	}
	l.tail = m.tail
	l.n += m.n
	*m = slotList{}
}

func (l *slotList) pop() *slot {
	s := l.head
	if s == nil {
		return nil
	}
	l.head = s.next
	if l.head == nil {
		l.tail = nil
	}
	s.next = nil
	l.n--
	return s
}

// take removes the slot of that id, which is the first one unless the device
// broke the order.
func (l *slotList) take(id uint32) *slot {
	if l.head != nil && l.head.id == id {
		return l.pop()
	}
	for p := l.head; p != nil && p.next != nil; p = p.next {
		if s := p.next; s.id == id {
			p.next = s.next
			if l.tail == s {
				l.tail = p
			}
			s.next = nil
			l.n--
			return s
		}
	}
	return nil
}

// slots are a device's send buffers: areas that are made when they are needed,
// up to a bound, and kept.
type slots struct {
	pd    verbs.PD
	most  int         // bytes
	short func(error) // told when the device or the limits allow no more

	mu    sync.Mutex
	free  [len(slotClasses)]*slot
	areas []*area
	bytes int
	made  uint32
	out   int
}

// get returns a slot for n bytes, or nil if there is no room now.
func (p *slots) get(n int) *slot {
	class := 0
	for slotClasses[class].size < n {
		class++
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free[class] == nil {
		p.growLocked(class)
	}
	s := p.free[class]
	if s == nil {
		return nil
	}
	p.free[class] = s.next
	p.out++
	s.next, s.size = nil, n
	return s
}

func (p *slots) put(s *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.putLocked(s)
}

func (p *slots) putLocked(s *slot) {
	s.next = p.free[s.class]
	p.free[s.class] = s
	p.out--
}

// putAll empties the list.
func (p *slots) putAll(l *slotList) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := l.pop(); s != nil; s = l.pop() {
		p.putLocked(s)
	}
}

func (p *slots) growLocked(class int) {
	c := slotClasses[class]
	if p.bytes+c.size*c.count > p.most {
		return
	}
	a, err := newArea(p.pd, c.size*c.count)
	if err != nil {
		p.short(err)
		return
	}
	p.areas = append(p.areas, a)
	p.bytes += len(a.mem)
	made := make([]slot, c.count)
	for i := range made {
		at := i * c.size
		made[i] = slot{
			id: p.made, class: class, mem: a.mem[at : at+c.size : at+c.size],
			addr: a.address(at), lkey: a.mr.LKey(), next: p.free[class],
		}
		p.made++
		p.free[class] = &made[i]
	}
}

// close gives the memory back. No slot may be out.
func (p *slots) close() error {
	var errs []error
	for _, a := range p.areas {
		errs = append(errs, a.close())
	}
	p.areas = nil
	return errors.Join(errs...)
}
