package engine

import (
	"context"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// BenchmarkNotify is a notification from Notify to its acknowledgement, many
// under way, over an in-memory transport: what the engines themselves cost.
func BenchmarkNotify(b *testing.B) {
	network, fabric := control.NewNetwork(), sdktest.NewFabric(sdktest.FabricOptions{Name: rpcFallbackName})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	open := func(address string) *Engine {
		e, err := Open(ctx, Config{Transports: []TransportConfig{
			{Name: rpcFallbackName, InProcess: func() sdk.Transport { return fabric.New(address) }},
		}}, withCarrier(network.Carrier(address)))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_ = e.Close(ctx)
		})
		return e
	}
	from, to := open("a:1"), open("b:1")
	go func() {
		for {
			if _, err := to.Receive(ctx); err != nil {
				return
			}
		}
	}()
	const window = 256
	var under [window]*Delivery
	n := Notification{Name: "n", Payload: make([]byte, 128)}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if d := under[i%window]; d != nil {
			if err := d.Wait(ctx); err != nil {
				b.Fatal(err)
			}
		}
		d, err := from.Notify(ctx, "b:1", n)
		if err != nil {
			b.Fatal(err)
		}
		under[i%window] = d
	}
}
