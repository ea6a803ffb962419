package dedup

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/hawser-transport/hawser/engine/internal/frame"
)

// model is a window that remembers everything.
type model struct {
	taken     map[uint64]bool
	cum, high uint64
}

func (m *model) seen(seq uint64) bool {
	return seq <= m.cum || seq > Last || m.taken[seq] || m.high >= Size && seq <= m.high-Size
}

func (m *model) take(seq uint64) {
	m.taken[seq] = true
	m.settle(seq)
}

func (m *model) resolve(floor uint64) {
	if floor > 0 && floor <= Last && floor-1 > m.cum {
		m.cum = floor - 1
		m.settle(floor - 1)
	}
}

func (m *model) settle(high uint64) {
	m.high = max(m.high, high)
	if m.high >= Size {
		m.cum = max(m.cum, m.high-Size)
	}
	for m.taken[m.cum+1] {
		m.cum++
	}
}

func (m *model) ranges() (rs []frame.Range) {
	for seq := m.cum + 1; seq <= m.high; seq++ {
		if !m.taken[seq] {
			continue
		}
		if n := len(rs); n > 0 && rs[n-1].Last == seq-1 {
			rs[n-1].Last = seq
		} else {
			rs = append(rs, frame.Range{First: seq, Last: seq})
		}
	}
	return rs
}

func (m *model) compare(t interface{ Fatalf(string, ...any) }, w *Window) {
	if w.Cumulative() != m.cum {
		t.Fatalf("cumulative %d, want %d", w.Cumulative(), m.cum)
	}
	if got, want := w.Ranges(nil), m.ranges(); !reflect.DeepEqual(got, want) {
		t.Fatalf("ranges %v, want %v", got, want)
	}
}

func TestWindow(t *testing.T) {
	type step struct {
		resolve uint64 // a floor, or
		seq     uint64 // a number
		seen    bool   // that is a duplicate
	}
	take := func(seqs ...uint64) (steps []step) {
		for _, seq := range seqs {
			steps = append(steps, step{seq: seq})
		}
		return steps
	}
	dup := func(seq uint64) step { return step{seq: seq, seen: true} }
	floor := func(f uint64) step { return step{resolve: f} }
	for _, c := range []struct {
		name   string
		steps  []step
		cum    uint64
		ranges []frame.Range
	}{
		{"nothing", nil, 0, nil},
		{"number 0 is never new", []step{dup(0)}, 0, nil},
		{"in order", append(take(1, 2, 3), dup(1), dup(3)), 3, nil},
		{"a hole", append(take(1, 3, 4), dup(3)), 1, []frame.Range{{First: 3, Last: 4}}},
		{"a hole that is filled", take(2, 3, 1), 3, nil},
		{"the last number of the window", append(take(Size), dup(Size)), 0, []frame.Range{{First: Size, Last: Size}}},
		{"the window's lower edge stays open", append(take(Size, 1), dup(1)), 1, []frame.Range{{First: Size, Last: Size}}},
		{"one beyond closes number 1", append(take(Size+1), dup(1)), 1, []frame.Range{{First: Size + 1, Last: Size + 1}}},
		{"and leaves number 2 open", take(Size+1, 2), 2, []frame.Range{{First: Size + 1, Last: Size + 1}}},
		{"a jump of one width", append(take(1, 2, 2+Size), dup(2)), 2, []frame.Range{{First: 2 + Size, Last: 2 + Size}}},
		{"a jump far ahead forgets what was there", take(5, 1000000, 1000000-Size+5), 1000000 - Size, []frame.Range{{First: 1000000 - Size + 5, Last: 1000000 - Size + 5}, {First: 1000000, Last: 1000000}}},
		{"a jump within a word", take(64, 127, 128), 0, []frame.Range{{First: 64, Last: 64}, {First: 127, Last: 128}}},
		{"the same place a width later is another number", append(take(7, 7+Size), dup(7), step{seq: 8}), 8, []frame.Range{{First: 7 + Size, Last: 7 + Size}}},
		{"a floor resolves what is below it", append(take(1, 4), floor(4), dup(2), dup(3)), 4, nil},
		{"a floor ahead of everything", []step{floor(100), dup(99), {seq: 100}}, 100, nil},
		{"a floor meets what was taken", append(take(4, 5, 9), floor(4)), 5, []frame.Range{{First: 9, Last: 9}}},
		{"an old floor", append(take(1, 2, 3), floor(2)), 3, nil},
		{"floor 0", []step{floor(0), {seq: 1}}, 1, nil},
		{"a floor far ahead", []step{{seq: 5}, floor(1 << 40), dup(5), dup(1<<40 - 1), {seq: 1 << 40}}, 1 << 40, nil},
		{"a floor clears the places it passes", append(take(10), floor(Size+5), step{seq: Size + 10}), Size + 4, []frame.Range{{First: Size + 10, Last: Size + 10}}},
		{"the last number there is", []step{floor(Last), dup(Last - 1), {seq: Last}, dup(Last + 1), dup(math.MaxUint64)}, Last, nil},
		{"a floor beyond the last number", []step{floor(Last + 1), floor(math.MaxUint64), {seq: 1}}, 1, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var w Window
			m := model{taken: map[uint64]bool{}}
			for i, s := range c.steps {
				if s.seq == 0 && !s.seen {
					w.Resolve(s.resolve)
					m.resolve(s.resolve)
					continue
				}
				if w.Seen(s.seq) != s.seen || m.seen(s.seq) != s.seen {
					t.Fatalf("step %d: seen(%d) is %v, the model says %v", i, s.seq, w.Seen(s.seq), m.seen(s.seq))
				}
				if !s.seen {
					w.Take(s.seq)
					m.take(s.seq)
				}
			}
			if w.Cumulative() != c.cum || !reflect.DeepEqual(w.Ranges(nil), c.ranges) {
				t.Errorf("cumulative %d ranges %v, want %d %v", w.Cumulative(), w.Ranges(nil), c.cum, c.ranges)
			}
			m.compare(t, &w)
		})
	}
}

