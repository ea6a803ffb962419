package spread

import "testing"

func up(transport, ops int, bytes uint64) Way {
	return Way{Transport: transport, State: Up, Able: true, MaxOp: 100, Ops: ops, MaxOps: 4, Bytes: bytes, MaxBytes: 300}
}

func way(transport int, s State) Way {
	return Way{Transport: transport, State: s, Able: true, MaxOp: 100, MaxOps: 4, MaxBytes: 300}
}

func with(w Way, f func(*Way)) Way { f(&w); return w }

func TestChoose(t *testing.T) {
	shunned := func(w Way) Way { w.Shunned = true; return w }
	unable := func(w Way) Way { w.Able = false; return w }
	avoid := func(w Way) Way { w.Avoid = true; return w }
	for _, tt := range []struct {
		name string
		ways []Way
		want Choice
	}{
		{"none", nil, Choice{-1, -1, false}},
		{"idle", []Way{way(0, Idle)}, Choice{-1, 0, true}},
		{"connecting", []Way{way(0, Connecting), way(1, Up)}, Choice{-1, -1, true}},
		{"up", []Way{up(0, 0, 0)}, Choice{0, -1, true}},
		{"an idle lane beside an idle endpoint is left alone", []Way{up(0, 0, 0), way(0, Idle)}, Choice{0, -1, true}},
		{"a lane more beside a busy endpoint", []Way{up(0, 1, 100), way(0, Idle), way(0, Idle)}, Choice{0, 1, true}},
		{"one at a time", []Way{up(0, 1, 100), way(0, Connecting), way(0, Idle)}, Choice{0, -1, true}},
		{"a lane more beside a full endpoint", []Way{up(0, 4, 100), way(0, Idle)}, Choice{-1, 1, true}},
		{"fewest bytes", []Way{up(0, 2, 200), up(0, 1, 100), up(0, 3, 150)}, Choice{1, -1, true}},
		{"full: the next transport waits", []Way{up(0, 4, 100), up(1, 0, 0)}, Choice{-1, -1, true}},
		{"bytes are full", []Way{up(0, 3, 250), up(1, 0, 0)}, Choice{-1, -1, true}},
		{"one always fits", []Way{with(way(0, Up), func(w *Way) { w.MaxBytes = 10 })}, Choice{0, -1, true}},
		{"shunned: the next transport", []Way{shunned(up(0, 0, 0)), up(1, 0, 0)}, Choice{1, -1, true}},
		{"shunned path: the other one", []Way{shunned(up(0, 0, 0)), way(0, Idle), up(1, 0, 0)}, Choice{-1, 1, true}},
		{"unable: the next transport", []Way{unable(up(0, 0, 0)), way(1, Idle)}, Choice{-1, 1, true}},
		{"all shunned", []Way{shunned(up(0, 0, 0)), shunned(way(1, Idle))}, Choice{-1, -1, false}},
		{"avoid", []Way{avoid(up(0, 0, 0)), up(1, 0, 0)}, Choice{1, -1, true}},
		{"avoid, but there is no other", []Way{avoid(up(0, 0, 0)), shunned(up(1, 0, 0))}, Choice{0, -1, true}},
	} {
		if got := Choose(tt.ways, 100, 100); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestSizesAndSpans(t *testing.T) {
	w := way(0, Up)
	for _, tt := range [][3]uint64{{1000, 50, 50}, {1000, 500, 100}, {7, 50, 7}} {
		if got := Size(&w, tt[0], tt[1]); got != tt[2] {
			t.Errorf("%d left, chunks of %d: %d, want %d", tt[0], tt[1], got, tt[2])
		}
	}
	rest := Span{Offset: 10, Length: 250, Tries: 2, Avoid: 3}
	var piece Span
	var offsets, lengths []uint64
	for rest.Length > 0 {
		piece, rest = rest.Cut(100)
		offsets, lengths = append(offsets, piece.Offset), append(lengths, piece.Length)
		if piece.Tries != 2 || piece.Avoid != 3 {
			t.Errorf("%+v", piece)
		}
	}
	if len(offsets) != 3 || offsets[2] != 210 || lengths[0] != 100 || lengths[2] != 50 {
		t.Errorf("%v %v", offsets, lengths)
	}
}
