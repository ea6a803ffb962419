package engine

import (
	"errors"
	"slices"
	"testing"

	"github.com/hawser-transport/hawser/engine/internal/spread"
)

// queued makes an op on a region here and one at the peer.
func queued(q *turns, local *Region, base uint64) *op {
	o := &op{local: local, key: bufferKey{base: base}, spans: []spread.Span{{Length: 1}}}
	q.add(o)
	return o
}

// looked takes all that is to be looked at, finds that it has to wait, and
// returns how many groups there were.
func looked(q *turns, full bool) (seen []*op) {
	for o, g := q.next(); o != nil; o, g = q.next() {
		seen = append(seen, o)
		g.full = full
		q.setAside()
	}
	return seen
}

// Groups that wait are looked at for a reason: the first ones where there may be
// room, and all where something else has changed.
func TestGroupsThatWaitAreLookedAtForAReason(t *testing.T) {
	var q turns
	var all []*op
	for i := range uint64(3 * maxWaiting) {
		all = append(all, queued(&q, &Region{}, i%maxWaiting))
	}
	if seen := looked(&q, true); !slices.Equal(seen, all) {
		t.Fatalf("%d of %d, or not in turn", len(seen), len(all))
	}
	more := &op{local: all[0].local, key: all[0].key, spans: []spread.Span{{Length: 1}}}
	q.add(more) // waits with its group
	next := queued(&q, &Region{}, maxWaiting)
	if seen := looked(&q, false); !slices.Equal(seen, []*op{next}) {
		t.Errorf("%d groups are looked at for a new one", len(seen))
	}
	q.room()
	if seen := looked(&q, true); !slices.Equal(seen, all[:maxWaiting]) {
		t.Errorf("%d groups are looked at for room, or not the first", len(seen))
	}
	q.of(bufferKey{base: 7})
	if seen := looked(&q, false); !slices.Equal(seen, []*op{all[7], all[7+maxWaiting], all[7+2*maxWaiting]}) {
		t.Errorf("%d groups are looked at for a region", len(seen))
	}
	q.all()
	if seen := looked(&q, true); !slices.Equal(seen, append(slices.Clone(all), next)) {
		t.Errorf("%d groups of %d are looked at, or not in turn", len(seen), len(all)+1)
	}
}

// Ops that end behind one that waits are not kept.
func TestEndedOpsAreNotKeptBehindOneThatWaits(t *testing.T) {
	var q turns
	region := &Region{}
	first := queued(&q, region, 0)
	for range 100 * maxWaiting {
		queued(&q, region, 0).err = errors.New("cancelled")
		q.all()
		looked(&q, true)
	}
	if n := len(first.group.ops); n > 3*maxWaiting {
		t.Errorf("%d ops are kept", n)
	}
	last := queued(&q, region, 0)
	q.all()
	if o, _ := q.next(); o != first {
		t.Error("the first op has lost its turn")
	}
	q.take()
	if o, _ := q.next(); o != last {
		t.Error("the last op is lost")
	}
}
