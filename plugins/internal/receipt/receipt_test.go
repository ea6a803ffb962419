package receipt

import (
	"slices"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
)

func ids(cs []sdk.Completion) (out []uint64) {
	for _, c := range cs {
		out = append(out, c.ID)
	}
	return out
}

func TestOutstanding(t *testing.T) {
	var o Outstanding
	next, want := uint64(1), []uint64{}
	// Round and round the ring, growing it on the way.
	for round := range 50 {
		for range round + 3 {
			o.Push(2 * next)
			want = append(want, 2*next)
			next++
		}
		take := round + 1
		cs, err := o.Receipt(o.taken+uint64(take), nil)
		if err != nil || !slices.Equal(ids(cs), want[:take]) {
			t.Fatalf("round %d: %v, %v", round, ids(cs), err)
		}
		want = want[take:]
	}
	if _, err := o.Receipt(o.taken+uint64(o.n)+1, nil); err == nil {
		t.Error("a receipt for more than was sent")
	}
	if _, err := o.Receipt(o.taken-1, nil); err == nil {
		t.Error("a receipt that goes back")
	}
	if _, err := o.Receipt(^uint64(0), nil); err == nil {
		t.Error("a receipt that overflows")
	}
	cs := o.Withdraw(3, sdk.Closed, nil)
	if !slices.Equal(ids(cs), want[len(want)-3:]) || cs[0].Outcome != sdk.NotPosted || cs[0].Code != sdk.Closed {
		t.Errorf("withdrawn %v, want %v", cs, want[len(want)-3:])
	}
	if n := o.Len(); n != len(want)-3 {
		t.Errorf("%d outstanding, want %d", n, len(want)-3)
	}
	if cs := o.Withdraw(1000, sdk.Closed, nil); len(cs) != len(want)-3 || o.Len() != 0 {
		t.Errorf("%d withdrawn, %d left", len(cs), o.Len())
	}
}

func TestOwed(t *testing.T) {
	var o Owed
	o.Add(dueFrames-1, 10)
	if !o.Any() || o.Due() {
		t.Error("due too early")
	}
	o.Add(1, 0)
	if !o.Due() {
		t.Error("not due by frames")
	}
	if n := o.Take(); n != dueFrames || o.Any() {
		t.Errorf("took %d", n)
	}
	o.Add(1, dueBytes)
	if n := o.Take(); n != dueFrames+1 {
		t.Errorf("not cumulative: %d", n)
	}
}
