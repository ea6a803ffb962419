package inbox

import "testing"

// The bounds of all parts together hold, however much room each has.
func TestPartsShareBothBounds(t *testing.T) {
	for _, c := range []struct {
		name          string
		frames, bytes int
		fit           int
	}{
		{"frames", 3, 1 << 20, 3},
		{"bytes", 1 << 20, 25, 3}, // the third may go while 20 are below the bound
	} {
		q := NewQueue[int](c.frames, c.bytes, func(*Session) {})
		one, two := q.NewPart(1<<20, 1<<20), q.NewPart(1<<20, 1<<20)
		for i := range c.fit {
			part := one
			if i%2 == 1 {
				part = two
			}
			if v := part.Put(i, 10); v != Entered {
				t.Errorf("%s: %d: %v", c.name, i, v)
			}
		}
		for _, part := range []*Part[int]{one, two, q.Rest()} {
			if v := part.Put(9, 10); v != NoRoom {
				t.Errorf("%s: one more: %v", c.name, v)
			}
		}
	}
}
