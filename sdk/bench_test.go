//go:build linux

package sdk_test

import (
	"context"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
)

// pong is a Handler that reports each frame that came.
type pong struct{ came chan int }

func (pong) Completed([]sdk.Completion) {}
func (p pong) Received(frames [][]byte) { p.came <- len(frames) }
func (pong) Ended(error)                {}

// BenchmarkBoundary is a frame from a host to a plugin's transport and back,
// without a window, as at protocol 2: alone, and 64 at a time.
func BenchmarkBoundary(b *testing.B) {
	for name, burst := range map[string]int{"alone": 1, "burst": 64} {
		b.Run(name, func(b *testing.B) {
			var t testing.T
			bound := newBoundary(&t, newEcho(), true)
			h := pong{make(chan int, 1<<16)}
			ep, err := bound.Connect(context.Background(), sdk.Target{Path: "main"}, answering("hello"), h)
			if err != nil {
				b.Fatal(err)
			}
			<-h.came
			data := make([]byte, 128)
			frames := make([]sdk.Frame, burst)
			id := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				for i := range frames {
					id++
					frames[i] = sdk.Frame{ID: id, Data: data}
				}
				if n, err := ep.Send(frames, false); n != burst {
					b.Fatal(n, err)
				}
				for got := 0; got < burst; {
					got += <-h.came
				}
			}
			b.StopTimer()
			_ = bound.Close(context.Background())
		})
	}
}
