package sdk

import (
	"encoding/binary"
	"fmt"
)

// Op is one read or write between a region here and a peer's. It is the Data of
// a Frame of an endpoint for memory, as [Op.Append] writes it.
type Op struct {
	Kind OpKind
	// Local is the region here, Remote the peer's; offsets and Length are in
	// bytes, Length at least 1. Where Remote is zero (older peers),
	// RemoteBase is the region's base.
	Local        Capability
	LocalOffset  uint64
	Remote       Capability
	RemoteBase   uint64
	RemoteOffset uint64
	Length       uint64
	// Event is an interprocess event (cuIpcGetEventHandle) of the
	// application's that the op has to wait for, or nil.
	Event *[EventBytes]byte
}

// EventBytes is the size in bytes of an interprocess event's handle.
const EventBytes = 64

// OpKind is what an op does. Numbers are frozen.
type OpKind uint8

const (
	// Read copies from the peer's region to the one here.
	Read OpKind = 1
	// Write copies from the region here to the peer's.
	Write OpKind = 2
	// Flush is Done once every write that was Done before on the endpoint is
	// visible to the peer's processor. It names the remote range that was
	// written last, and no local one. Only transports with
	// [MoveLimits.NeedsFlush] get it.
	Flush OpKind = 3
)

// String returns the kind's name.
func (k OpKind) String() string {
	switch k {
	case Read:
		return "read"
	case Write:
		return "write"
	case Flush:
		return "flush"
	default:
		return "op-kind-" + itoa(int(k))
	}
}

// opBytes is the size of an op without an event. On the wire, little endian:
//
//	u8 kind | u8 flags (1 event) | 6 zero bytes | 16 local | u64 local offset |
//	16 remote | u64 remote base | u64 remote offset | u64 length | event (64, if there is one)
const opBytes = 8 + 16 + 8 + 16 + 8 + 8 + 8

const opEvent = 1

// MaxOpFrame is the size in bytes of the largest op's bytes: the limit of what
// Send takes on an endpoint for memory, whatever [Limits.MaxFrame] says.
const MaxOpFrame = opBytes + EventBytes

// Append appends the op's bytes.
func (o *Op) Append(b []byte) []byte {
	flags := byte(0)
	if o.Event != nil {
		flags |= opEvent
	}
	b = append(b, byte(o.Kind), flags, 0, 0, 0, 0, 0, 0)
	b = append(b, o.Local[:]...)
	b = binary.LittleEndian.AppendUint64(b, o.LocalOffset)
	b = append(b, o.Remote[:]...)
	b = binary.LittleEndian.AppendUint64(b, o.RemoteBase)
	b = binary.LittleEndian.AppendUint64(b, o.RemoteOffset)
	b = binary.LittleEndian.AppendUint64(b, o.Length)
	if o.Event != nil {
		b = append(b, o.Event[:]...)
	}
	return b
}

// ParseOp reads an op. What it returns is well-formed: a known kind, a length
// of at least 1, ends that do not wrap. Whether the ranges are within their
// regions is for the transport to check. It allocates only for an event.
func ParseOp(b []byte) (Op, error) {
	if len(b) < opBytes {
		return Op{}, fmt.Errorf("op of %d bytes, it has at least %d", len(b), opBytes)
	}
	o := Op{
		Kind:  OpKind(b[0]),
		Local: Capability(b[8:24]), LocalOffset: binary.LittleEndian.Uint64(b[24:]),
		Remote: Capability(b[32:48]), RemoteBase: binary.LittleEndian.Uint64(b[48:]),
		RemoteOffset: binary.LittleEndian.Uint64(b[56:]), Length: binary.LittleEndian.Uint64(b[64:]),
	}
	size := opBytes
	if b[1]&opEvent != 0 {
		size += EventBytes
	}
	switch {
	case o.Kind < Read || o.Kind > Flush:
		return Op{}, fmt.Errorf("op of kind %d, there are 1 (read), 2 (write) and 3 (flush)", b[0])
	case b[1]&^opEvent != 0 || [6]byte(b[2:8]) != [6]byte{}:
		return Op{}, fmt.Errorf("op with unknown flags %x", b[1:8])
	case len(b) != size:
		return Op{}, fmt.Errorf("op of %d bytes, it says %d", len(b), size)
	case o.Length == 0:
		return Op{}, fmt.Errorf("op of no length")
	case o.LocalOffset+o.Length < o.Length || o.RemoteOffset+o.Length < o.Length || o.RemoteBase+o.RemoteOffset < o.RemoteBase:
		return Op{}, fmt.Errorf("op whose range wraps: %d bytes at %d here and %d there", o.Length, o.LocalOffset, o.RemoteOffset)
	}
	if size > opBytes {
		event := [EventBytes]byte(b[opBytes:])
		o.Event = &event
	}
	return o, nil
}
