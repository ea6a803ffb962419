package link

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"os"
	"testing"
)

var golden = []struct {
	name string
	rec  Record
	hex  string
}{
	{"send", Record{Type: Send, Endpoint: 0x0102030405060708, ID: 9, Payload: []byte("abc")},
		"03000000 01 00 0000 0807060504030201 0900000000000000 616263"},
	{"complete", Record{Type: Complete, Endpoint: 2, Payload: make([]byte, 16)},
		"10000000 02 00 0000 0200000000000000 0000000000000000 00000000000000000000000000000000"},
	{"ended", Record{Type: Ended, Endpoint: math.MaxUint64, ID: 1, Payload: []byte("x")},
		"01000000 04 00 0000 ffffffffffffffff 0100000000000000 78"},
	{"empty", Record{Type: Ping, ID: 1 << 63}, "00000000 06 00 0000 0000000000000000 0000000000000080"},
	{"files", Record{Type: Files, ID: 3, Files: make([]*os.File, 2)},
		"00000000 08 00 0200 0000000000000000 0300000000000000"},
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(string(bytes.ReplaceAll([]byte(s), []byte(" "), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGolden(t *testing.T) {
	for _, g := range golden {
		want := unhex(t, g.hex)
		if got := appendRecord(nil, &g.rec); !bytes.Equal(got, want) {
			t.Errorf("%s: encoded as %x, want %x", g.name, got, want)
		}
		h, err := decodeHeader(want, testMax)
		if err != nil {
			t.Errorf("%s: %v", g.name, err)
		}
		if h.typ != g.rec.Type || h.size != len(g.rec.Payload) || h.endpoint != g.rec.Endpoint || h.id != g.rec.ID || h.files != len(g.rec.Files) {
			t.Errorf("%s: decoded as %+v", g.name, h)
		}
	}
}

func TestHeaderLimits(t *testing.T) {
	for _, c := range []struct {
		size, limit int
		ok          bool
	}{{0, 0, true}, {1, 0, false}, {100, 100, true}, {101, 100, false}, {maxPayloadLimit, maxPayloadLimit, true}} {
		b := appendRecord(nil, &Record{Type: Send})
		b[0], b[1], b[2], b[3] = byte(c.size), byte(c.size>>8), byte(c.size>>16), byte(c.size>>24)
		if _, err := decodeHeader(b, c.limit); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrViolation) {
			t.Errorf("%d of %d: %v", c.size, c.limit, err)
		}
	}
	for n, want := range map[int]int{-1: 0, 0: 0, 5: 5, math.MaxInt: maxPayloadLimit} {
		if got := clampPayload(n); got != want {
			t.Errorf("clampPayload(%d) = %d, want %d", n, got, want)
		}
	}
}

// script is a source of bytes in given pieces, then EOF.
func script(pieces ...[]byte) *assembler {
	return &assembler{max: testMax, fill: func(p []byte) (int, []int, error) {
		for len(pieces) > 0 && len(pieces[0]) == 0 {
			pieces = pieces[1:]
		}
		if len(pieces) == 0 {
			return 0, nil, io.EOF
		}
		n := copy(p, pieces[0])
		pieces[0] = pieces[0][n:]
		return n, nil, nil
	}}
}

// Every truncation, and every way to cut valid records in two.
func TestEveryCut(t *testing.T) {
	var all []byte
	for i := range 5 {
		all = appendRecord(all, &Record{Type: Received, ID: uint64(i), Payload: pattern(uint64(i), i*7)})
	}
	for cut := range len(all) + 1 {
		for _, end := range []int{cut, len(all)} {
			a := script(bytes.Clone(all[:cut]), bytes.Clone(all[cut:end]))
			var n, size int
			var err error
			var recs []Record
			for err == nil {
				recs, err = a.next(recs[:0])
				for _, r := range recs {
					if r.ID != uint64(n) || !bytes.Equal(r.Payload, pattern(uint64(n), n*7)) {
						t.Fatalf("cut at %d and %d: record %d is %+v", cut, end, n, r)
					}
					n++
					size += HeaderSize + len(r.Payload)
				}
			}
			if err != io.EOF {
				t.Fatalf("cut at %d and %d: %v", cut, end, err)
			}
			if size > end || end == len(all) && n != 5 {
				t.Fatalf("cut at %d and %d: %d records", cut, end, n)
			}
		}
	}
}

func TestRuns(t *testing.T) {
	var r Runs
	for _, c := range []struct {
		id            uint64
		outcome, code uint8
	}{{1, 2, 0}, {2, 2, 0}, {3, 2, 0}, {4, 1, 5}, {5, 1, 5}, {6, 1, 13}, {8, 1, 13}, {8, 1, 13}, {7, 1, 13}, {math.MaxUint64, 3, 16}, {0, 3, 16}} {
		if !r.Add(c.id, c.outcome, c.code) {
			t.Fatalf("Add(%d) refused", c.id)
		}
	}
	want := []Run{{1, 3, 2, 0}, {4, 2, 1, 5}, {6, 1, 1, 13}, {8, 1, 1, 13}, {8, 1, 1, 13}, {7, 1, 1, 13}, {math.MaxUint64, 1, 3, 16}, {0, 1, 3, 16}}
	got, err := DecodeRuns(nil, r.Payload())
	if err != nil || len(got) != len(want) || r.IDs() != 11 {
		t.Fatalf("%+v, %v, %d ids; want %+v", got, err, r.IDs(), want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("run %d = %+v, want %+v", i, got[i], want[i])
		}
	}
	if g := unhex(t, "0100000000000000 03000000 02 00 0000 0400000000000000 02000000 01 05 0000"); !bytes.HasPrefix(r.Payload(), g) {
		t.Errorf("packed as %x, want %x first", r.Payload(), g)
	}
	r.Reset()
	if r.Add(4, 3, 16); len(r.Payload()) != RunSize || r.IDs() != 1 {
		t.Errorf("after Reset: %x", r.Payload())
	}
}

func TestRunsAreBounded(t *testing.T) {
	var one, many Runs
	for i := range uint64(MaxRunIDs) {
		if !one.Add(i, 2, 0) || !many.Add(2*i, 2, 0) {
			t.Fatalf("refused after %d", i)
		}
	}
	for _, r := range []*Runs{&one, &many} {
		before := len(r.Payload())
		if r.Add(1<<40, 2, 0) || len(r.Payload()) != before || r.IDs() != MaxRunIDs {
			t.Error("a full record took more")
		}
		if _, err := DecodeRuns(nil, r.Payload()); err != nil {
			t.Error(err)
		}
	}
	if len(one.Payload()) != RunSize {
		t.Errorf("%d bytes for one run", len(one.Payload()))
	}
}

func TestBadRuns(t *testing.T) {
	good := "0100000000000000 03000000 02 00 0000"
	for name, s := range map[string]string{
		"empty run":       "0100000000000000 00000000 02 00 0000",
		"too many":        "0100000000000000 01000100 02 00 0000",
		"four billion":    "0000000000000000 ffffffff 02 00 0000",
		"too many in all": "0100000000000000 00000100 02 00 0000",
		"overflow":        "ffffffffffffffff 02000000 02 00 0000",
		"outcome 0":       "0100000000000000 01000000 00 00 0000",
		"outcome 4":       "0100000000000000 01000000 04 00 0000",
		"code 17":         "0100000000000000 01000000 01 11 0000",
		"reserved 1":      "0100000000000000 01000000 01 01 0100",
		"reserved 2":      "0100000000000000 01000000 01 01 0001",
		"a byte too many": "0100000000000000 01000000 01 01 0000 00",
	} {
		dst := []Run{{9, 9, 1, 1}}
		got, err := DecodeRuns(dst, unhex(t, good+s))
		if !errors.Is(err, ErrViolation) || len(got) != 1 || got[0] != dst[0] {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	whole := unhex(t, good+good)
	for n := range len(whole) {
		got, err := DecodeRuns(nil, whole[:n])
		if ok := n%RunSize == 0; (err == nil) != ok || ok && len(got) != n/RunSize || !ok && got != nil {
			t.Errorf("%d bytes: %v, %v", n, got, err)
		}
	}
	if got, err := DecodeRuns(nil, unhex(t, "ffffffffffffffff 01000000 03 10 0000")); err != nil || got[0].First != math.MaxUint64 {
		t.Errorf("the last id: %v, %v", got, err)
	}
}

func FuzzRuns(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(unhex(f, "0100000000000000 03000000 02 00 0000"))
	f.Add(unhex(f, "0100000000000000 03000000 02 00 0000 0400000000000000 02000000 01 05 0000"))
	f.Add(unhex(f, "ffffffffffffffff 02000000 02 00 0000"))
	f.Fuzz(func(t *testing.T, b []byte) {
		runs, err := DecodeRuns(nil, b)
		if err != nil {
			if runs != nil || !errors.Is(err, ErrViolation) {
				t.Fatalf("%v with %v", runs, err)
			}
			return
		}
		var r Runs
		var ids int
		for _, run := range runs {
			ids += int(run.Count)
			for i := range uint64(run.Count) {
				if !r.Add(run.First+i, run.Outcome, run.Code) {
					t.Fatal("decoded more than can be encoded")
				}
			}
		}
		if r.IDs() != ids || len(r.Payload()) > len(b) {
			t.Fatalf("%d ids in %d bytes became %d in %d", ids, len(b), r.IDs(), len(r.Payload()))
		}
		if again, err := DecodeRuns(nil, r.Payload()); err != nil || len(again) > len(runs) {
			t.Fatalf("again: %v, %v", again, err)
		}
	})
}

// FuzzReader gives arbitrary bytes, in two pieces, to the reader. What it
// accepts must be exactly what the bytes say.
func FuzzReader(f *testing.F) {
	var all []byte
	for _, g := range golden {
		b := appendRecord(nil, &g.rec)
		all = append(all, b...)
		f.Add(b, uint16(0))
		f.Add(b, uint16(HeaderSize-1))
	}
	f.Add(all, uint16(40))
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		at := min(int(cut), len(b))
		a := script(bytes.Clone(b[:at]), bytes.Clone(b[at:]))
		a.max = 4096
		var recs []Record
		var again []byte
		var err error
		for err == nil {
			recs, err = a.next(recs[:0])
			if err == nil && len(recs) == 0 {
				t.Fatal("nothing, and no error")
			}
			for _, r := range recs {
				if len(r.Files) > 0 || len(r.Payload) > a.max {
					t.Fatalf("accepted %+v", r)
				}
				again = appendRecord(again, &r)
			}
		}
		if err != io.EOF && !errors.Is(err, ErrViolation) {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(b, again) {
			t.Fatalf("%x became %x", b, again)
		}
		if _, second := a.next(nil); second != err {
			t.Fatalf("first %v, then %v", err, second)
		}
	})
}
