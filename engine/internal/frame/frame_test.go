package frame

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func TestMalformedHeadersAreRejected(t *testing.T) {
	valid := unhex(t, golden[1].hex)
	set := func(at int, v ...byte) []byte {
		b := bytes.Clone(valid)
		copy(b[at:], v)
		return b
	}
	for _, c := range []struct {
		name string
		b    []byte
		want error
	}{
		{"empty", nil, ErrShort},
		{"first byte of the magic", set(0, 0), ErrMagic},
		{"last byte of the magic", set(3, 0), ErrMagic},
		{"magic the other way round", set(0, 0x43, 0x4B, 0x43, 0x4D), ErrMagic},
		{"version 0", set(4, 0), ErrVersion},
		{"version 2", set(4, 2), ErrVersion},
		{"type 0", set(5, 0), ErrType},
		{"type 11", set(5, 11), ErrType},
		{"type 255", set(5, 255), ErrType},
		{"flag 1", set(6, 2), ErrFlags},
		{"flag 15", set(7, 0x80), ErrFlags},
		{"NeedsAck and another", set(6, 3), ErrFlags},
		{"payload one longer than said", append(bytes.Clone(valid), 0), ErrLength},
		{"payload length one more", set(40, 14), ErrLength},
		{"payload length one less", set(40, 12), ErrLength},
		{"payload length 0", set(40, 0), ErrLength},
		{"payload length in the last byte", set(43, 1), ErrLength},
		{"payload length of all ones", set(40, 255, 255, 255, 255), ErrLength},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := bytes.Clone(c.b)
			h, p, err := Decode(c.b)
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if h != (Header{}) || p != nil || !bytes.Equal(before, c.b) {
				t.Errorf("output of a rejected frame: %+v %X", h, p)
			}
		})
	}
}

func TestEveryTypeAndFlagThatExistsIsAccepted(t *testing.T) {
	for typ := Type(1); typ <= 10; typ++ {
		for _, flags := range []uint16{0, NeedsAck} {
			want := Header{Type: typ, Flags: flags}
			if h, _, err := Decode(want.Append(nil, nil)); err != nil || h != want {
				t.Errorf("type %d flags %d: %+v %v", typ, flags, h, err)
			}
		}
	}
}

func TestEveryTruncationIsRejected(t *testing.T) {
	for _, c := range golden {
		b := unhex(t, c.hex)
		for n := range b {
			if h, p, err := Decode(b[:n]); err == nil || h != (Header{}) || p != nil {
				t.Errorf("%s cut to %d bytes: %+v %X %v", c.name, n, h, p, err)
			}
		}
	}
	raw := AppendRaw(nil, "name", []byte("message"))
	for n := range raw {
		for _, exact := range []bool{false, true} {
			if name, msg, err := DecodeRaw(raw[:n], exact); !errors.Is(err, ErrLength) || name != nil || msg != nil {
				t.Errorf("raw cut to %d bytes: %q %q %v", n, name, msg, err)
			}
		}
	}
}

