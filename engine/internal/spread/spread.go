// Package spread decides over which way the next piece of a transfer goes, and
// how large it is. It is a pure function of what is known about the ways.
//
// Transports are taken in configured order: the first one that can carry at
// all gets everything, over all of its paths and lanes at once. The next one's
// turn comes only when none of its ways can be used now.
package spread

// State is how far a way is.
type State uint8

const (
	// Idle: it is not connected.
	Idle State = iota
	// Connecting: an endpoint is being made.
	Connecting
	// Up: it is connected.
	Up
)

// Way is one endpoint for memory, or the place of one. Ways are listed in
// order of preference: by transport, path, lane.
type Way struct {
	// Transport is the transport's place in the configured order.
	Transport int
	State     State
	// Able says that the way can carry the op: it reaches both kinds of
	// memory, and the provider's instance has published the region.
	Able bool
	// Shunned says that the way is not to be used now: it is paused, or failed
	// a moment ago.
	Shunned bool
	// Avoid says that the piece failed there last: it goes there again only
	// if there is nothing else.
	Avoid bool
	// MaxOp is the largest piece in bytes.
	MaxOp uint64
	// Ops and Bytes are under way, of at most MaxOps and MaxBytes.
	Ops, MaxOps     int
	Bytes, MaxBytes uint64
}

// room reports whether the way takes one more piece of size bytes; one of any
// allowed size always fits an idle one.
func (w *Way) room(size uint64) bool {
	return w.Ops < w.MaxOps && (w.Ops == 0 || w.Bytes+size <= w.MaxBytes)
}

// Size returns how many of left bytes the next piece has over a way, with
// pieces of at most chunk bytes.
func Size(w *Way, left, chunk uint64) uint64 { return min(left, chunk, w.MaxOp) }

// Choice is what to do now.
type Choice struct {
	// Send is the way that takes the next piece, or -1.
	Send int
	// Connect is a way to connect now, or -1: the only one there is, or one
	// more beside those that are busy.
	Connect int
	// Wait, where Send is -1, says that a way is full or being connected:
	// there is no need of another transport. Otherwise nothing can be done
	// until a way is no longer shunned, and if none is Able, ever.
	Wait bool
}

// Choose picks a way for a piece of an op with so many bytes left.
func Choose(ways []Way, left, chunk uint64) Choice {
	if c, ok := choose(ways, left, chunk, false); ok {
		return c
	}
	c, _ := choose(ways, left, chunk, true)
	return c
}

// choose is Choose with or without the ways to avoid, and reports whether
// there was anything.
func choose(ways []Way, left, chunk uint64, avoided bool) (Choice, bool) {
	for from := 0; from < len(ways); {
		to := from
		for to < len(ways) && ways[to].Transport == ways[from].Transport {
			to++
		}
		if c, ok := within(ways, from, to, left, chunk, avoided); ok {
			return c, true
		}
		from = to
	}
	return Choice{Send: -1, Connect: -1}, false
}

// within picks among one transport's ways: the one with the fewest bytes under
// way, and another one to connect if that has any.
func within(ways []Way, from, to int, left, chunk uint64, avoided bool) (Choice, bool) {
	c := Choice{Send: -1, Connect: -1}
	connecting := false
	for i := from; i < to; i++ {
		w := &ways[i]
		if !w.Able || w.Shunned || w.Avoid && !avoided {
			continue
		}
		switch w.State {
		case Idle:
			if c.Connect < 0 {
				c.Connect = i
			}
		case Connecting:
			connecting, c.Wait = true, true
		case Up:
			c.Wait = true
			if w.room(Size(w, left, chunk)) && (c.Send < 0 || w.Bytes < ways[c.Send].Bytes) {
				c.Send = i
			}
		}
	}
	usable := c.Wait || c.Connect >= 0
	// One is connected at a time, and another one only beside busy ones.
	if connecting || c.Send >= 0 && ways[c.Send].Ops == 0 {
		c.Connect = -1
	}
	c.Wait = c.Wait || c.Connect >= 0
	return c, usable
}

// Span is a range of an op that has still to be moved.
type Span struct {
	Offset, Length uint64
	// Tries is how often a piece of it has failed.
	Tries int
	// Avoid is the way on which it failed last, or 0.
	Avoid uint64
}

// Cut takes the next n bytes off a span. rest is empty, of no length, if they
// were all.
func (s Span) Cut(n uint64) (piece, rest Span) {
	piece, rest = s, s
	piece.Length = min(n, s.Length)
	rest.Offset += piece.Length
	rest.Length -= piece.Length
	return piece, rest
}
