package link

import (
	"encoding/binary"
	"fmt"
)

// maxPayloadLimit bounds what a constructor accepts as the largest payload, so
// that sizes never overflow an int of 32 bits.
const maxPayloadLimit = 1 << 30

// clampPayload makes a usable limit of whatever a constructor was given.
func clampPayload(n int) int { return min(max(n, 0), maxPayloadLimit) }

// header is a record's header after validation.
type header struct {
	typ      Type
	size     int // of the payload
	files    int
	endpoint uint64
	id       uint64
}

// valid reports whether t is a known type.
func (t Type) valid() bool { return t >= Send && t <= PathsChanged }

// appendRecord appends the encoded record. The record was checked before.
func appendRecord(b []byte, r *Record) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(r.Payload)))
	b = append(b, byte(r.Type), 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(r.Files)))
	b = binary.LittleEndian.AppendUint64(b, r.Endpoint)
	b = binary.LittleEndian.AppendUint64(b, r.ID)
	return append(b, r.Payload...)
}

// decodeHeader reads and validates the header at the front of b, which holds
// at least HeaderSize bytes.
func decodeHeader(b []byte, maxPayload int) (header, error) {
	b = b[:HeaderSize]
	size := binary.LittleEndian.Uint32(b)
	h := header{
		typ:      Type(b[4]),
		files:    int(binary.LittleEndian.Uint16(b[6:])),
		endpoint: binary.LittleEndian.Uint64(b[8:]),
		id:       binary.LittleEndian.Uint64(b[16:]),
	}
	switch {
	case !h.typ.valid():
		return header{}, fmt.Errorf("%w: unknown record type %d", ErrViolation, h.typ)
	case b[5] != 0:
		return header{}, fmt.Errorf("%w: unknown flags %#02x", ErrViolation, b[5])
	case uint64(size) > uint64(maxPayload):
		return header{}, fmt.Errorf("%w: payload of %d bytes, at most %d are allowed", ErrViolation, size, maxPayload)
	case h.files != 0 && h.typ != Files:
		return header{}, fmt.Errorf("%w: record type %d with %d files", ErrViolation, h.typ, h.files)
	case h.files > MaxFiles:
		return header{}, fmt.Errorf("%w: %d files, at most %d are allowed", ErrViolation, h.files, MaxFiles)
	}
	h.size = int(size)
	return h, nil
}

// encodedSize is the size on the wire of the encoded record at the front of b,
// which this process encoded itself.
func encodedSize(b []byte) int {
	return HeaderSize + int(binary.LittleEndian.Uint32(b))
}
