package frame

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// ackBytes is an ack's payload that says n ranges, and has these.
func ackBytes(n, zero uint16, ranges ...uint16) []byte {
	b := make([]byte, 16)
	b = binary.LittleEndian.AppendUint16(b, n)
	b = binary.LittleEndian.AppendUint16(b, zero)
	for _, r := range ranges {
		b = binary.LittleEndian.AppendUint16(b, r)
	}
	return b
}

func TestHostileAcks(t *testing.T) {
	const top = math.MaxUint64
	many := make([]uint16, 0, 2*(MaxRanges+1))
	for i := range uint16(MaxRanges + 1) {
		many = append(many, 2*i+2, 1)
	}
	for _, c := range []struct {
		name string
		cum  uint64
		b    []byte
		ok   bool
	}{
		{"empty", 0, nil, false},
		{"one byte short", 0, ackBytes(0, 0)[:19], false},
		{"no ranges", 0, ackBytes(0, 0), true},
		{"a byte too many", 0, append(ackBytes(0, 0), 0), false},
		{"reserved bits", 0, ackBytes(0, 1), false},
		{"fewer ranges than said", 0, ackBytes(2, 0, 2, 1), false},
		{"more ranges than said", 0, ackBytes(0, 0, 2, 1), false},
		{"most ranges", 0, ackBytes(MaxRanges, 0, many[:2*MaxRanges]...), true},
		{"one range too many", 0, ackBytes(MaxRanges+1, 0, many...), false},
		{"range of none", 0, ackBytes(1, 0, 2, 0), false},
		{"range at the cumulative ack", 5, ackBytes(1, 0, 0, 1), false},
		{"range at number 0", 0, ackBytes(1, 0, 0, 1), false},
		{"range right after the cumulative ack", 5, ackBytes(1, 0, 1, 1), false},
		{"first that may be", 5, ackBytes(1, 0, 2, 1), true},
		{"farthest that may be", 5, ackBytes(1, 0, 0xffff, 0xffff), true},
		{"adjacent ranges", 5, ackBytes(2, 0, 2, 2, 4, 1), false},
		{"ranges with a gap of one", 5, ackBytes(2, 0, 2, 2, 5, 1), true},
		{"overlapping ranges", 5, ackBytes(2, 0, 2, 5, 4, 1), false},
		{"descending ranges", 5, ackBytes(2, 0, 9, 1, 2, 1), false},
		{"the same range twice", 5, ackBytes(2, 0, 9, 1, 9, 1), false},
		{"up to the top", top - 10, ackBytes(1, 0, 5, 6), true},
		{"first wraps around", top - 10, ackBytes(1, 0, 11, 1), false},
		{"last wraps around", top - 10, ackBytes(1, 0, 5, 7), false},
		{"another range after the top", top - 10, ackBytes(2, 0, 5, 6, 3, 1), false},
		{"cumulative at the top", top, ackBytes(1, 0, 0, 1), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := DecodeAck(c.cum, c.b, nil)
			if c.ok {
				if err != nil || !bytes.Equal(a.AppendPayload(nil), c.b) {
					t.Fatalf("got %+v, %v", a, err)
				}
				return
			}
			if !errors.Is(err, ErrAck) || !reflect.DeepEqual(a, Ack{}) {
				t.Fatalf("got %+v, %v", a, err)
			}
		})
	}
}

func TestEveryTruncationOfAnAckIsRejected(t *testing.T) {
	b := unhex(t, golden[2].payload)
	for n := range b {
		if a, err := DecodeAck(41, b[:n], nil); !errors.Is(err, ErrAck) {
			t.Errorf("cut to %d bytes: %+v %v", n, a, err)
		}
	}
}

