package rdmatransport

// A control message is an empty SEND with immediate data: its kind in the top
// four bits, and for a grant a number below.
const (
	// ready: the connecting side's first message. The accepting side's device
	// could have sent before, and would have met a queue pair that is not there
	// yet. Who waits for a grant sends it again: with nothing posted nothing
	// could fail, and the peer's queue pair may be gone.
	ready uint32 = 1
	// grant: up to how many frames may be sent since the endpoint began, in
	// the low bits of the count. It only grows.
	grant uint32 = 2
	// bye: the sender ends; nothing follows.
	bye uint32 = 3

	kindShift = 28
	countMask = 1<<kindShift - 1

	// controls is how many control messages of an endpoint may be posted: one
	// of each kind.
	controls = 3
)

// A peer's share of a device's receive buffers.
const (
	minShare = 4
	maxShare = 256
)

// share is how many receive buffers one of several endpoints may fill. One
// more than there are is counted, so that even a single peer cannot fill all
// of them.
func share(depth, endpoints int) int {
	return min(max(depth/(endpoints+1), minShare), maxShare)
}

// opening is how many frames a new endpoint's peer may send before the first
// grant. Grants cannot be taken back, so that it is less than the share: the
// rest comes with the first frames.
func opening(depth, endpoints int) int { return max(share(depth, endpoints)/4, minShare) }

// widen returns the count whose low bits a grant carries, given the one before
// it; ok is false if it goes back or beyond what any peer grants.
func widen(before uint64, low uint32) (count uint64, ok bool) {
	step := (low - uint32(before)) & countMask
	return before + uint64(step), step <= maxShare
}

// Work-request ids. A receive's is its buffer's index. A send's carries the
// endpoint's serial number, since the queue pair's is used again, and the slot
// or the kind of control message.
const (
	recvID    = 1 << 63
	controlID = 1 << 31
	maxSerial = 1<<31 - 1
)

func sendID(serial, slot uint32) uint64    { return uint64(serial)<<32 | uint64(slot) }
func controlOf(serial, kind uint32) uint64 { return uint64(serial)<<32 | controlID | uint64(kind) }

func serialOf(id uint64) uint32 { return uint32(id >> 32) }