func TestShuffled(t *testing.T) {
	for _, start := range []uint64{1, 63, 64, 4090, 1 << 40} {
		var w Window
		w.Resolve(start)
		order := rand.New(rand.NewPCG(start, 8)).Perm(Size)
		for _, i := range order {
			seq := start + uint64(i)
			if w.Seen(seq) {
				t.Fatalf("from %d: %d is a duplicate at first sight", start, seq)
			}
			w.Take(seq)
			if !w.Seen(seq) {
				t.Fatalf("from %d: %d is new at second sight", start, seq)
			}
		}
		if w.Cumulative() != start+Size-1 || w.Ranges(nil) != nil {
			t.Errorf("from %d: cumulative %d, ranges %v", start, w.Cumulative(), w.Ranges(nil))
		}
	}
}

// As many runs as can be fit an ack.
func TestMostRanges(t *testing.T) {
	var w Window
	for seq := uint64(2); seq <= Size; seq += 2 {
		w.Take(seq)
	}
	rs := w.Ranges(nil)
	if len(rs) != frame.MaxRanges {
		t.Fatalf("%d ranges, want %d", len(rs), frame.MaxRanges)
	}
	a, err := frame.DecodeAck(0, frame.Ack{Ranges: rs}.AppendPayload(nil), nil)
	if err != nil || !reflect.DeepEqual(a.Ranges, rs) {
		t.Errorf("an ack does not carry them: %v", err)
	}
}

