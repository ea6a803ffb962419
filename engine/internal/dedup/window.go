// Package dedup recognises copies: one window per sender's session, shared by
// all transports. It is pure and bounded, and not safe for concurrent use.
package dedup

import "github.com/hawser-transport/hawser/engine/internal/frame"

// Size is the window's width in sequence numbers. A sender never has a span of
// unresolved numbers wider than this (docs/protocol.md), so a first copy
// cannot fall out of the window.
const Size = 4096

// Last is the highest number that a session may use. No honest sender comes
// near it; the bound keeps a hostile one away from where arithmetic wraps
// around.
const Last = 1<<63 - 1

// Window knows which numbers of a session were taken: all up to the cumulative
// mark, which is never more than Size below the high-water mark, and those with
// a bit.
type Window struct {
	cum  uint64 // everything up to here was taken, or resolved by the floor
	high uint64 // the highest number taken
	bits [Size / 64]uint64
}

// Cumulative is the highest number up to which everything is resolved.
func (w *Window) Cumulative() uint64 { return w.cum }

// Seen reports whether a copy of seq would be a duplicate, too late to tell, or
// beyond Last.
func (w *Window) Seen(seq uint64) bool {
	return seq <= w.cum || seq > Last || seq <= w.high && w.bit(seq)
}

// Take records that seq was taken. The caller has checked Seen.
func (w *Window) Take(seq uint64) {
	w.raiseHigh(seq)
	w.bits[seq%Size/64] |= 1 << (seq % 64)
	w.advance()
}

// Resolve counts every number below floor as resolved: the sender has ended
// them and will not ask again. It reports whether there were any that were not.
// A floor beyond Last counts for nothing.
func (w *Window) Resolve(floor uint64) (moved bool) {
	if floor == 0 || floor > Last || floor-1 <= w.cum {
		return false
	}
	w.cum = floor - 1
	w.advance()
	return true
}

// Late reports whether seq has fallen out of the window: it is not known
// whether it was taken.
func (w *Window) Late(seq uint64) bool { return w.high >= Size && seq <= w.high-Size }

// Ranges appends the runs beyond the cumulative mark to buf.
func (w *Window) Ranges(buf []frame.Range) []frame.Range {
	for seq := w.cum + 1; seq <= w.high; seq++ {
		if word := w.bits[seq%Size/64]; word>>(seq%64) == 0 {
			seq |= 63 // nothing more in this word
			continue
		}
		if !w.bit(seq) {
			continue
		}
		first := seq
		for seq < w.high && w.bit(seq+1) {
			seq++
		}
		buf = append(buf, frame.Range{First: first, Last: seq})
	}
	return buf
}

func (w *Window) bit(seq uint64) bool { return w.bits[seq%Size/64]>>(seq%64)&1 != 0 }

// raiseHigh moves the high-water mark, forgetting the bits of the numbers that
// fall out of the window.
func (w *Window) raiseHigh(seq uint64) {
	if seq <= w.high {
		return
	}
	if seq-w.high >= Size {
		w.bits = [Size / 64]uint64{}
	} else {
		for s := w.high + 1; s <= seq; s++ {
			if s%64 == 0 && seq-s >= 63 {
				w.bits[s%Size/64] = 0
				s += 63
				continue
			}
			w.bits[s%Size/64] &^= 1 << (s % 64)
		}
	}
	w.high = seq
	if w.high >= Size && w.cum < w.high-Size {
		w.cum = w.high - Size
	}
}

func (w *Window) advance() {
	for w.cum < w.high && w.bit(w.cum+1) {
		w.cum++
	}
}
