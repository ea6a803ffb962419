package remote

const (
	// firstSpan is how many ids a new endpoint can tell apart.
	firstSpan = 1024
	// maxSpan is how far ids may run ahead of the lowest one without an
	// outcome. A plugin that leaves one frame without an outcome for so long
	// gets no more, instead of all the host's memory.
	maxSpan = 1 << 20
)

// outstanding is the set of ids of frames that were sent and have no outcome
// yet: a window of bits over growing ids. The zero value is empty.
type outstanding struct {
	bits  []uint64 // a ring of a power of two of ids
	low   uint64   // no lower id is in the set
	next  uint64   // no id from here on is in the set
	count int
}

// add puts an id, higher than any before, into the set. It returns false if
// the id is too far ahead of the lowest one.
func (o *outstanding) add(id uint64) bool {
	if o.count == 0 {
		o.low = id
	}
	for id-o.low >= o.span() {
		if o.advance(); id-o.low < o.span() {
			break
		}
		if id-o.low >= maxSpan {
			return false
		}
		o.grow()
	}
	o.bits[o.word(id)] |= 1 << (id % 64)
	o.next = id + 1
	o.count++
	return true
}

// take removes the id, and reports whether it was there.
func (o *outstanding) take(id uint64) bool {
	if id < o.low || id >= o.next {
		return false
	}
	w, bit := o.word(id), uint64(1)<<(id%64)
	if o.bits[w]&bit == 0 {
		return false
	}
	o.bits[w] &^= bit
	o.count--
	return true
}

// rewind removes the highest ids, from id on, which can then be added again.
func (o *outstanding) rewind(id uint64) {
	for ; o.next > id; o.next-- {
		o.take(o.next - 1)
	}
}

func (o *outstanding) span() uint64         { return uint64(len(o.bits)) * 64 }
func (o *outstanding) word(id uint64) int   { return int(id / 64 % uint64(len(o.bits))) }
func (o *outstanding) holds(id uint64) bool { return o.bits[o.word(id)]&(1<<(id%64)) != 0 }

// advance moves low up to the lowest id in the set.
func (o *outstanding) advance() {
	for o.low < o.next && !o.holds(o.low) {
		o.low++
	}
}

func (o *outstanding) grow() {
	if len(o.bits) == 0 {
		o.bits = make([]uint64, firstSpan/64)
		return
	}
	old := *o
	o.bits = make([]uint64, 2*len(old.bits))
	for id := old.low; id < old.next; id++ {
		if old.holds(id) {
			o.bits[o.word(id)] |= 1 << (id % 64)
		}
	}
}
