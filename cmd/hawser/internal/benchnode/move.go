package benchnode

import (
	"context"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// MoveResult is how fast bytes were moved.
type MoveResult struct {
	Count          int     `json:"count"`
	Window         int     `json:"window"`
	BytesPerSecond float64 `json:"bytes_per_second"`
	// P50US is how long one op took, with none beside it.
	P50US float64 `json:"p50_us"`
}

// Waiter is an op that is under way.
type Waiter interface {
	Wait(ctx context.Context) error
}

// Move moves count times size bytes with at most window ops under way, and
// before that some one at a time. Begin begins an op on the slot, 0 to window-1,
// that no op under way has.
func Move(ctx context.Context, size, count, window, oneAtATime int, begin func(slot int) (Waiter, error)) (r MoveResult, err error) {
	hist := hdrhistogram.New(100, int64(time.Minute), 3)
	one := func(slot int) error {
		w, err := begin(slot)
		if err != nil {
			return err
		}
		return w.Wait(ctx)
	}
	if err := one(0); err != nil { // connects
		return r, err
	}
	for i := range oneAtATime {
		at := time.Now()
		if err := one(i % window); err != nil {
			return r, err
		}
		_ = hist.RecordValue(time.Since(at).Nanoseconds()) // over a minute: ctx ended
	}
	under := make([]Waiter, window)
	began := time.Now()
	for i := range count {
		slot := &under[i%window]
		if *slot != nil {
			if err := (*slot).Wait(ctx); err != nil {
				return r, err
			}
		}
		if *slot, err = begin(i % window); err != nil {
			return r, err
		}
	}
	for _, w := range under {
		if w == nil {
			continue
		}
		if err := w.Wait(ctx); err != nil {
			return r, err
		}
	}
	return MoveResult{
		Count: count, Window: window, BytesPerSecond: float64(size) * float64(count) / time.Since(began).Seconds(),
		P50US: float64(hist.ValueAtQuantile(50)) / 1000,
	}, nil
}
