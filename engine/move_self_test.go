//go:build linux

package engine

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// alone opens one engine with two regions, and a segment of itself.
func (w *world) alone(size int) (a *Engine, mine, other *Region, g *Segment, end func()) {
	return w.aloneWith(size, 4096)
}

// aloneWith is alone with another transfer.chunk_bytes.
func (w *world) aloneWith(size, chunk int) (a *Engine, mine, other *Region, g *Segment, end func()) {
	c := w.configs["a:1"]
	c.Transfer.ChunkBytes = chunk
	w.configs["a:1"] = c
	a = w.open("a:1")
	mine, other = w.region(a, size, RegionOptions{}), w.region(a, size, RegionOptions{})
	g = w.segment(a, "a:1")
	return a, mine, other, g, func() {
		_ = g.Close()
		w.shut(a)
		w.giveUp()
	}
}

// stopped keeps a segment's mover from copying, and returns what copies one chunk
// of its first op, and what lets it go on by itself.
func (g *Segment) stopped() (step, release func()) {
	m := &g.cur.mover
	m.mu.Lock()
	m.pumping = true
	m.mu.Unlock()
	step = func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		o, _ := m.queue.next()
		m.queue.take()
		m.copyLocked(o)
	}
	return step, func() {
		m.mu.Lock()
		m.pumping = false
		m.pumpLocked()
		m.mu.Unlock()
	}
}

// Scenario 12 of transfers: between one's own regions, with the notification
// after the data, and without a transport.
func TestTransfersToOneself(t *testing.T) {
	moving(t, func(w *world) {
		const size = 10*4096 + 5
		a, mine, other, g, end := w.alone(2 * size)
		defer end()
		fill(mine.Bytes()[:size], 1)
		x := w.submit(a, SubmitOptions{Notification: &Notification{Name: "written", Payload: []byte("payload of written")}},
			Op{Kind: Write, Local: mine, Segment: g, Address: other.Address() + 7, Length: size})
		w.expect(a, "written")
		if err := w.done(x); err != nil || !bytes.Equal(other.Bytes()[7:7+size], filled(size, 1)) {
			t.Fatalf("written: %v", err)
		}
		x = w.submit(a, SubmitOptions{}, Op{
			Kind: Read, Local: mine, LocalOffset: size, Segment: g, Address: other.Address() + 7, Capability: other.Capability(), Length: size,
		})
		if err := w.done(x); err != nil || !bytes.Equal(mine.Bytes()[size:], filled(size, 1)) {
			t.Fatalf("read: %v", err)
		}
		if p := x.Progress(); p.Bytes != size || p.Total != size || p.Done != 1 {
			t.Errorf("%+v", p)
		}
		// What is registered later is found, too, and within one region.
		late := w.region(a, size, RegionOptions{})
		if err := w.write(a, mine, late, g, size); err != nil || !bytes.Equal(late.Bytes(), filled(size, 1)) {
			t.Errorf("a later region: %v", err)
		}
		if b, _, err := g.Buffers(context.Background()); err != nil || len(b) != 3 {
			t.Errorf("%+v, %v", b, err)
		}
		if s := a.Stats(); s.OpsDone != 3 || s.BytesMoved != 3*size || a.stats.local.moved.Load() != 3*size || s.Connects != 0 || s.Mappings != 0 || w.fast.Counters().Moved+w.slow.Counters().Moved != 0 {
			t.Errorf("%+v", s)
		}
		if err := late.Close(context.Background()); err != nil {
			t.Errorf("%v", err)
		}
		if err := w.write(a, mine, late, g, 1); !errors.Is(err, StaleCapability) || !errors.Is(err, NotSent) {
			t.Errorf("a closed region: %v", err)
		}
	})
}

func TestATransferToOneselfIsChecked(t *testing.T) {
	moving(t, func(w *world) {
		a, mine, other, g, end := w.alone(100)
		defer end()
		fixed, hidden := w.region(a, 100, RegionOptions{ReadOnly: true}), w.region(a, 100, RegionOptions{Private: true})
		good := Op{Kind: Write, Local: mine, Segment: g, Address: other.Address(), Length: 50}
		with := func(f func(*Op)) Op { o := good; f(&o); return o }
		ops := []Op{
			good,
			with(func(o *Op) { o.Address = fixed.Address() }),
			with(func(o *Op) { o.Address, o.Kind = fixed.Address(), Read }),
			with(func(o *Op) { o.Address = hidden.Address() }),
			with(func(o *Op) { o.Address += 51 }),
			with(func(o *Op) { o.Capability = fixed.Capability() }),
			with(func(o *Op) { o.Event = &[sdk.EventBytes]byte{} }),
			with(func(o *Op) { o.Address = mine.Address() + 49 }),
			with(func(o *Op) { o.Address, o.LocalOffset = mine.Address(), 49 }),
			with(func(o *Op) { o.Address = mine.Address() + 50 }),
		}
		x := w.submit(a, SubmitOptions{}, ops...)
		_ = w.done(x)
		want := []Code{0, Refused, 0, StaleCapability, StaleCapability, StaleCapability, Unsupported, InvalidArgument, InvalidArgument, 0}
		for i, got := range x.Results() {
			if want[i] == 0 && got != nil || want[i] != 0 && (!errors.Is(got, want[i]) || !errors.Is(got, NotSent)) {
				t.Errorf("op %d: %v, want %v", i, got, want[i])
			}
		}
		// A descriptor that says too much does not make memory.
		for _, tt := range []struct {
			o      op
			remote *Region
			want   Code
		}{
			{op{kind: Write, local: mine, length: 100}, other, 0},
			{op{kind: Write, local: mine, length: 100, offset: 1}, other, StaleCapability},
			{op{kind: Write, local: mine, length: 1, offset: ^uint64(0)}, other, StaleCapability},
			{op{kind: Write, local: mine, length: 1}, fixed, Refused},
			{op{kind: Read, local: mine, length: 1}, fixed, 0},
			{op{kind: Read, local: mine, length: 1}, &Region{}, Unsupported}, // a GPU's
			{op{kind: Write, local: &Region{}, length: 1}, other, Unsupported},
		} {
			if err := tt.o.copies(tt.remote); tt.want == 0 && err != nil || tt.want != 0 && !errors.Is(err, tt.want) {
				t.Errorf("%+v: %v, want %v", tt.o, err, tt.want)
			}
		}
	})
}

