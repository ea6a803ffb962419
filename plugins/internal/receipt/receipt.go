// Package receipt counts what the peer's end of a stream has taken, on both
// sides: Outstanding turns a peer's receipts into completions, Owed decides
// when to send one. A receipt is the cumulative number of frames taken since
// the endpoint began, so a later one says all that an earlier one did.
//
// The types hold no lock; their owner has one.
package receipt

import "github.com/hawser-transport/hawser/sdk"

// Outstanding is the queue of frames that have no receipt yet. Its zero value
// is empty.
type Outstanding struct {
	// ids is a ring whose length is a power of two.
	ids   []uint64
	head  int
	n     int
	taken uint64
}

// Push adds a frame behind the others.
func (o *Outstanding) Push(id uint64) {
	if o.n == len(o.ids) {
		o.grow()
	}
	o.ids[(o.head+o.n)&(len(o.ids)-1)] = id
	o.n++
}

// Len is how many frames have no receipt.
func (o *Outstanding) Len() int { return o.n }

// Receipt takes a peer's count and appends a completion for each frame that it
// newly covers. A count that goes back or beyond what was sent is a broken
// peer.
func (o *Outstanding) Receipt(count uint64, cs []sdk.Completion) ([]sdk.Completion, error) {
	if count < o.taken || count-o.taken > uint64(o.n) {
		return cs, sdk.Errorf(sdk.Unavailable, "peer broke the protocol: receipt for %d frames after %d, with %d outstanding", count, o.taken, o.n)
	}
	for ; o.taken < count; o.taken++ {
		cs = append(cs, sdk.Completion{ID: o.ids[o.head], Outcome: sdk.Done})
		o.head = (o.head + 1) & (len(o.ids) - 1)
		o.n--
	}
	return cs, nil
}

// Withdraw removes the last k frames, which never left, and appends a
// completion for each, oldest first.
func (o *Outstanding) Withdraw(k int, code sdk.Code, cs []sdk.Completion) []sdk.Completion {
	k = min(k, o.n)
	for i := o.n - k; i < o.n; i++ {
		cs = append(cs, sdk.Completion{ID: o.ids[(o.head+i)&(len(o.ids)-1)], Outcome: sdk.NotPosted, Code: code})
	}
	o.n -= k
	return cs
}

func (o *Outstanding) grow() {
	ids := make([]uint64, max(16, 2*len(o.ids)))
	for i := range o.n {
		ids[i] = o.ids[(o.head+i)&(len(o.ids)-1)]
	}
	o.ids, o.head = ids, 0
}

// A receipt that finds no company goes out on its own once it covers this
// much: often enough that the sender's window never runs dry, seldom enough
// that receipts cost nothing.
const (
	dueFrames = 16
	dueBytes  = 64 << 10
)

// Owed counts the frames that were taken and not yet told to the peer. Its
// zero value owes nothing.
type Owed struct {
	taken  uint64
	frames int
	bytes  int
}

// Add counts frames that the handler has taken.
func (o *Owed) Add(frames, bytes int) {
	o.taken += uint64(frames)
	o.frames += frames
	o.bytes += bytes
}

// Any says whether anything is owed.
func (o *Owed) Any() bool { return o.frames > 0 }

// Due says whether the receipt should go out without waiting for company.
func (o *Owed) Due() bool { return o.frames >= dueFrames || o.bytes >= dueBytes }

// Take returns the count for a receipt that is about to be written.
func (o *Owed) Take() uint64 {
	o.frames, o.bytes = 0, 0
	return o.taken
}
