package ranker

import (
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func TestOrder(t *testing.T) {
	in := func(s int) time.Time { return now.Add(time.Duration(s) * time.Second) }
	never := time.Time{}
	for _, c := range []struct {
		name string
		cs   []Candidate
		want []int
	}{
		{"none", nil, []int{}},
		{"one", []Candidate{{0, 0, never}}, []int{0}},
		{"transports as configured", []Candidate{{2, 0, never}, {0, 0, never}, {1, 0, never}}, []int{1, 2, 0}},
		{"paths in their order", []Candidate{{0, 2, never}, {0, 0, never}, {0, 1, never}}, []int{1, 2, 0}},
		{"all paths of one before the next", []Candidate{{1, 0, never}, {0, 1, never}, {0, 0, never}}, []int{2, 1, 0}},
		{"equal ones stay as they are", []Candidate{{0, 0, never}, {0, 0, never}}, []int{0, 1}},
		{
			"at most three of a transport",
			[]Candidate{{0, 0, never}, {0, 1, never}, {0, 2, never}, {0, 3, never}, {1, 0, never}, {1, 1, never}, {1, 2, never}, {1, 3, never}},
			[]int{0, 1, 2, 4, 5, 6},
		},
		{"paused ones are skipped", []Candidate{{0, 0, in(1)}, {0, 1, never}, {1, 0, in(30)}, {2, 0, never}}, []int{1, 3}},
		{"paused ones do not count among the three", []Candidate{{0, 0, in(1)}, {0, 1, never}, {0, 2, never}, {0, 3, never}}, []int{1, 2, 3}},
		{"a pause that is over is none", []Candidate{{0, 0, in(-1)}, {1, 0, never}}, []int{0, 1}},
		{"a pause ends at its end", []Candidate{{0, 0, in(0)}, {1, 0, never}}, []int{0, 1}},
		{"all paused: the one that ends first", []Candidate{{0, 0, in(30)}, {0, 1, in(20)}, {1, 0, in(10)}, {1, 1, in(20)}}, []int{2}},
		{"all paused and one as the other: as configured", []Candidate{{1, 0, in(10)}, {0, 1, in(10)}, {0, 0, in(10)}}, []int{2}},
		{"one, paused", []Candidate{{0, 0, in(300)}}, []int{0}},
	} {
		if got := Order(c.cs, now); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// Whatever the candidates: somebody is tried, nobody twice, no paused one
// beside one that is not, and nobody is left out but for a rule.
func TestOrderHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cs := make([]Candidate, rapid.IntRange(0, 12).Draw(t, "n"))
		healthy := 0
		for i := range cs {
			cs[i] = Candidate{Transport: rapid.IntRange(0, 3).Draw(t, "transport"), Path: rapid.IntRange(0, 4).Draw(t, "path")}
			if rapid.Bool().Draw(t, "paused") {
				cs[i].PausedUntil = now.Add(time.Duration(rapid.IntRange(-2, 3).Draw(t, "pause")) * time.Second)
			}
			if !cs[i].PausedUntil.After(now) {
				healthy++
			}
		}
		order := Order(cs, now)
		if len(cs) > 0 && len(order) == 0 {
			t.Fatal("nobody is tried")
		}
		seen, per := map[int]bool{}, map[int]int{}
		for at, i := range order {
			if seen[i] || cs[i].PausedUntil.After(now) && healthy > 0 {
				t.Fatalf("%v of %v", order, cs)
			}
			seen[i] = true
			per[cs[i].Transport]++
			if per[cs[i].Transport] > MaxPaths {
				t.Fatalf("more than %d paths of transport %d", MaxPaths, cs[i].Transport)
			}
			if at > 0 && compare(cs[order[at-1]], cs[i]) > 0 {
				t.Fatalf("%v is not as configured", order)
			}
		}
		for i, c := range cs {
			if healthy > 0 && !seen[i] && !c.PausedUntil.After(now) && per[c.Transport] < MaxPaths {
				t.Fatalf("%d is left out of %v", i, order)
			}
		}
	})
}
