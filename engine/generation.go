package engine

import "sync/atomic"

// generations numbers this engine's attempts to connect, each above all before
// it, to whichever peer. Transports remember the newest one of each peer's life
// and refuse older ones, and they do so for longer than the engine keeps anything
// of a peer that it does not need.
type generations struct{ last atomic.Uint64 }

// madeUp is what no engine counts to. A peer that says that it has seen such a
// generation is believed on that path, and moves no others.
const madeUp = 1 << 62

// next returns one above what was seen of a path.
func (g *generations) next(seen uint64) uint64 {
	for {
		last := g.last.Load()
		if seen >= madeUp && seen > last { // which is no attempt's of this engine
			return seen + 1
		}
		if n := max(last, seen) + 1; g.last.CompareAndSwap(last, n) {
			return n
		}
	}
}
