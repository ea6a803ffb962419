package rpctransport

import (
	"fmt"
	"sync"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // what the codec leaves to others
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// packet is pb.Packet as the transport uses it. Its codec copies nothing that
// is large: protobuf's own would copy each message into a buffer of the next
// of gRPC's sizes, which above 32 KiB is 1 MiB, and clear the rest.
type packet struct {
	pack  *pack // nil: no frames
	taken uint64
	large uint64
	chunk []byte

	// frames is the pack of a packet that was received. It and chunk alias
	// whole, until release.
	frames []byte
	whole  mem.Buffer
}

// The fields of pb.Packet.
const (
	framesField protowire.Number = 1
	takenField  protowire.Number = 2
	largeField  protowire.Number = 3
	chunkField  protowire.Number = 4
)

// inlined is up to which size a packet is put together in one buffer.
const inlined = 1 << 10

// marshal returns the packet in pieces that alias it.
func (p *packet) marshal() mem.BufferSlice {
	size := len(p.chunk)
	if p.pack != nil {
		size += p.pack.size
	}
	room := 64
	if size <= inlined {
		room += size
	}
	var out mem.BufferSlice
	b := make([]byte, 0, room) // never grows
	piece := func(data []byte) {
		if size <= inlined {
			b = append(b, data...)
			return
		}
		out = append(out, mem.SliceBuffer(b), mem.SliceBuffer(data))
		b = b[len(b):]
	}
	if p.taken > 0 {
		b = protowire.AppendTag(b, takenField, protowire.VarintType)
		b = protowire.AppendVarint(b, p.taken)
	}
	if p.pack != nil {
		b = protowire.AppendTag(b, framesField, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(p.pack.size))
		for _, data := range p.pack.pieces {
			piece(data)
		}
	}
	if p.large > 0 {
		b = protowire.AppendTag(b, largeField, protowire.VarintType)
		b = protowire.AppendVarint(b, p.large)
	}
	if len(p.chunk) > 0 {
		b = protowire.AppendTag(b, chunkField, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(len(p.chunk)))
		piece(p.chunk)
	}
	return append(out, mem.SliceBuffer(b))
}

// parse reads a packet whose slices alias b. As in all of protobuf, a field
// that comes twice counts as it came last.
func (p *packet) parse(b []byte) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errMalformed("packet")
		}
		b = b[n:]
		switch {
		case number == framesField && kind == protowire.BytesType:
			p.frames, n = protowire.ConsumeBytes(b)
		case number == takenField && kind == protowire.VarintType:
			p.taken, n = protowire.ConsumeVarint(b)
		case number == largeField && kind == protowire.VarintType:
			p.large, n = protowire.ConsumeVarint(b)
		case number == chunkField && kind == protowire.BytesType:
			p.chunk, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return errMalformed("packet")
		}
		b = b[n:]
	}
	return nil
}

// release gives back the memory of a packet that was received.
func (p *packet) release() {
	if p.whole != nil {
		p.whole.Free()
	}
	*p = packet{}
}

// take reads a packet, which keeps the buffer.
func (p *packet) take(whole mem.Buffer) error {
	p.whole = whole
	return p.parse(whole.ReadOnlyData())
}

// codec is protobuf, with packets and segments of this package's own.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	switch p := v.(type) {
	case *packet:
		return p.marshal(), nil
	case *segment:
		return p.marshal(), nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(interface {
		release()
		take(whole mem.Buffer) error
	})
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	m.release()
	if n := data.Len(); n > maxMessage {
		return fmt.Errorf("a message of %d bytes", n)
	}
	return m.take(data.MaterializeToBuffer(buffers))
}

// pool holds buffers of some sizes. gRPC's own clears each buffer that it gives
// out, the part that is not used included.
type pool []sized

type sized struct {
	size int
	free *sync.Pool
}

func newPool(sizes ...int) (p pool) {
	for _, n := range sizes {
		p = append(p, sized{n, &sync.Pool{New: func() any {
			b := make([]byte, n)
			return &b
		}}})
	}
	return p
}

// Get implements mem.BufferPool.
func (p pool) Get(n int) *[]byte {
	for _, s := range p {
		if n <= s.size {
			b := s.free.Get().(*[]byte)
			*b = (*b)[:n]
			return b
		}
	}
	b := make([]byte, n)
	return &b
}

// Put implements mem.BufferPool.
func (p pool) Put(b *[]byte) {
	for _, s := range p {
		if cap(*b) == s.size {
			s.free.Put(b)
			return // b may be somebody else's already
		}
	}
}

// buffers holds received packets.
var buffers = newPool(1<<10, 16<<10, maxPacked+1<<10, chunkBytes+1<<10, packBytes+1<<10, maxMessage)
