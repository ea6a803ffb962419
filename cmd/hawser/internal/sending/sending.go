// Package sending sends many notifications to one peer and sums up how they
// ended.
package sending

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/hawser-transport/hawser/engine"
)

// Options say what to send.
type Options struct {
	Peer, Name string
	Payload    []byte
	Count      int
	// Rate is how many a second; 0 is as fast as they are taken.
	Rate float64
	// Deadline is each notification's; 0 is the engine's default.
	Deadline time.Duration
	// Wait bounds the wait for the ends after the last was sent; 0 does not.
	Wait time.Duration
	// Progress, if not nil, is called with how many have ended.
	Progress func(ended int)
}

// Summary is how it went.
type Summary struct {
	Peer  string `json:"peer"`
	Asked int    `json:"asked"`
	Sent  int    `json:"sent"`
	// Acked are in the peer's queue. HandedOver are with the peer's transport,
	// which is all that a peer at protocol 0 or 1 tells.
	Acked       int            `json:"acknowledged"`
	HandedOver  int            `json:"handed_over"`
	Failed      int            `json:"failed"`
	Pending     int            `json:"pending"`
	Interrupted bool           `json:"interrupted"`
	Seconds     float64        `json:"seconds"`
	Latency     Latency        `json:"latency"`
	By          map[string]int `json:"by_transport"`
	// Failures are the different errors, the most frequent first.
	Failures []Failure `json:"failures,omitempty"`
}

// Delivered is how many ended well.
func (s Summary) Delivered() int { return s.Acked + s.HandedOver }

// Latency is from Notify to the end of those that ended well.
type Latency struct {
	P50MS float64 `json:"p50_ms"`
	P99MS float64 `json:"p99_ms"`
	MaxMS float64 `json:"max_ms"`
}

// Failure is one kind of error.
type Failure struct {
	Error string `json:"error"`
	Code  string `json:"code,omitempty"`
	Count int    `json:"count"`
}

const (
	// maxFailures bounds the different errors that are kept.
	maxFailures = 8
	// window bounds the notifications that have not ended: each is held in
	// memory, and a summary needs no more under way.
	window = 16384
	// lastWait is how long an interrupted run waits for what was sent.
	lastWait = time.Second
	// longest is what the histogram can hold, in microseconds.
	longest = int64(20 * time.Minute / time.Microsecond)
)

// run is one Run.
type run struct {
	o     Options
	e     *engine.Engine
	began time.Time
	slots chan struct{}
	ends  sync.WaitGroup

	mu   sync.Mutex
	sum  Summary
	hist *hdrhistogram.Histogram
}

// Run sends and waits. An error means that the first notification was one that
// can never be sent; other refusals count as failures. When ctx ends no
// more is sent.
func Run(ctx context.Context, e *engine.Engine, o Options) (Summary, error) {
	r := &run{
		o: o, e: e, began: time.Now(), slots: make(chan struct{}, window),
		sum: Summary{Peer: o.Peer, Asked: o.Count, By: map[string]int{}}, hist: hdrhistogram.New(1, longest, 3),
	}
	// The waiters end with this, at the latest.
	waits, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	if err := r.send(ctx, waits); err != nil {
		return Summary{}, err
	}
	r.wait(ctx)
	stop()
	r.ends.Wait()
	return r.summary(ctx.Err() != nil), nil
}

// send sends at the rate until all are sent or ctx ends.
func (r *run) send(ctx, waits context.Context) error {
	for i := range r.o.Count {
		if r.o.Rate > 0 {
			due := r.began.Add(time.Duration(float64(i) / r.o.Rate * float64(time.Second)))
			if d := time.Until(due); d > 0 {
				select {
				case <-time.After(d):
				case <-ctx.Done():
				}
			}
		}
		select {
		case r.slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return nil
		}
		if err := r.one(ctx, waits); i == 0 && (errors.Is(err, engine.InvalidArgument) || errors.Is(err, engine.TooLarge)) {
			return err
		}
	}
	return nil
}

// one sends one notification.
func (r *run) one(ctx, waits context.Context) error {
	at := time.Now()
	d, err := r.notify(ctx)
	if err != nil && ctx.Err() != nil {
		<-r.slots
		return nil
	}
	r.mu.Lock()
	r.sum.Sent++
	r.mu.Unlock()
	if err != nil {
		r.ended(at, nil, err)
		return err
	}
	r.ends.Go(func() {
		if err := d.Wait(waits); d.Ended() != engine.Pending {
			r.ended(at, d, err)
		}
	})
	return nil
}

// notify hands one to the engine, whose deadline for it is that of the
// context.
func (r *run) notify(ctx context.Context) (*engine.Delivery, error) {
	if r.o.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.o.Deadline)
		defer cancel()
	}
	return r.e.Notify(ctx, r.o.Peer, engine.Notification{Name: r.o.Name, Payload: r.o.Payload})
}

// ended counts an end.
func (r *run) ended(at time.Time, d *engine.Delivery, err error) {
	took := time.Since(at)
	r.mu.Lock()
	if err == nil {
		if d.Ended() == engine.HandedOver {
			r.sum.HandedOver++
		} else {
			r.sum.Acked++
		}
		_ = r.hist.RecordValue(min(max(took.Microseconds(), 1), longest))
		r.sum.By[d.Report().Transport]++
	} else {
		r.sum.Failed++
		r.failedLocked(err)
	}
	ended := r.sum.Delivered() + r.sum.Failed
	r.mu.Unlock()
	<-r.slots
	if r.o.Progress != nil {
		r.o.Progress(ended)
	}
}

func (r *run) failedLocked(err error) {
	text := err.Error()
	i := slices.IndexFunc(r.sum.Failures, func(f Failure) bool { return f.Error == text })
	switch {
	case i >= 0:
		r.sum.Failures[i].Count++
		return
	case len(r.sum.Failures) == maxFailures:
		text = "other errors"
		r.sum.Failures = append(r.sum.Failures, Failure{Error: text, Count: 1})
	case len(r.sum.Failures) > maxFailures:
		r.sum.Failures[maxFailures].Count++
	default:
		f := Failure{Error: text, Count: 1}
		for _, c := range []engine.Code{engine.NotSent, engine.DeliveryUnknown} {
			if errors.Is(err, c) {
				f.Code = c.Error()
			}
		}
		r.sum.Failures = append(r.sum.Failures, f)
	}
}

// wait waits for what was sent to end.
func (r *run) wait(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.ends.Wait()
	}()
	var limit <-chan time.Time
	if r.o.Wait > 0 {
		limit = time.After(r.o.Wait)
	}
	select {
	case <-done:
		return
	case <-limit:
		return
	case <-ctx.Done():
	}
	select {
	case <-done:
	case <-time.After(lastWait):
	}
}

func (r *run) summary(interrupted bool) Summary {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sum
	s.Pending = s.Sent - s.Delivered() - s.Failed
	s.Interrupted = interrupted
	s.Seconds = time.Since(r.began).Seconds()
	s.Latency = Latency{
		P50MS: float64(r.hist.ValueAtQuantile(50)) / 1000, P99MS: float64(r.hist.ValueAtQuantile(99)) / 1000,
		MaxMS: float64(r.hist.Max()) / 1000,
	}
	slices.SortStableFunc(s.Failures, func(a, b Failure) int { return b.Count - a.Count })
	return s
}
