package frame

import (
	"encoding/binary"
	"errors"
)

// MaxRanges bounds the selective part of an ack: every second number of a
// window of 4096.
const MaxRanges = 2048

const (
	ackFixed = 20
	ackRange = 4
)

// Range is a run of sequence numbers that entered the receiver's queue.
type Range struct{ First, Last uint64 }

// Ack is the payload of a CtrlAck at protocol 2, together with the header's
// cumulative ack:
//
//	u64 room: highest sequence number | u64 room: bytes | u16 ranges | u16 zero
//	then per range: u16 first - cumulative | u16 count
//
// Ranges are in ascending order, beyond the cumulative ack, not adjacent.
type Ack struct {
	Cumulative uint64
	RoomSeq    uint64
	RoomBytes  uint64
	Ranges     []Range
}

// ErrAck is a malformed ack payload.
var ErrAck = errors.New("frame: malformed ack")

// AppendPayload appends the ack's payload. Ranges beyond MaxRanges, or too far
// from the cumulative ack for the encoding, are left out: an ack may name
// less than there is.
func (a Ack) AppendPayload(dst []byte) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, a.RoomSeq)
	dst = le.AppendUint64(dst, a.RoomBytes)
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	n := 0
	for _, r := range a.Ranges {
		offset, count := r.First-a.Cumulative, r.Last-r.First+1
		if n == MaxRanges || offset > 0xffff || count > 0xffff {
			break
		}
		dst = le.AppendUint16(dst, uint16(offset))
		dst = le.AppendUint16(dst, uint16(count))
		n++
	}
	le.PutUint16(dst[at:], uint16(n))
	return dst
}

// DecodeAck takes an ack's payload apart, appending ranges to buf.
func DecodeAck(cumulative uint64, b []byte, buf []Range) (Ack, error) {
	if len(b) < ackFixed {
		return Ack{}, ErrAck
	}
	le := binary.LittleEndian
	n := int(le.Uint16(b[16:]))
	if n > MaxRanges || le.Uint16(b[18:]) != 0 || len(b) != ackFixed+n*ackRange {
		return Ack{}, ErrAck
	}
	a := Ack{Cumulative: cumulative, RoomSeq: le.Uint64(b), RoomBytes: le.Uint64(b[8:]), Ranges: buf[:0]}
	end := cumulative // the last number named so far
	for b = b[ackFixed:]; len(b) > 0; b = b[ackRange:] {
		first := cumulative + uint64(le.Uint16(b))
		count := uint64(le.Uint16(b[2:]))
		// Ascending with a gap, and so never the number after the cumulative
		// ack, which would then itself be cumulative; nothing wraps around.
		if count == 0 || first <= end || first-end == 1 || first+count-1 < first {
			return Ack{}, ErrAck
		}
		end = first + count - 1
		a.Ranges = append(a.Ranges, Range{First: first, Last: end})
	}
	return a, nil
}
