package sending

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

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

func TestRun(t *testing.T) {
	fabric := sdktest.NewFabric(sdktest.FabricOptions{})
	a, b, peer := enginetest.Pair(t, memory(fabric))
	var last atomic.Int64
	sum, err := Run(t.Context(), a, Options{
		Peer: peer, Name: "n", Payload: []byte("p"), Count: 500, Rate: 5000, Deadline: time.Minute,
		Progress: func(ended int) { // of several goroutines
			for was := last.Load(); was < int64(ended) && !last.CompareAndSwap(was, int64(ended)); was = last.Load() {
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if sum.Sent != 500 || sum.Acked != 500 || sum.Failed != 0 || sum.Pending != 0 || sum.By["memory"] != 500 || last.Load() != 500 {
		t.Errorf("got %+v, progress %d", sum, last.Load())
	}
	if sum.Seconds < 0.09 || sum.Latency.P50MS <= 0 || sum.Latency.P50MS > sum.Latency.MaxMS {
		t.Errorf("got %+v", sum)
	}
	if s := b.Stats(); s.Received != 500 {
		t.Errorf("the peer received %d", s.Received)
	}
}

func TestFailures(t *testing.T) {
	fabric := sdktest.NewFabric(sdktest.FabricOptions{})
	a, _, peer := enginetest.Pair(t, memory(fabric))
	fabric.Cut("a", "b", "")
	sum, err := Run(t.Context(), a, Options{Peer: peer, Count: 3, Deadline: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	failures := 0
	for _, f := range sum.Failures {
		failures += f.Count
		if f.Code == "" {
			t.Errorf("no code: %+v", f)
		}
	}
	if sum.Sent != 3 || sum.Failed != 3 || failures != 3 {
		t.Errorf("got %+v", sum)
	}
}

func TestWaitIsBounded(t *testing.T) {
	fabric := sdktest.NewFabric(sdktest.FabricOptions{})
	a, _, peer := enginetest.Pair(t, memory(fabric))
	fabric.Cut("a", "b", "")
	defer fabric.Heal("", "", "")
	sum, err := Run(t.Context(), a, Options{Peer: peer, Count: 2, Wait: 50 * time.Millisecond})
	if err != nil || sum.Pending != 2 {
		t.Errorf("%+v %v", sum, err)
	}
}

func TestInterrupted(t *testing.T) {
	fabric := sdktest.NewFabric(sdktest.FabricOptions{})
	a, _, peer := enginetest.Pair(t, memory(fabric))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sum, err := Run(ctx, a, Options{Peer: peer, Count: 1_000_000, Rate: 1000, Progress: func(ended int) {
		if ended == 10 {
			cancel()
		}
	}})
	if err != nil || !sum.Interrupted || sum.Acked < 10 || sum.Sent > 1000 || sum.Asked != 1_000_000 {
		t.Errorf("%+v %v", sum, err)
	}
}

func TestTheFirstIsRefused(t *testing.T) {
	fabric := sdktest.NewFabric(sdktest.FabricOptions{})
	a, _, _ := enginetest.Pair(t, memory(fabric))
	if _, err := Run(t.Context(), a, Options{Peer: "nobody", Count: 3}); !errors.Is(err, engine.InvalidArgument) {
		t.Errorf("got %v", err)
	}
}
