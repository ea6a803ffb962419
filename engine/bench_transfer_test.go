//go:build linux

package engine

import (
	"context"
	"fmt"
	"testing"
)

// BenchmarkSubmit is a transfer of one op from Submit to its end, many under
// way, over an in-memory transport: what the engine itself costs, for an op of
// one piece and for one of many.
func BenchmarkSubmit(b *testing.B) {
	for _, pieces := range []int{1, 64} {
		b.Run(fmt.Sprint("pieces=", pieces), func(b *testing.B) { benchmarkSubmit(b, pieces) })
	}
}

func benchmarkSubmit(b *testing.B, pieces int) {
	from, to := benchmarked(b, nil, nil)
	const piece = 256
	from.cfg.Transfer.ChunkBytes = piece
	size := pieces * piece
	here, err := from.AllocateHost(size, RegionOptions{})
	if err != nil {
		b.Fatal(err)
	}
	there, err := to.AllocateHost(size, RegionOptions{})
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	g, err := from.OpenSegment(ctx, "b:1")
	if err != nil {
		b.Fatal(err)
	}
	op := []Op{{Kind: Write, Local: here, Segment: g, Address: there.Address(), Length: uint64(size)}}
	const window = 16
	var under [window]*Transfer
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if t := under[i%window]; t != nil {
			if err := t.Wait(ctx); err != nil {
				b.Fatal(err)
			}
		}
		if under[i%window], err = from.Submit(ctx, op, SubmitOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSubmitMany is a transfer of the most ops that there may be, from its
// Submit to its end, between ever more pairs of regions.
func BenchmarkSubmitMany(b *testing.B) {
	for _, regions := range []int{1, 16, 256} {
		b.Run(fmt.Sprint("regions=", regions), func(b *testing.B) { benchmarkSubmitMany(b, regions) })
	}
}

func benchmarkSubmitMany(b *testing.B, regions int) {
	from, to := benchmarked(b, nil, nil)
	var here, there []*Region
	for _, x := range []struct {
		e    *Engine
		list *[]*Region
	}{{from, &here}, {to, &there}} {
		for range regions {
			r, err := x.e.AllocateHost(4096, RegionOptions{})
			if err != nil {
				b.Fatal(err)
			}
			*x.list = append(*x.list, r)
		}
	}
	ctx := context.Background()
	g, err := from.OpenSegment(ctx, "b:1")
	if err != nil {
		b.Fatal(err)
	}
	ops := make([]Op, maxOps)
	for i := range ops {
		ops[i] = Op{Kind: Write, Local: here[i%regions], Segment: g, Address: there[i/regions%regions].Address(), Length: 1}
	}
	b.ReportAllocs()
	for b.Loop() {
		t, err := from.Submit(ctx, ops, SubmitOptions{})
		if err == nil {
			err = t.Wait(ctx)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
