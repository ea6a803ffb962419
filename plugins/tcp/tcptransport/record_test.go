package tcptransport

import (
	"bytes"
	"testing"
)

// FuzzParse: any bytes, cut anywhere, give the same records as in one piece,
// and what parses encodes to the same bytes again.
func FuzzParse(f *testing.F) {
	stream := appendFrame(nil, []byte("one"))
	stream = appendReceipt(stream, 7)
	stream = appendFrame(stream, nil)
	f.Add(stream, 5)
	f.Add(stream[:len(stream)-1], 0)
	f.Add([]byte{1, 0, 0, 9, 0}, 1)
	f.Add([]byte{255, 255, 255, 1}, 2)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		var whole, part batch
		used, err := whole.parse(b)
		if used > len(b) {
			t.Fatalf("used %d of %d", used, len(b))
		}
		cut = max(0, min(cut, len(b)))
		first, cutErr := part.parse(b[:cut])
		frames := len(part.frames)
		if cutErr == nil {
			var second int
			second, cutErr = part.parse(b[first:])
			first += second
			frames += len(part.frames)
		}
		if first != used || frames != len(whole.frames) || (cutErr == nil) != (err == nil) {
			t.Fatalf("in one piece %d bytes, %d frames, %v; cut %d, %d, %v", used, len(whole.frames), err, first, frames, cutErr)
		}
		if err == nil && !whole.receipted {
			var again []byte
			for _, fr := range whole.frames {
				again = appendFrame(again, fr)
			}
			if !bytes.Equal(again, b[:used]) {
				t.Fatalf("%x encodes to %x", b[:used], again)
			}
		}
	})
}

// TestUnstarted: a frame counts as not posted only if its first byte has not
// left.
func TestUnstarted(t *testing.T) {
	b := appendFrame(nil, []byte("abc"))
	b = appendReceipt(b, 1)
	second := len(b)
	b = appendFrame(b, nil)
	for _, c := range []struct{ written, want int }{
		{0, 2}, {1, 1}, {7, 1}, {8, 1}, {second, 1}, {second + 1, 0}, {len(b), 0},
	} {
		if got := unstarted(b, c.written); got != c.want {
			t.Errorf("%d bytes written: %d frames unstarted, want %d", c.written, got, c.want)
		}
	}
}
