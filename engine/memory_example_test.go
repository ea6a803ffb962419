//go:build linux

package engine_test

import (
	"context"
	"fmt"
	"log"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/engine/enginetest"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// A prefill process writes a block into a decode process's memory, which is
// told once the block is there. Here both are in one process, over a transport
// in memory; elsewhere each opens its engine with tcp or rdma.
func ExampleEngine_Submit() {
	ctx := context.Background()
	network, fabric := enginetest.NewNetwork(), sdktest.NewFabric(sdktest.FabricOptions{Moves: true})
	open := func(address string) *engine.Engine {
		fallback := false
		e, err := engine.Open(ctx, engine.Config{
			Node:         engine.NodeConfig{Name: address},
			Notification: engine.NotificationConfig{RPCFallback: &fallback},
			Transports:   []engine.TransportConfig{{Name: "memory", InProcess: func() sdk.Transport { return fabric.New(address) }}},
		}, network.At(address))
		if err != nil {
			log.Fatal(err)
		}
		return e
	}
	prefill, decode := open("prefill:1"), open("decode:1")

	// The decode process publishes memory. Its address is told to others.
	cache, err := decode.AllocateHost(1<<20, engine.RegionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	block := cache.Address() + 4096

	// The prefill process writes to it.
	local, err := prefill.AllocateHost(1<<20, engine.RegionOptions{Private: true})
	if err != nil {
		log.Fatal(err)
	}
	n := copy(local.Bytes(), "a block of keys and values")
	segment, err := prefill.OpenSegment(ctx, "decode:1")
	if err != nil {
		log.Fatal(err)
	}
	transfer, err := prefill.Submit(ctx, []engine.Op{{
		Kind: engine.Write, Local: local, Segment: segment, Address: block, Length: uint64(n),
	}}, engine.SubmitOptions{Notification: &engine.Notification{Name: "block 1"}})
	if err != nil {
		log.Fatal(err)
	}

	received, err := decode.Receive(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %s\n", received.Name, cache.Bytes()[4096:4096+n])
	fmt.Println(transfer.Wait(ctx))

	// nil means that nothing can touch the memory any more.
	_ = segment.Close()
	fmt.Println(cache.Close(ctx), local.Close(ctx))
	_, _ = prefill.Close(ctx), decode.Close(ctx)
	// Output:
	// block 1: a block of keys and values
	// <nil>
	// <nil> <nil>
}
