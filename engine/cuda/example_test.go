package cuda_test

import (
	"context"
	"fmt"
	"log"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/engine/cuda"
)

// An application with CUDA code of its own publishes a part of its KV cache, by
// the pointer that cuMemAlloc or cudaMalloc has given it, and writes another part
// to a peer, after the kernel that computes it.
func Example() {
	var (
		pointer, event uintptr // of the application: a CUdeviceptr, a CUevent that was recorded
		address        uint64  // what the peer has told of its memory
	)
	ctx := context.Background()
	gpus, err := cuda.Open()
	if err != nil {
		log.Fatal(err) // Unsupported where there is no GPU, with what to do
	}
	defer gpus.Close() //nolint:errcheck // the process ends

	e, err := engine.Open(ctx, engine.Config{Transports: []engine.TransportConfig{{Name: "mnnvl"}, {Name: "tcp"}}})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close(ctx) //nolint:errcheck // the process ends

	cache, err := gpus.Register(e, pointer, 256<<20, engine.RegionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	computed, err := gpus.ExportEvent(0, event)
	if err != nil {
		log.Fatal(err)
	}
	decode, err := e.OpenSegment(ctx, "decode-0")
	if err != nil {
		log.Fatal(err)
	}
	transfer, err := e.Submit(ctx, []engine.Op{{
		Kind: engine.Write, Local: cache, LocalOffset: 1 << 20, Length: 64 << 10,
		Segment: decode, Address: address, Event: computed,
	}}, engine.SubmitOptions{Notification: &engine.Notification{Name: "block 17"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(transfer.Wait(ctx))

	// The memory may be freed once this has returned nil.
	fmt.Println(cache.Close(ctx))
}
