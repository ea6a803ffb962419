package rpctransport

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"
)

// What was given to gRPC does not change with the memory that it came from, nor
// keep it: a region may be unmapped before gRPC has written it.
func TestSegmentsAreCopies(t *testing.T) {
	for _, size := range []int{1, 1000, 5000, segmentBytes} {
		data := bytes.Repeat([]byte("x"), size)
		wire, err := newCodec().Marshal(&segment{data: data})
		if err != nil {
			t.Fatal(err)
		}
		clear(data)
		var s segment
		if err := newCodec().Unmarshal(wire, &s); err != nil || bytes.Count(s.data, []byte("x")) != size {
			t.Errorf("%d bytes: %d came, %v", size, len(s.data), err)
		}
		s.release()
	}
}

func FuzzSegment(f *testing.F) {
	f.Add([]byte{0x0a, 3, 1, 2, 3})
	f.Add([]byte{0x0a, 3, 1, 2})
	f.Add([]byte{0x10, 5, 0x0a, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var s segment
		if err := s.take(mem.SliceBuffer(b)); err == nil && !bytes.Contains(b, s.data) {
			t.Errorf("%x is not of %x", s.data, b)
		}
	})
}
