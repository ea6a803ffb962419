package engine

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// BenchmarkNotify is a notification from Notify to its acknowledgement, many
// under way, over an in-memory transport: what the engines themselves cost.
func BenchmarkNotify(b *testing.B) { benchmarkNotify(b, nil, nil) }

// BenchmarkNotifyScraped is the same with a collector of either engine that is
// read ten times a second: a hundred times as often as usual. Its ratio to
// BenchmarkNotify is what metrics cost.
func BenchmarkNotifyScraped(b *testing.B) {
	here, there := prometheus.NewRegistry(), prometheus.NewRegistry()
	ctx, cancel := context.WithCancel(context.Background())
	var scraper sync.WaitGroup
	defer scraper.Wait()
	defer cancel()
	scraper.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				for _, r := range []*prometheus.Registry{here, there} {
					if _, err := r.Gather(); err != nil {
						b.Error(err)
					}
				}
			}
		}
	})
	benchmarkNotify(b, here, there)
}

// benchmarked opens two engines over an in-memory transport.
func benchmarked(b *testing.B, here, there prometheus.Registerer) (from, to *Engine) {
	network, fabric := control.NewNetwork(), sdktest.NewFabric(sdktest.FabricOptions{Name: rpcFallbackName, Moves: true})
	open := func(address string, registry prometheus.Registerer) *Engine {
		opts := []Option{withCarrier(network.Carrier(address))}
		if registry != nil {
			opts = append(opts, WithMetrics(registry))
		}
		e, err := Open(context.Background(), Config{Transports: []TransportConfig{
			{Name: rpcFallbackName, InProcess: func() sdk.Transport { return fabric.New(address) }},
		}}, opts...)
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
	return open("a:1", here), open("b:1", there)
}

func benchmarkNotify(b *testing.B, here, there prometheus.Registerer) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	from, to := benchmarked(b, here, there)
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
