package benchnode

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/enginetest"
	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory makes transports in memory.
func memory(fabric *sdktest.Fabric) func(string) engine.TransportConfig {
	return func(node string) engine.TransportConfig {
		return engine.TransportConfig{Name: "memory", InProcess: func() sdk.Transport { return fabric.New(node) }}
	}
}

func TestMeasure(t *testing.T) {
	fabric := sdktest.NewFabric(sdktest.FabricOptions{})
	a, b, peer := enginetest.Pair(t, memory(fabric))
	ctx, cancel := context.WithCancel(t.Context())
	var echo sync.WaitGroup
	defer echo.Wait()
	defer cancel()
	var received atomic.Int64
	echo.Go(func() { Echo(ctx, b, func() { received.Add(1) }) })

	trip, err := RoundTrip(ctx, a, peer, 50, 64)
	if err != nil || trip.Count != 50 || trip.P50US <= 0 || trip.P50US > trip.P99US || trip.P99US > trip.MaxUS*1.001 {
		t.Errorf("%+v %v", trip, err)
	}
	burst, err := Burst(ctx, a, peer, 300, 64)
	if err != nil || burst.Count != 300 || burst.MS <= 0 {
		t.Errorf("%+v %v", burst, err)
	}
	rate, err := Rate(ctx, a, peer, 700, 256, 64)
	if err != nil || rate.Count != 700 || rate.PerSecond <= 0 {
		t.Errorf("%+v %v", rate, err)
	}
	small, err := Rate(ctx, a, peer, 5, 256, 64)
	if err != nil || small.Count != 5 {
		t.Errorf("%+v %v", small, err)
	}
	if s := b.Stats(); s.Received != 50+300+700+5 {
		t.Errorf("the peer received %d", s.Received)
	}
}

func TestMeasuringEndsWithTheContext(t *testing.T) {
	fabric := sdktest.NewFabric(sdktest.FabricOptions{})
	a, _, peer := enginetest.Pair(t, memory(fabric))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := RoundTrip(ctx, a, peer, 1, 1); err == nil {
		t.Error("a round trip without an echo")
	}
}