func TestRawBounds(t *testing.T) {
	u32 := func(vs ...uint32) (b []byte) {
		for _, v := range vs {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
		return b
	}
	for _, c := range []struct {
		name             string
		b                []byte
		tolerant, strict bool
	}{
		{"both empty", u32(0, 0), true, true},
		{"seven bytes", u32(0, 0)[:7], false, false},
		{"trailing byte", append(u32(0, 0), 1), true, false},
		{"name takes the message's length", u32(4, 0), false, false},
		{"name of all ones", u32(0xffffffff, 0), false, false},
		{"message one too long", append(u32(0, 2), 1), false, false},
		{"message of all ones", u32(0, 0xffffffff), false, false},
		{"name of the magic's size", u32(Magic, 0), false, false},
	} {
		for _, exact := range []bool{false, true} {
			want := c.tolerant
			if exact {
				want = c.strict
			}
			if _, _, err := DecodeRaw(c.b, exact); (err == nil) != want {
				t.Errorf("%s, exact %v: %v", c.name, exact, err)
			}
		}
	}
}

// A receiver may append to what it was given without reaching what follows.
func TestRawFieldsHaveTheirOwnCapacity(t *testing.T) {
	name, msg, err := DecodeRaw(append(AppendRaw(nil, "n", []byte("m")), "trailing"...), false)
	if err != nil || cap(name) != 1 || cap(msg) != 1 {
		t.Errorf("name has capacity %d, message %d: %v", cap(name), cap(msg), err)
	}
}

// The largest that fits 64 KiB, and one more: the codec has no limit of its
// own, but what it adds is exactly what the limits are computed with.
func TestSizesAtTheLimits(t *testing.T) {
	for _, c := range []struct{ sum, raw, typed int }{
		{65483, 65491, 65535}, {65484, 65492, 65536}, {65485, 65493, 65537},
		{65527, 65535, 65579}, {65528, 65536, 65580}, {65529, 65537, 65581},
		{16 << 20, 16<<20 + 8, 16<<20 + 52},
	} {
		for _, name := range []int{0, 1, c.sum / 2, c.sum} {
			n, m := bytes.Repeat([]byte{0}, name), bytes.Repeat([]byte{0xff}, c.sum-name)
			raw := AppendRaw(nil, string(n), m)
			typed := Header{Type: NotifyCompat}.Append(nil, raw)
			if len(raw) != c.raw || len(typed) != c.typed {
				t.Fatalf("%d bytes make %d raw and %d typed, want %d and %d", c.sum, len(raw), len(typed), c.raw, c.typed)
			}
			_, p, err := Decode(typed)
			gotName, gotMsg, rawErr := DecodeRaw(p, true)
			if err != nil || rawErr != nil || !bytes.Equal(gotName, n) || !bytes.Equal(gotMsg, m) {
				t.Fatalf("%d bytes do not come back: %v %v", c.sum, err, rawErr)
			}
		}
	}
}

var anyBytes = rapid.SliceOfN(rapid.Byte(), 0, 300)

func anyHeader(t *rapid.T) Header {
	return Header{
		Type:    Type(rapid.IntRange(1, 10).Draw(t, "type")),
		Flags:   rapid.Uint16Range(0, 1).Draw(t, "flags"),
		Session: rapid.Uint64().Draw(t, "session"),
		Epoch:   rapid.Uint64().Draw(t, "epoch"),
		Seq:     rapid.Uint64().Draw(t, "seq"),
		Ack:     rapid.Uint64().Draw(t, "ack"),
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, payload := anyHeader(t), anyBytes.Draw(t, "payload")
		got, p, err := Decode(h.Append(nil, payload))
		if err != nil || got != h || !bytes.Equal(p, payload) {
			t.Fatalf("%+v %X became %+v %X %v", h, payload, got, p, err)
		}
		name, msg := anyBytes.Draw(t, "name"), anyBytes.Draw(t, "message")
		b := AppendRaw(nil, string(name), msg)
		n, m, err := DecodeRaw(b, true)
		if err != nil || !bytes.Equal(n, name) || !bytes.Equal(m, msg) {
			t.Fatalf("%X %X became %X %X %v", name, msg, n, m, err)
		}
		if IsTyped(b) {
			t.Fatal("a raw frame begins like a typed one")
		}
	})
}

// Append extends what is there and leaves it as it was.
func TestAppendKeepsWhatIsThere(t *testing.T) {
	b := AppendRaw(Header{Type: CtrlAck}.Append([]byte("before"), []byte("p")), "n", []byte("m"))
	if !bytes.HasPrefix(b, []byte("before")) || len(b) != 6+HeaderSize+1+RawOverhead+2 {
		t.Errorf("got %q", b)
	}
}

func FuzzDecode(f *testing.F) {
	for _, c := range golden {
		f.Add(unhex(f, c.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, p, err := Decode(b)
		if err != nil {
			if h != (Header{}) || p != nil {
				t.Fatal("output of a rejected frame")
			}
			return
		}
		if !IsTyped(b) || !bytes.Equal(h.Append(nil, p), b) {
			t.Fatalf("%X decodes to %+v %X", b, h, p)
		}
	})
}

func FuzzDecodeRaw(f *testing.F) {
	f.Add(unhex(f, golden[0].payload), true)
	f.Add(append(AppendRaw(nil, "", []byte{0, 0xff}), 1, 2, 3), false)
	f.Fuzz(func(t *testing.T, b []byte, exact bool) {
		name, msg, err := DecodeRaw(b, exact)
		if err != nil {
			if name != nil || msg != nil {
				t.Fatal("output of a rejected frame")
			}
			return
		}
		if again := AppendRaw(nil, string(name), msg); exact && !bytes.Equal(again, b) || !bytes.HasPrefix(b, again) {
			t.Fatalf("%X decodes to %X %X", b, name, msg)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	for _, size := range []int{64, 60 << 10} {
		f := Header{Type: NotifyCompat, Flags: NeedsAck, Seq: 1, Ack: 1}.Append(nil, AppendRaw(nil, "name", make([]byte, size)))
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, p, err := Decode(f)
				if err != nil {
					b.Fatal(err)
				}
				if _, _, err := DecodeRaw(p, true); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
