package rdmatransport

import (
	"log/slog"
	"testing"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
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

// onNothing makes an endpoint on verbs that do nothing. Its queue pair is 17.
func onNothing(t *testing.T) (*device, *endpoint, *nullPair) {
	t.Helper()
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
	t.Cleanup(d.watch.stop)
	return d, e, n
}

// A frame's way through the transport, out and in, allocates nothing; what is
// left is the race detector's sabotage of pools, per batch.
func TestNothingIsAllocatedPerFrame(t *testing.T) {
	const frames = 32
	d, e, n := onNothing(t)
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

// Completions count for the frames that they name, in whatever order, once, and
// not for a successor of the queue pair's number.
func TestCompletionsCountOnceForTheirFrame(t *testing.T) {
	d, e, n := onNothing(t)
	r := rigtest.NewRecorder(t)
	e.handler = r
	for id := uint64(1); id <= 3; id++ {
		if k, err := e.Send([]sdk.Frame{{ID: id, Data: []byte("x")}}, false); k != 1 || err != nil {
			t.Fatalf("Send: %d, %v", k, err)
		}
	}
	send := func(i int) verbs.WC { return verbs.WC{ID: n.posted[i], QP: 17} }
	earlier := send(0)
	earlier.ID = sendID(0, uint32(earlier.ID))
	for _, c := range []struct {
		wc   verbs.WC
		done uint64 // the frame
	}{
		{send(1), 2}, {send(1), 0}, {earlier, 0}, {send(2), 3}, {send(0), 1},
		{verbs.WC{ID: recvID | 5, QP: 17, Recv: true}, 0},
		{verbs.WC{ID: recvID | 64, QP: 17, Recv: true}, 0},
	} {
		late := d.late.Load()
		d.dispatch([]verbs.WC{c.wc})
		e.deliver()
		if c.done == 0 && c.wc.ID != recvID|5 && d.late.Load() != late+1 {
			t.Errorf("completion %#x was not seen to be late", c.wc.ID)
		}
		if _, ok := r.Outcome(c.done); c.done > 0 && !ok {
			t.Errorf("frame %d has no outcome", c.done)
		}
	}
	// A buffer that is with the endpoint cannot come again.
	_, _, ok := d.receives.take(recvID | 7)
	if _, _, again := d.receives.take(recvID | 7); !ok || again {
		t.Errorf("a buffer was taken: %v, and again: %v", ok, again)
	}
	if _, done, _ := r.Counts(); done != 3 || e.posted != 0 || d.slots.out != 0 {
		t.Errorf("%d frames are done, %d posted, %d slots out", done, e.posted, d.slots.out)
	}
}
