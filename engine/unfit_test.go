//go:build linux

package engine

import (
	"context"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// slowNoDevice takes a moment to find that there is no device.
type slowNoDevice struct{ noDevice }

func (t slowNoDevice) Configure(ctx context.Context, c sdk.Config) (sdk.Setup, error) {
	time.Sleep(10 * time.Millisecond)
	return t.noDevice.Configure(ctx, c)
}

// An op that no transport here will ever carry fails at once, and says why each
// does not.
func TestWhyNoTransportMovesIt(t *testing.T) {
	moving(t, func(w *world) {
		w.configs["a:1"] = Config{Transports: []TransportConfig{
			{Name: "fast", InProcess: func() sdk.Transport { return w.fast.New("a:1") }},
			{Name: "gpu", optional: true, onDemand: true, InProcess: func() sdk.Transport { return slowNoDevice{noDevice{w.fast.New("gpu at a:1")}} }},
		}, Notification: NotificationConfig{RPCFallback: new(false)}}
		a, _, mine, theirs, g, end := w.movers(100)
		defer end()
		theirs.region.Kind = sdk.DeviceMemory
		theirs.m.mu.Lock()
		theirs.m.changedLocked()
		theirs.m.mu.Unlock()
		if err := g.Refresh(context.Background()); err != nil {
			t.Fatal(err)
		}
		w.network.Delay("a:1", "b:1", 10*time.Millisecond)
		began := time.Now()
		err := w.done(w.submit(a, SubmitOptions{}, Op{Kind: Read, Local: mine, Segment: g, Address: theirs.Address(), Length: 100}))
		says(t, err, []Code{Unsupported, NotSent}, []string{"moves host memory to or from device memory: transport gpu: not up here, unsupported: ", "transport fast: does not reach such memory"}, nil)
		// It is looked at once it was not able for some time, which here passes
		// with the timer only.
		if took := time.Since(began); took >= 2*strandedFor {
			t.Errorf("it took %v", took)
		}
	})
}
