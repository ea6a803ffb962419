package rpctransport

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// segmentBytes is how many bytes a segment carries at most, dataField its only
// field.
const (
	segmentBytes                  = packBytes
	dataField    protowire.Number = 1
)

// pipe is a gRPC stream as a stream of bytes. gRPC keeps what it is given for
// longer than SendMsg takes, so what is written is copied: nobody but the
// caller touches memory that is not this package's.
type pipe struct {
	s      stream
	hangUp func()
	in     segment
	rest   []byte // of in
}

func newPipe(s stream, hangUp func()) *pipe { return &pipe{s: s, hangUp: hangUp} }

// Read implements transfer.Conn.
func (p *pipe) Read(b []byte) (int, error) {
	for len(p.rest) == 0 {
		if err := p.s.RecvMsg(&p.in); err != nil {
			p.in.release()
			return 0, err
		}
		p.rest = p.in.data
	}
	n := copy(b, p.rest)
	if p.rest = p.rest[n:]; len(p.rest) == 0 {
		p.in.release()
	}
	return n, nil
}

// Write implements transfer.Conn.
func (p *pipe) Write(b []byte) (n int, err error) {
	for n < len(b) {
		out := segment{data: b[n:min(n+segmentBytes, len(b))]}
		if err := p.s.SendMsg(&out); err != nil {
			return n, err
		}
		n += len(out.data)
	}
	return n, nil
}

// Close implements transfer.Conn.
func (p *pipe) Close() error {
	p.hangUp()
	return nil
}

// segment is pb.Segment as the transport uses it.
type segment struct {
	data  []byte // of one that was received: aliases whole, until release
	whole mem.Buffer
}

// marshal copies the segment: see pipe.
func (s *segment) marshal() mem.BufferSlice {
	b := buffers.Get(len(s.data) + 16)
	*b = protowire.AppendTag((*b)[:0], dataField, protowire.BytesType)
	*b = protowire.AppendBytes(*b, s.data)
	return mem.BufferSlice{mem.NewBuffer(b, buffers)}
}

// take reads a segment, which keeps the buffer.
func (s *segment) take(whole mem.Buffer) error {
	s.whole = whole
	for b := whole.ReadOnlyData(); len(b) > 0; {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errMalformed("segment")
		}
		b = b[n:]
		if number == dataField && kind == protowire.BytesType {
			s.data, n = protowire.ConsumeBytes(b)
		} else {
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return errMalformed("segment")
		}
		b = b[n:]
	}
	return nil
}

// release gives back the memory of a segment that was received.
func (s *segment) release() {
	if s.whole != nil {
		s.whole.Free()
	}
	*s = segment{}
}
