package remote

import (
	"testing"

	"pgregory.net/rapid"
)

// TestOutstandingModel compares the window with a map.
func TestOutstandingModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var o outstanding
		model := map[uint64]bool{}
		var last uint64
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				step := rapid.OneOf(rapid.Uint64Range(1, 3), rapid.Uint64Range(1, 5000), rapid.Uint64Range(1, 1<<40)).Draw(t, "step")
				id := last + step
				fits := true
				for have := range model {
					fits = fits && id-have < maxSpan
				}
				if got := o.add(id); got != fits {
					t.Fatalf("add(%d) = %t with %d outstanding", id, got, len(model))
				}
				if fits {
					model[id], last = true, id
				}
			},
			"take": func(t *rapid.T) {
				id := rapid.Uint64Range(0, last+10).Draw(t, "id")
				if len(model) > 0 && rapid.Bool().Draw(t, "known") {
					for id = range model {
						break
					}
				}
				if got := o.take(id); got != model[id] {
					t.Fatalf("take(%d) = %t", id, got)
				}
				delete(model, id)
			},
			"rewind": func(t *rapid.T) {
				if len(model) == 0 {
					return
				}
				var from uint64
				for id := range model {
					from = max(from, id)
				}
				o.rewind(from)
				delete(model, from)
				last = from - 1
			},
			"": func(t *rapid.T) {
				if o.count != len(model) {
					t.Fatalf("count %d, want %d", o.count, len(model))
				}
			},
		})
	})
}

func TestOutstandingIsBounded(t *testing.T) {
	var o outstanding
	o.add(1)
	for id := uint64(2); id <= maxSpan; id++ {
		if !o.add(id) || !o.take(id) {
			t.Fatal(id)
		}
	}
	if o.add(maxSpan + 1) {
		t.Error("no bound")
	}
	if n := len(o.bits) * 8; n > maxSpan/8 {
		t.Errorf("%d bytes", n)
	}
	o.take(1)
	if !o.add(maxSpan + 1) {
		t.Error("the window does not move")
	}
}
