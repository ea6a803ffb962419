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
