package outbox

import "container/heap"

// deadlines is the entries by deadline. Nearly all have the same time to live
// and come in the order of their deadlines: those are a list, which costs
// nothing to add to and to take from. The others are a heap.
type deadlines struct {
	head, tail *Entry
	others     deadlineHeap
	n          int
}

// inOrder as an entry's heap index says that it is in the list.
const inOrder = -1

func (d *deadlines) add(e *Entry) {
	d.n++
	if d.tail != nil && e.Deadline.Before(d.tail.Deadline) {
		heap.Push(&d.others, e)
		return
	}
	e.heap, e.earlier, e.later = inOrder, d.tail, nil
	if d.tail == nil {
		d.head = e
	} else {
		d.tail.later = e
	}
	d.tail = e
}

func (d *deadlines) remove(e *Entry) {
	d.n--
	if e.heap != inOrder {
		heap.Remove(&d.others, e.heap)
		return
	}
	if e.earlier == nil {
		d.head = e.later
	} else {
		e.earlier.later = e.later
	}
	if e.later == nil {
		d.tail = e.earlier
	} else {
		e.later.earlier = e.earlier
	}
	e.earlier, e.later = nil, nil
}

// first is the entry whose deadline comes first, or nil.
func (d *deadlines) first() *Entry {
	if len(d.others) > 0 && (d.head == nil || d.others[0].Deadline.Before(d.head.Deadline)) {
		return d.others[0]
	}
	return d.head
}

// deadlineHeap is for container/heap.
type deadlineHeap []*Entry

func (h deadlineHeap) Len() int           { return len(h) }
func (h deadlineHeap) Less(i, j int) bool { return h[i].Deadline.Before(h[j].Deadline) }
func (h deadlineHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heap, h[j].heap = i, j
}

// Push and Pop are container/heap's.
func (h *deadlineHeap) Push(x any) {
	e := x.(*Entry)
	e.heap = len(*h)
	*h = append(*h, e)
}

func (h *deadlineHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return e
}
