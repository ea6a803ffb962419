package tcptransport

import (
	"encoding/binary"

	"github.com/hawser-transport/hawser/sdk"
)

// After the handshake a connection carries records both ways. A record is a
// little-endian word, the payload's length in its low 24 bits and the kind in
// its high 8, and the payload.
const (
	headerLen = 4
	maxFrame  = 64 << 10
	maxRecord = headerLen + maxFrame

	// kindFrame's payload is one frame.
	kindFrame = 1
	// kindReceipt's payload is a 64-bit cumulative count of frames taken.
	kindReceipt      = 2
	receiptLen       = 8
	receiptRecordLen = headerLen + receiptLen
)

func appendFrame(b, data []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(data))|kindFrame<<24)
	return append(b, data...)
}

func appendReceipt(b []byte, count uint64) []byte {
	b = binary.LittleEndian.AppendUint32(b, receiptLen|kindReceipt<<24)
	return binary.LittleEndian.AppendUint64(b, count)
}

// parseHeader splits a header and checks the length against the kind, so that
// rubbish is noticed before anybody waits for its payload.
func parseHeader(b []byte) (kind byte, length int, err error) {
	word := binary.LittleEndian.Uint32(b)
	kind, length = byte(word>>24), int(word&0xffffff)
	switch {
	case kind == kindFrame && length <= maxFrame:
	case kind == kindReceipt && length == receiptLen:
	default:
		return 0, 0, sdk.Errorf(sdk.Unavailable, "peer broke the protocol: record of kind %d with %d bytes", kind, length)
	}
	return kind, length, nil
}

// batch is what one read brought.
type batch struct {
	frames [][]byte
	bytes  int
	// count is the newest receipt, if receipted.
	count     uint64
	receipted bool
}

// parse takes all whole records off b, with frames that alias it, and returns
// how many bytes they were.
func (p *batch) parse(b []byte) (used int, err error) {
	p.frames, p.bytes, p.receipted = p.frames[:0], 0, false
	for len(b)-used >= headerLen {
		kind, length, err := parseHeader(b[used:])
		if err != nil {
			return used, err
		}
		end := used + headerLen + length
		if end > len(b) {
			break
		}
		payload := b[used+headerLen : end : end]
		switch kind {
		case kindFrame:
			p.frames = append(p.frames, payload)
			p.bytes += length
		case kindReceipt:
			p.count, p.receipted = binary.LittleEndian.Uint64(payload), true
		}
		used = end
	}
	return used, nil
}

// unstarted counts the frames of which no byte has left, in whole records of
// which the first written bytes have.
func unstarted(b []byte, written int) (frames int) {
	for pos := 0; pos+headerLen <= len(b); {
		kind, length, err := parseHeader(b[pos:])
		if err != nil {
			return frames // not ours: what the writer encodes is valid
		}
		if kind == kindFrame && pos >= written {
			frames++
		}
		pos += headerLen + length
	}
	return frames
}
