package sdk

import (
	"bytes"
	"encoding/hex"
	"math"
	"reflect"
	"testing"
)

func TestOpGolden(t *testing.T) {
	o := Op{
		Kind: Write, Local: Capability{1}, LocalOffset: 2, Remote: Capability{3, 15: 4},
		RemoteBase: 5, RemoteOffset: 6, Length: 7,
	}
	const want = "0200000000000000" + "01000000000000000000000000000000" + "0200000000000000" +
		"03000000000000000000000000000004" + "0500000000000000" + "0600000000000000" + "0700000000000000"
	b := o.Append(nil)
	if got := hex.EncodeToString(b); got != want {
		t.Fatalf("\n%s, want\n%s", got, want)
	}
	if back, err := ParseOp(b); err != nil || !reflect.DeepEqual(back, o) {
		t.Fatalf("%+v, %v", back, err)
	}
	o.Event = &[EventBytes]byte{9, 63: 8}
	if back, err := ParseOp(o.Append(nil)); err != nil || !reflect.DeepEqual(back, o) {
		t.Fatalf("%+v, %v", back, err)
	}
}

func TestOpRefusesWhatIsNone(t *testing.T) {
	good := Op{Kind: Read, Length: 1}
	for name, spoil := range map[string]func(b []byte) []byte{
		"short":         func(b []byte) []byte { return b[:len(b)-1] },
		"long":          func(b []byte) []byte { return append(b, 0) },
		"nothing":       func([]byte) []byte { return nil },
		"kind 0":        func(b []byte) []byte { b[0] = 0; return b },
		"kind 4":        func(b []byte) []byte { b[0] = 4; return b },
		"unknown flag":  func(b []byte) []byte { b[1] = 4; return b },
		"reserved":      func(b []byte) []byte { b[7] = 1; return b },
		"no event":      func(b []byte) []byte { b[1] = opEvent; return b },
		"no length":     func(b []byte) []byte { b[64] = 0; return b },
		"local wraps":   func(b []byte) []byte { copy(b[24:], bytes.Repeat([]byte{255}, 8)); return b },
		"remote wraps":  func(b []byte) []byte { copy(b[56:], bytes.Repeat([]byte{255}, 8)); return b },
		"address wraps": func(b []byte) []byte { copy(b[48:], bytes.Repeat([]byte{255}, 8)); b[56] = 1; return b },
	} {
		if o, err := ParseOp(spoil(good.Append(nil))); err == nil {
			t.Errorf("%s: %+v", name, o)
		}
	}
	edge := Op{Kind: Read, LocalOffset: math.MaxUint64 - 1, Length: 1}
	if _, err := ParseOp(edge.Append(nil)); err != nil {
		t.Error(err)
	}
}

func FuzzParseOp(f *testing.F) {
	f.Add((&Op{Kind: Read, Length: 1}).Append(nil))
	f.Add((&Op{Kind: Write, Length: 1, Event: &[EventBytes]byte{1}}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if o, err := ParseOp(b); err == nil && !bytes.Equal(o.Append(nil), b) {
			t.Errorf("%x is written as %x", b, o.Append(nil))
		}
	})
}
