package benchnode

import (
	"context"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/hawser-transport/hawser/engine"
)

// pingName is the name of notifications that [Echo] sends back.
const pingName = "ping"

// Latency is a distribution of times in microseconds.
type Latency struct {
	Count  int64   `json:"count"`
	MeanUS float64 `json:"mean_us"`
	P50US  float64 `json:"p50_us"`
	P90US  float64 `json:"p90_us"`
	P99US  float64 `json:"p99_us"`
	MaxUS  float64 `json:"max_us"`
}

// BurstResult is how long a burst took, from the first Notify to the last
// acknowledgement.
type BurstResult struct {
	Count     int     `json:"count"`
	MS        float64 `json:"ms"`
	PerSecond float64 `json:"per_second"`
}

// RateResult is how many notifications were acknowledged a second with at most
// Window under way.
type RateResult struct {
	Count     int     `json:"count"`
	Window    int     `json:"window"`
	PerSecond float64 `json:"per_second"`
}

// Echo receives until ctx ends. It sends pings back to where they came from,
// and calls received for everything else.
func Echo(ctx context.Context, e *engine.Engine, received func()) {
	for {
		r, err := e.Receive(ctx)
		if err != nil {
			return
		}
		if r.Name != pingName {
			received()
			continue
		}
		// One that cannot be sent back is a ping that takes too long.
		_, _ = e.Notify(ctx, r.From.Address, r.Notification)
	}
}

// RoundTrip sends pings to a peer that runs [Echo], each after the one before
// is back, and returns how long each was under way.
func RoundTrip(ctx context.Context, e *engine.Engine, peer string, count, size int) (Latency, error) {
	hist := hdrhistogram.New(100, int64(time.Minute), 3)
	n := engine.Notification{Name: pingName, Payload: make([]byte, size)}
	for range count {
		at := time.Now()
		if _, err := e.Notify(ctx, peer, n); err != nil {
			return Latency{}, err
		}
		if _, err := e.Receive(ctx); err != nil {
			return Latency{}, fmt.Errorf("a ping did not come back: %w", err)
		}
		_ = hist.RecordValue(time.Since(at).Nanoseconds()) // over a minute: ctx ended
	}
	us := func(ns int64) float64 { return float64(ns) / 1000 }
	return Latency{
		Count: hist.TotalCount(), MeanUS: hist.Mean() / 1000, P50US: us(hist.ValueAtQuantile(50)),
		P90US: us(hist.ValueAtQuantile(90)), P99US: us(hist.ValueAtQuantile(99)), MaxUS: us(hist.Max()),
	}, nil
}

// Burst sends count notifications back to back.
func Burst(ctx context.Context, e *engine.Engine, peer string, count, size int) (BurstResult, error) {
	n := engine.Notification{Name: "burst", Payload: make([]byte, size)}
	pending := make([]*engine.Delivery, count)
	began := time.Now()
	for i := range pending {
		var err error
		if pending[i], err = e.Notify(ctx, peer, n); err != nil {
			return BurstResult{}, err
		}
	}
	for _, d := range pending {
		if err := d.Wait(ctx); err != nil {
			return BurstResult{}, err
		}
	}
	took := time.Since(began)
	return BurstResult{Count: count, MS: float64(took.Microseconds()) / 1000, PerSecond: float64(count) / took.Seconds()}, nil
}

// Rate sends count notifications with at most window of them under way.
func Rate(ctx context.Context, e *engine.Engine, peer string, count, window, size int) (RateResult, error) {
	n := engine.Notification{Name: "rate", Payload: make([]byte, size)}
	under := make([]*engine.Delivery, window)
	began := time.Now()
	for i := range count {
		slot := &under[i%window]
		if *slot != nil {
			if err := (*slot).Wait(ctx); err != nil {
				return RateResult{}, err
			}
		}
		var err error
		if *slot, err = e.Notify(ctx, peer, n); err != nil {
			return RateResult{}, err
		}
	}
	for _, d := range under {
		if d == nil {
			continue
		}
		if err := d.Wait(ctx); err != nil {
			return RateResult{}, err
		}
	}
	return RateResult{Count: count, Window: window, PerSecond: float64(count) / time.Since(began).Seconds()}, nil
}
