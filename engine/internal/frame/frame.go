// Package frame encodes and decodes what engines say to each other over
// transports: the raw notification of protocol 0, and CtrlFrame v1, which
// carries notifications, acks and requests at protocols 1 and 2. Layouts are
// fixed byte for byte (docs/protocol.md shows them); integers are little
// endian. Everything here is pure and treats its input as hostile: decoding is
// all or nothing.
package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	// Magic starts every typed frame. A raw frame cannot begin with it: it
	// would need a name of more than a gigabyte.
	Magic = 0x434B434D
	// Version is the only version of the typed frame.
	Version = 1
	// HeaderSize is the size in bytes of a typed frame's header.
	HeaderSize = 44
	// RawOverhead is what the raw encoding adds to name and message.
	RawOverhead = 8
	// Overhead is what a typed notification adds to name and message.
	Overhead = HeaderSize + RawOverhead
)

// Type is a typed frame's kind. The numbers are the reference system's;
// Hawser sends those named here.
type Type uint8

// The kinds that Hawser sends.
const (
	CreditRequest Type = 3
	SessionClose  Type = 6
	CtrlAck       Type = 9
	NotifyCompat  Type = 10
)

const lastType = 10

// NeedsAck asks the receiver to acknowledge. It is the only flag.
const NeedsAck uint16 = 1

// Header is a typed frame's header without magic, version and payload length.
type Header struct {
	Type    Type
	Flags   uint16
	Session uint64
	// Epoch is 0 at protocol 1. At protocol 2 it is the low half of the
	// receiver's incarnation; in CtrlAck and SessionClose the answerer's own.
	Epoch uint64
	Seq   uint64
	// Ack is the cumulative ack in CtrlAck; in NotifyCompat and CreditRequest
	// at protocol 2 the sender's floor.
	Ack uint64
}

// Put writes the header and the payload's length into b, which must have room
// for HeaderSize bytes.
func (h Header) Put(b []byte, payload int) {
	_ = b[HeaderSize-1]
	le := binary.LittleEndian
	le.PutUint32(b[0:], Magic)
	b[4], b[5] = Version, byte(h.Type)
	le.PutUint16(b[6:], h.Flags)
	le.PutUint64(b[8:], h.Session)
	le.PutUint64(b[16:], h.Epoch)
	le.PutUint64(b[24:], h.Seq)
	le.PutUint64(b[32:], h.Ack)
	le.PutUint32(b[40:], uint32(payload))
}

// Append appends a whole typed frame.
func (h Header) Append(dst, payload []byte) []byte {
	var b [HeaderSize]byte
	h.Put(b[:], len(payload))
	return append(append(dst, b[:]...), payload...)
}

// IsTyped reports whether b begins like a typed frame; otherwise it is raw.
func IsTyped(b []byte) bool {
	return len(b) >= 4 && binary.LittleEndian.Uint32(b) == Magic
}

// Decoding errors.
var (
	ErrShort   = errors.New("frame: too short")
	ErrMagic   = errors.New("frame: not a typed frame")
	ErrVersion = errors.New("frame: unknown version")
	ErrType    = errors.New("frame: unknown type")
	ErrFlags   = errors.New("frame: unknown flags")
	ErrLength  = errors.New("frame: payload length differs from what is there")
)

// Decode takes a typed frame apart. The payload aliases b. All other rules,
// such as which sequence numbers a session allows, are the caller's.
func Decode(b []byte) (Header, []byte, error) {
	if len(b) < HeaderSize {
		return Header{}, nil, ErrShort
	}
	le := binary.LittleEndian
	switch {
	case !IsTyped(b):
		return Header{}, nil, ErrMagic
	case b[4] != Version:
		return Header{}, nil, ErrVersion
	case b[5] < 1 || b[5] > lastType:
		return Header{}, nil, ErrType
	case le.Uint16(b[6:])&^NeedsAck != 0:
		return Header{}, nil, ErrFlags
	case uint64(le.Uint32(b[40:])) != uint64(len(b)-HeaderSize):
		return Header{}, nil, ErrLength
	}
	return Header{
		Type: Type(b[5]), Flags: le.Uint16(b[6:]), Session: le.Uint64(b[8:]),
		Epoch: le.Uint64(b[16:]), Seq: le.Uint64(b[24:]), Ack: le.Uint64(b[32:]),
	}, b[HeaderSize:], nil
}

// AppendRaw appends the raw encoding of a notification.
func AppendRaw(dst []byte, name string, msg []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(name)))
	dst = append(dst, name...)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(msg)))
	return append(dst, msg...)
}

// DecodeRaw takes a raw notification apart; both slices alias b. With exact,
// as in a typed frame's payload, nothing may follow the message; without, what
// follows is tolerated.
func DecodeRaw(b []byte, exact bool) (name, msg []byte, err error) {
	name, rest, ok := cutField(b)
	if !ok {
		return nil, nil, fmt.Errorf("frame: name: %w", ErrLength)
	}
	msg, rest, ok = cutField(rest)
	if !ok || exact && len(rest) != 0 {
		return nil, nil, fmt.Errorf("frame: message: %w", ErrLength)
	}
	return name, msg, nil
}

func cutField(b []byte) (field, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := uint64(binary.LittleEndian.Uint32(b))
	if n > uint64(len(b)-4) {
		return nil, nil, false
	}
	return b[4 : 4+n : 4+n], b[4+n:], true
}
