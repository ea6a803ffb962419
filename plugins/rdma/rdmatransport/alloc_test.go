package rdmatransport

import (
	"log/slog"
	"testing"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/sdk"
)

// Verbs that take everything and do nothing. They embed what nobody calls.
type nullPair struct {
	verbs.QP
	posted []uint64
}

type nullDomain struct{ verbs.PD }

type nullRegion struct{ verbs.MR }

func (nullRegion) LKey() uint32 { return 1 }

type nullReceives struct{ verbs.SRQ }

func (nullReceives) Post(wrs []verbs.RecvWR) (int, error) { return len(wrs), nil }

func (nullDomain) RegisterMemory([]byte, verbs.Access) (verbs.MR, error) { return nullRegion{}, nil }
func (nullDomain) CreateSRQ(int) (verbs.SRQ, error)                      { return nullReceives{}, nil }

func (n *nullPair) Post(wrs []verbs.SendWR) (int, error) {
	for i := range wrs {
		n.posted = append(n.posted, wrs[i].ID)
	}
	return len(wrs), nil
}

// A frame's way through the transport, out and in, allocates nothing; what is
// left is the race detector's sabotage of pools, per batch.
func TestNothingIsAllocatedPerFrame(t *testing.T) {
	const frames = 32
	s, err := parseSettings(nil)
	must(t, err)
	n := &nullPair{}
	d := &device{settings: &s, log: slog.New(slog.DiscardHandler), depth: 256}
	d.batches.New = func() any { return new([postBatch]verbs.SendWR) }
	d.parcels.New = func() any { return new(parcel) }
	d.table.init()
	d.slots = &slots{pd: nullDomain{}, most: 1 << 20, short: func(err error) { t.Error(err) }}
	d.receives, err = newReceives(nullDomain{}, 64)
	must(t, err)
	d.room.Store(1000)
	e := &endpoint{d: d, handler: discard{}, qp: n, num: 17, serial: 1, wake: make(chan struct{}, 1), joined: true, edge: 1 << 40, granted: 1 << 40}
	d.table.publish(e)
	defer d.watch.stop()

	out := make([]sdk.Frame, frames)
	for i := range out {
		out[i].Data = make([]byte, 200)
	}
	wcs := make([]verbs.WC, 0, 2*frames)
	perBatch := testing.AllocsPerRun(200, func() {
		n.posted = n.posted[:0]
		if k, err := e.Send(out, false); k != frames || err != nil {
			t.Fatalf("Send: %d, %v", k, err)
		}
		wcs = wcs[:0]
		for i, id := range n.posted {
			wcs = append(wcs, verbs.WC{ID: id, QP: 17}, verbs.WC{ID: recvID | uint64(i), QP: 17, Length: 200, Recv: true})
		}
		d.dispatch(wcs)
		e.deliver()
	})
	t.Logf("%.1f allocations per batch of %d frames out and %d in", perBatch, frames, frames)
	if perBatch >= frames {
		t.Errorf("%.1f allocations per batch of %d frames", perBatch, frames)
	}
	if d.late.Load() != 0 {
		t.Errorf("%d completions were nobody's", d.late.Load())
	}
}