// Close of a region waits for a transfer of one's own, which gets no further
// piece; an operator's word that the consumer is gone takes no memory from under
// a copy.
func TestCloseAndTransfersToOneself(t *testing.T) {
	for _, retired := range []bool{false, true} {
		moving(t, func(w *world) {
			const size = 3 * 4096
			a, mine, other, g, end := w.alone(size)
			defer end()
			fill(mine.Bytes(), 3)
			step, release := g.stopped()
			x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: other.Address(), Length: size})
			step()
			if p := x.Progress(); p.Bytes != 4096 || !bytes.Equal(other.Bytes()[:4096], mine.Bytes()[:4096]) {
				t.Fatalf("%+v", p)
			}
			short, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if err := other.Close(short); !errors.Is(err, Busy) || !strings.Contains(err.Error(), "this engine's transfers to itself") {
				t.Errorf("%v", err)
			}
			if retired {
				if _, err := a.RetireMappings(context.Background(), "a:1"); err != nil {
					t.Error(err)
				}
				if err := other.Close(context.Background()); err != nil {
					t.Error(err)
				}
			}
			release()
			if err := w.done(x); !errors.Is(err, StaleCapability) || errors.Is(err, NotSent) {
				t.Errorf("%v", err)
			}
			if err := other.Close(context.Background()); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			if list, n := a.Mappings(), a.memory.leases.Len(); len(list)+n != 0 {
				t.Errorf("left: %+v, %d leases", list, n)
			}
		})
	}
}

// Small ops do not wait for all of a large one; deadlines and Cancel end ops
// between two pieces.
func TestTransfersToOneselfTakeTurnsAndEnd(t *testing.T) {
	moving(t, func(w *world) {
		const size = 16 * 4096
		a, mine, other, g, end := w.alone(size)
		defer end()
		step, release := g.stopped()
		op := func(n uint64) Op {
			return Op{Kind: Write, Local: mine, Segment: g, Address: other.Address(), Length: n}
		}
		large, small := w.submit(a, SubmitOptions{}, op(size)), w.submit(a, SubmitOptions{}, op(4096))
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		late, err := a.Submit(ctx, []Op{op(size)}, SubmitOptions{})
		if err != nil {
			t.Fatal(err)
		}
		step()
		step()
		step()
		if err := small.Wait(ctx); err != nil || isClosed(large.Done()) || large.Progress().Bytes != 4096 {
			t.Errorf("%v, %+v", err, large.Progress())
		}
		large.Cancel()
		if err := w.done(large); !errors.Is(err, context.Canceled) || errors.Is(err, NotSent) {
			t.Errorf("%v", err)
		}
		began := time.Now()
		if err := w.done(late); !errors.Is(err, DeadlineExceeded) || time.Since(began) > time.Second {
			t.Errorf("%v", err)
		}
		if p := late.Progress(); p.Bytes != 4096 || p.Failed != 1 {
			t.Errorf("%+v", p)
		}
		release()
		synctest.Wait()
		if n := a.Stats().BytesMoved; n != 3*4096 || a.memory.leases.Len() != 0 {
			t.Errorf("%d bytes, %d leases", n, a.memory.leases.Len())
		}
	})
}

// Pieces are small also where nothing is configured: transports have a largest one
// of their own, and a copy has no transport.
func TestCopiesToOneselfAreCut(t *testing.T) {
	moving(t, func(w *world) {
		const size = 8 << 20
		a, mine, other, g, end := w.aloneWith(size, 0)
		defer end()
		step, release := g.stopped()
		x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: other.Address(), Length: size})
		step()
		if p := x.Progress(); p.Bytes != size/2 {
			t.Errorf("%+v", p)
		}
		release()
		if err := w.done(x); err != nil {
			t.Error(err)
		}
	})
}

// A copy that is under way when the engine is closed has its memory until it has
// ended, although its op is reported.
func TestACopyThatIsAbortedKeepsItsMemory(t *testing.T) {
	moving(t, func(w *world) {
		a, mine, other, g, end := w.alone(100)
		defer end()
		_, release := g.stopped()
		x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: other.Address(), Length: 100})
		m := &g.cur.mover
		m.mu.Lock()
		o, _ := m.queue.next()
		o.posted = 1 // as copyLocked does
		m.mu.Unlock()
		m.abort()
		if n := a.memory.leases.Held(mine); n != 1 || !isClosed(x.Done()) {
			t.Errorf("%d leases; ended: %v", n, x.Results())
		}
		m.mu.Lock()
		o.posted = 0
		m.settleLocked(o)
		m.mu.Unlock()
		if n := a.memory.leases.Held(mine); n != 0 {
			t.Errorf("%d leases are left", n)
		}
		release()
	})
}
