//go:build linux

package engine

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// memoryCases make what has to do with memory fire, one by one.
func memoryCases() []metricCase {
	var list []metricCase
	add := func(name, at string, prepare func(*world), fire func(*world, *Engine, *Engine, *Region, *Region, *Segment), want ...string) {
		list = append(list, metricCase{name, at, func(t *testing.T, w *world, a, b *Engine) {
			mine, theirs := w.region(a, 100, RegionOptions{}), w.region(b, 100, RegionOptions{})
			g := w.segment(a, "b:1")
			if err := w.write(a, mine, theirs, g, 1); err != nil {
				t.Fatal(err)
			}
			fire(w, a, b, mine, theirs, g)
		}, want, func(w *world) {
			w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast", Moves: true})
			w.slow = sdktest.NewFabric(sdktest.FabricOptions{Name: rpcFallbackName, Moves: true})
			if prepare != nil {
				prepare(w)
			}
		}})
	}
	short := func(d time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		_ = cancel // in fake time it ends by itself
		return ctx
	}
	held := func(w *world, a *Engine, mine, theirs *Region, g *Segment) *Transfer {
		w.fast.HoldWrites("b:1", true)
		x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
		synctest.Wait()
		return x
	}
	unknown := func(w *world, a, b *Engine, mine, theirs *Region, g *Segment) {
		x := held(w, a, mine, theirs, g)
		m := &a.memory.source(b.incarnation).mover
		m.mu.Lock()
		ch := m.lanes[laneKey{"fast", "p0", 0}].ch
		m.mu.Unlock()
		ch.Completed([]sdk.Completion{{ID: ch.last, Outcome: sdk.Unknown, Code: Unavailable}})
		_ = w.done(x)
	}
	nothing := func(*world, *Engine, *Engine, *Region, *Region, *Segment) {}

	add("memory: a transfer", "", nil, nothing,
		"hawser_transfers_total", "hawser_transfer_ops_total{end=done}", "hawser_transfer_bytes_total{transport=fast}",
		"hawser_transfer_chunks_total{event=posted}", "hawser_regions", "hawser_region_registrations_total{result=registered}",
		"hawser_memory_endpoints_total{event=connected}", "hawser_descriptors_total{event=fetched}", "hawser_mappings")
	add("memory: a peer's transfer", "b:1", nil, nothing,
		"hawser_memory_endpoints_total{event=accepted}", "hawser_descriptors_total{event=served}")
	add("memory: nothing new", "b:1", nil, func(w *world, _, _ *Engine, _, _ *Region, g *Segment) {
		if err := g.Refresh(context.Background()); err != nil {
			w.t.Error(err)
		}
	}, "hawser_descriptors_total{event=unchanged}")
	add("memory: a change", "b:1", nil, func(w *world, _, b *Engine, _, _ *Region, _ *Segment) {
		w.region(b, 1, RegionOptions{})
		time.Sleep(time.Second)
	}, "hawser_descriptors_total{event=told}")
	add("memory: a change, and nobody to tell", "b:1", nil, func(w *world, _, b *Engine, _, _ *Region, _ *Segment) {
		w.network.Silence("b:1", "a:1", true)
		w.region(b, 1, RegionOptions{})
		time.Sleep(time.Minute)
	}, "hawser_descriptors_total{event=not_told}")
	add("memory: no answer", "", nil, func(w *world, _, _ *Engine, _, _ *Region, g *Segment) {
		w.network.Silence("a:1", "b:1", true)
		_ = g.Refresh(context.Background())
	}, "hawser_descriptors_total{event=not_fetched}")
	add("memory: under way", "", nil, func(w *world, a, _ *Engine, mine, theirs *Region, g *Segment) {
		held(w, a, mine, theirs, g)
	}, "hawser_transfers_pending")
	add("memory: stale", "", nil, func(w *world, a, b *Engine, mine, theirs *Region, g *Segment) {
		b.memory.forget(a.incarnation)
		_ = theirs.Close(context.Background())
		x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
		_ = w.done(x)
	}, "hawser_transfer_chunks_total{event=not_posted}", "hawser_transfer_ops_total{end=failed}")
	add("memory: no such range", "", nil, func(w *world, a, _ *Engine, mine, theirs *Region, g *Segment) {
		_ = w.done(w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address() + 1, Length: 100}))
	}, "hawser_transfer_ops_total{end=not_sent}")
	add("memory: an unknown outcome of a piece", "", nil, unknown,
		"hawser_transfer_chunks_total{event=unknown}", "hawser_transfer_chunks_total{event=repeated}",
		"hawser_fences_total{event=begun}", "hawser_fences_total{event=confirmed}")
	add("memory: a fence for a peer", "b:1", nil, unknown, "hawser_fences_total{event=answered}")
	add("memory: no outcome", "", nil, func(w *world, a, _ *Engine, mine, theirs *Region, g *Segment) {
		held(w, a, mine, theirs, g)
		time.Sleep(2 * stalledAfter)
	}, "hawser_memory_endpoints_total{event=stalled}")
	add("memory: an unknown outcome", "", nil, func(w *world, a, _ *Engine, mine, theirs *Region, g *Segment) {
		w.fast.HoldWrites("b:1", true)
		w.network.Silence("a:1", "b:1", true)
		x, err := a.Submit(short(time.Second), []Op{{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100}}, SubmitOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
		_ = w.done(x)
	}, "hawser_transfer_ops_total{end=outcome_unknown}", "hawser_transfer_ops_unresolved", "hawser_fences_total{event=not_confirmed}",
		"hawser_events_total{event=transfers_unresolved}")
	add("memory: an unknown outcome that is known in the end", "", nil, func(w *world, a, _ *Engine, mine, theirs *Region, g *Segment) {
		w.fast.HoldWrites("b:1", true)
		w.network.Silence("a:1", "b:1", true)
		x, err := a.Submit(short(time.Second), []Op{{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100}}, SubmitOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
		_ = w.done(x)
		w.network.Silence("a:1", "b:1", false)
		time.Sleep(time.Minute)
	}, "hawser_events_total{event=transfers_resolved}")
	add("memory: a region is held, and released", "b:1", nil, func(w *world, a, b *Engine, mine, theirs *Region, g *Segment) {
		x := held(w, a, mine, theirs, g)
		if err := theirs.Close(short(time.Second)); err == nil {
			w.t.Error("closed")
		}
		w.fast.HoldWrites("b:1", false)
		_ = w.done(x)
		if err := theirs.Close(context.Background()); err != nil {
			w.t.Error(err)
		}
	}, "hawser_events_total{event=region_held}", "hawser_events_total{event=region_released}")
	add("memory: a transport refuses a region", "a:1", func(w *world) {
		var busy atomic.Value
		busy.Store(Busy)
		w.configs["a:1"] = Config{Transports: []TransportConfig{
			{Name: "fast", InProcess: func() sdk.Transport { return w.fast.New("a:1") }},
			{Name: "strict", InProcess: func() sdk.Transport {
				n := sdktest.NewFabric(sdktest.FabricOptions{Name: "strict", Moves: true}).New("a:1")
				return refuser{n, n.(sdk.Mover), &busy}
			}},
		}}
	}, nothing, "hawser_events_total{event=region_refused}")
	var first func() *undying
	add("memory: a plugin that does not go", "b:1", func(w *world) { first = w.undying("b:1") },
		func(w *world, a, b *Engine, mine, theirs *Region, g *Segment) {
			m := &a.memory.source(b.incarnation).mover
			m.mu.Lock()
			generation := m.lanes[laneKey{"fast", "p0", 0}].generation
			m.mu.Unlock()
			w.fast.Kill("b:1")
			synctest.Wait()
			err := (&answers{b, make(chan struct{})}).Fence(short(time.Second), control.FenceRequest{
				From: a.incarnation, To: b.incarnation, Transport: "fast", Path: "p0", Generation: generation,
			})
			if err == nil {
				w.t.Error("fenced")
			}
			w.letGo(first)
		}, "hawser_fences_total{event=waited}", "hawser_fences_total{event=not_answered}")
	add("memory: nobody takes it", "", nil, func(w *world, a, _ *Engine, _, _ *Region, _ *Segment) {
		_, err := a.RegisterHandle(ExportedMemory{HandleKind: sdk.IPCHandle, Handle: make([]byte, 64), Address: 1 << 30, Length: 1, Allocation: 1}, RegionOptions{})
		if err == nil {
			w.t.Error("taken")
		}
	}, "hawser_region_registrations_total{result=refused}")
	add("memory: a region is closed", "", nil, func(w *world, _, _ *Engine, mine, _ *Region, _ *Segment) {
		if err := mine.Close(context.Background()); err != nil {
			w.t.Error(err)
		}
	}, "hawser_regions_closed_total")
	add("memory: idle", "", func(w *world) {
		c := w.configs["a:1"]
		c.Memory.MappingIdleSecs = 1
		w.configs["a:1"] = c
	}, func(*world, *Engine, *Engine, *Region, *Region, *Segment) { time.Sleep(time.Minute) }, "hawser_mappings_idle_total")
	return list
}