// An ack may name less than there is, never more.
func TestAckLeavesOutWhatItCannotSay(t *testing.T) {
	for _, c := range []struct {
		name       string
		cum        uint64
		have, want []Range
	}{
		{"too far", 10, []Range{{12, 12}, {10 + 0x10000, 10 + 0x10000}}, []Range{{12, 12}}},
		{"farthest", 10, []Range{{10 + 0xffff, 10 + 0xffff}}, []Range{{10 + 0xffff, 10 + 0xffff}}},
		{"too long", 10, []Range{{12, 12 + 0xffff}}, nil},
		{"behind the cumulative ack", 10, []Range{{9, 9}}, nil},
	} {
		got, err := DecodeAck(c.cum, Ack{Cumulative: c.cum, Ranges: c.have}.AppendPayload(nil), nil)
		if err != nil || !reflect.DeepEqual(got.Ranges, c.want) {
			t.Errorf("%s: %v %v, want %v", c.name, got.Ranges, err, c.want)
		}
	}
	var all []Range
	for i := range uint64(MaxRanges + 5) {
		all = append(all, Range{2*i + 2, 2*i + 2})
	}
	got, err := DecodeAck(0, Ack{Ranges: all}.AppendPayload(nil), nil)
	if err != nil || !reflect.DeepEqual(got.Ranges, all[:MaxRanges]) {
		t.Errorf("%d ranges, %v", len(got.Ranges), err)
	}
}

func anyAck(t *rapid.T) Ack {
	a := Ack{
		Cumulative: rapid.Uint64Range(0, 1<<60).Draw(t, "cumulative"),
		RoomSeq:    rapid.Uint64().Draw(t, "room"),
		RoomBytes:  rapid.Uint64().Draw(t, "bytes"),
	}
	at := a.Cumulative
	for range rapid.IntRange(0, 50).Draw(t, "ranges") {
		first := at + rapid.Uint64Range(2, 100).Draw(t, "gap")
		at = first + rapid.Uint64Range(0, 1000).Draw(t, "more")
		if first-a.Cumulative > 0xffff {
			break
		}
		a.Ranges = append(a.Ranges, Range{first, at})
	}
	return a
}

func TestAckRoundTrip(t *testing.T) {
	buf := make([]Range, 0, 64)
	rapid.Check(t, func(t *rapid.T) {
		want := anyAck(t)
		got, err := DecodeAck(want.Cumulative, want.AppendPayload(nil), buf)
		if len(got.Ranges) == 0 {
			got.Ranges = nil
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v became %+v, %v", want, got, err)
		}
	})
}

func FuzzDecodeAck(f *testing.F) {
	f.Add(uint64(41), unhex(f, golden[2].payload))
	f.Add(uint64(50), unhex(f, golden[3].payload))
	f.Add(uint64(math.MaxUint64-10), ackBytes(2, 0, 5, 6, 3, 1))
	f.Fuzz(func(t *testing.T, cum uint64, b []byte) {
		a, err := DecodeAck(cum, b, nil)
		if err != nil {
			if !reflect.DeepEqual(a, Ack{}) {
				t.Fatal("output of a rejected ack")
			}
			return
		}
		if !bytes.Equal(a.AppendPayload(nil), b) {
			t.Fatalf("%X decodes to %+v", b, a)
		}
		last := cum
		for _, r := range a.Ranges {
			if r.First <= last || r.First-last < 2 || r.Last < r.First {
				t.Fatalf("ranges beyond %d: %v", cum, a.Ranges)
			}
			last = r.Last
		}
	})
}

func BenchmarkAck(b *testing.B) {
	a := Ack{Cumulative: 1000, RoomSeq: 2000, RoomBytes: 1 << 20, Ranges: []Range{{1002, 1010}, {1012, 1400}}}
	var bytes []byte
	var ranges []Range
	b.ReportAllocs()
	for b.Loop() {
		bytes = a.AppendPayload(bytes[:0])
		got, err := DecodeAck(a.Cumulative, bytes, ranges)
		if err != nil {
			b.Fatal(err)
		}
		ranges = got.Ranges
	}
}
