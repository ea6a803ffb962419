package rdmatransport

import (
	"strings"
	"testing"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/simverbs"
	"github.com/hawser-transport/hawser/sdk"
)

// An end that only receives finds out that its queue pair has failed, on devices
// that have no word for it.
func TestASilentFailureIsFound(t *testing.T) {
	f := newFabric(t)
	a, b := f.nodeOf(t, f.soft(), patient), f.nodeOf(t, f.soft(), patient)
	for i, fail := range []func(simverbs.QPName) error{f.ToError, f.ToReset} {
		x, y := join(t, a, b, uint64(i+1))
		talk(t, x, y, 5)
		until(t, "it to have nothing under way, whose completion would tell", func() bool {
			y.e.mu.Lock()
			defer y.e.mu.Unlock()
			return y.e.consumed == 5 && y.e.posted == 0
		})
		must(t, fail(f.name(b, y.e)))
		if err := y.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable || !strings.Contains(err.Error(), "is in state") {
			t.Errorf("ended with %v", err)
		}
		x.Close()
		x.WaitEnded()
	}
}

// Queue pairs with completions are not asked, and of many quiet ones only some
// at a time, each of which has its turn.
func TestOnlyQuietQueuePairsAreAsked(t *testing.T) {
	d := &device{}
	d.table.init()
	const n = 4 * inspectMost
	all := make([]endpoint, n)
	for i := range all {
		all[i].num = uint32(i)
		all[i].active.Store(i%2 == 0)
		d.table.publish(&all[i])
	}
	list := d.quiet()
	if len(list) != inspectMost {
		t.Errorf("%d at a time", len(list))
	}
	for _, e := range list {
		if e.num%2 == 0 {
			t.Error("one with completions was asked")
		}
	}
	asked := map[*endpoint]bool{}
	for range 1000 {
		for _, e := range d.quiet() {
			asked[e] = true
		}
	}
	if len(asked) != n {
		t.Errorf("%d of %d had their turn", len(asked), n)
	}
}