// Against a sender that keeps to the span: a first copy is always new, a
// second never, and what is acknowledged was taken or ended by the sender.
func TestHonestSender(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w Window
		m := model{taken: map[uint64]bool{}}
		floor, next := uint64(1), uint64(1)
		ended := map[uint64]bool{}
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0: // numbers are drawn, many or few, up to the span
				next += rapid.Uint64Range(0, floor+Size-next).Draw(t, "drawn")
			case 1: // some end, the lowest more often than others
				seq := floor + rapid.Uint64Range(0, 70).Draw(t, "ended")
				if seq < next {
					ended[seq] = true
				}
				for ended[floor] || floor < next && m.taken[floor] {
					floor++
				}
			default:
				if next == floor {
					continue
				}
				seq := rapid.Uint64Range(floor, next-1).Draw(t, "seq")
				w.Resolve(floor)
				m.resolve(floor)
				if w.Seen(seq) != m.taken[seq] {
					t.Fatalf("seen(%d) is %v, floor %d, next %d", seq, w.Seen(seq), floor, next)
				}
				if !m.taken[seq] {
					w.Take(seq)
					m.take(seq)
				}
			}
			m.compare(t, &w)
			for seq := floor; seq <= w.Cumulative(); seq++ {
				if !m.taken[seq] {
					t.Fatalf("%d is acknowledged, floor %d", seq, floor)
				}
			}
		}
	})
}

// hostileSeq is any number, most often one where something happens.
func hostileSeq(t *rapid.T, high uint64) uint64 {
	near := rapid.Uint64Range(0, 130).Draw(t, "near")
	switch rapid.IntRange(0, 7).Draw(t, "where") {
	case 0:
		return rapid.Uint64().Draw(t, "any")
	case 1:
		return math.MaxUint64 - near
	case 2:
		return Last + 65 - near
	case 3:
		return high - Size + 65 - near
	case 4:
		return high + Size + 65 - near
	case 5:
		return near
	default:
		return high + 65 - near
	}
}

// Whatever comes, no number is taken twice.
func TestHostileSender(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w Window
		m := model{taken: map[uint64]bool{}}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			seq := hostileSeq(t, m.high)
			if rapid.IntRange(0, 3).Draw(t, "what") == 0 {
				w.Resolve(seq)
				m.resolve(seq)
			} else {
				if w.Seen(seq) != m.seen(seq) {
					t.Fatalf("seen(%d) is %v, high %d", seq, w.Seen(seq), m.high)
				}
				if !w.Seen(seq) {
					if m.taken[seq] {
						t.Fatalf("%d is taken twice", seq)
					}
					w.Take(seq)
					m.take(seq)
				}
			}
			if w.Cumulative() > Last {
				t.Fatalf("cumulative %d", w.Cumulative())
			}
			m.compare(t, &w)
		}
	})
}

func FuzzWindow(f *testing.F) {
	f.Add([]byte{1, 2, 3, 255, 1, 200, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		var w Window
		m := model{taken: map[uint64]bool{}}
		for i := 0; i+1 < len(b) && i < 400; i += 2 {
			// Steps of up to two widths, and back.
			seq := m.high + uint64(b[i])*33 - uint64(b[i+1]&0xfe)*17
			if b[i+1]&1 != 0 {
				w.Resolve(seq)
				m.resolve(seq)
			} else if w.Seen(seq) != m.seen(seq) {
				t.Fatalf("seen(%d) is %v, high %d", seq, w.Seen(seq), m.high)
			} else if !m.seen(seq) {
				w.Take(seq)
				m.take(seq)
			}
		}
		m.compare(t, &w)
	})
}

func BenchmarkTake(b *testing.B) {
	var w Window
	b.ReportAllocs()
	for seq := uint64(1); b.Loop(); seq++ {
		if !w.Seen(seq) {
			w.Take(seq)
		}
	}
}

func BenchmarkRanges(b *testing.B) {
	for _, gaps := range []int{0, 1, 64, Size / 2} {
		b.Run(fmt.Sprint(gaps), func(b *testing.B) {
			var w Window
			w.Take(Size)
			for seq := uint64(2); seq < Size; seq++ {
				if gaps == 0 || seq%max(2, Size/uint64(gaps)) != 1 {
					if gaps != Size/2 || seq%2 == 0 {
						w.Take(seq)
					}
				}
			}
			buf := make([]frame.Range, 0, frame.MaxRanges)
			b.ReportAllocs()
			for b.Loop() {
				buf = w.Ranges(buf[:0])
			}
		})
	}
}
