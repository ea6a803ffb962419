//go:build linux

package mnnvltransport

import (
	"testing"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/internal/cuda/simcuda"
	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/sdk"
)

// TestOlderDescriptors: without capabilities a mapping stays from one descriptor
// to the next only if its handle says that the memory is the same: fabric's does,
// the others' bytes repeat.
func TestOlderDescriptors(t *testing.T) {
	each(t, func(t *testing.T, kind cuda.Kind) {
		const size = 4096
		l := newLab(t, func(*simcuda.Options) {})
		l.kinds = []cuda.Kind{kind}
		consumer := l.transport(t)
		a, b := l.start(t, consumer, 1), l.start(t, l.transport(t), 2)
		mine, theirs := l.on(t, 0, size), l.on(t, 1, size)
		here, there := a.register(t, mine, true, 1<<40, 1), b.register(t, theirs, true, 1<<41, 1)
		w := connect(t, a, b)
		imported := func() uint64 { return consumer.devices[0].cache.Stats().Totals.Imported }
		read := func(r publishedRegion, want byte) {
			t.Helper()
			r.Capability = sdk.Capability{}
			a.announce(t, r)
			w.must(opOf(sdk.Read, here, r, size))
			if x, y := bytesOf(t, mine, size); x != want || y != want {
				t.Errorf("version %d: read %x..%x, want %x", r.Version, x, y, want)
			}
		}
		fill(t, theirs, 1, size)
		read(there, 1)
		before := imported()
		there.Version = 2
		read(there, 1)
		if kept := imported() == before; kept != (kind == cuda.Fabric) {
			t.Errorf("with the next descriptor of the same memory the mapping was kept: %t", kept)
		}
		// Other memory at the same address, whose handle's bytes may be the same.
		old := there.Attributes[attrHandle]
		if err := a.mover.Withdraw(rigtest.Context(t), b.Inc, sdk.Capability{}); err != nil {
			t.Fatal(err)
		}
		there.deregister(t)
		if err := theirs.free(); err != nil {
			t.Fatal(err)
		}
		theirs = l.on(t, 1, size)
		fill(t, theirs, 2, size)
		next := b.register(t, theirs, true, 1<<41, 3)
		if kind == cuda.IPC && next.Attributes[attrHandle] != old {
			t.Error("the handle is another one: this shows nothing")
		}
		read(next, 2)
	})
}
