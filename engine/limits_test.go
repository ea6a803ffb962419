package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/outbox"
	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
)

// Guards of what a transport, a peer or a caller could make grow.

func TestBytesInFlightAreBounded(t *testing.T) {
	ep := &endpoint{
		inst:     &pluginhost.Instance{Description: sdk.Description{Limits: sdk.Limits{InflightFrames: 3, InflightBytes: 100}}},
		inflight: newInflight(),
	}
	if !ep.hasRoom(1000) {
		t.Error("one of any size fits when nothing is in flight")
	}
	id := ep.post(&outbox.Entry{}, 90)
	if !ep.hasRoom(10) || ep.hasRoom(11) {
		t.Error("the bound of bytes does not hold")
	}
	ep.post(&outbox.Entry{}, 1)
	ep.post(&outbox.Entry{}, 1)
	if ep.hasRoom(1) {
		t.Error("the bound of frames does not hold")
	}
	ep.inflight.take(id)
	if !ep.hasRoom(98) || ep.hasRoom(99) {
		t.Error("an outcome does not make room")
	}
	for range 100 {
		ep.postAck()
	}
	if !ep.hasRoom(1) {
		t.Error("acks count")
	}
}

// Outcomes of ids that were never given out, or had one, are nobody's.
func TestAnOutcomeCountsOnce(t *testing.T) {
	f := newInflight()
	for range 100 {
		f.add(slot{entry: &outbox.Entry{}, size: 1})
	}
	for _, id := range []uint64{0, 101, 1 + 128, 5 + 1<<63} {
		if _, ok := f.take(id); ok {
			t.Errorf("%d was never given out", id)
		}
	}
	for _, id := range []uint64{50, 1, 100, 2} {
		if _, ok := f.take(id); !ok {
			t.Errorf("%d is missing", id)
		}
		if _, ok := f.take(id); ok {
			t.Errorf("%d has two outcomes", id)
		}
	}
	if f.frames != 96 || f.bytes != 96 {
		t.Errorf("%d frames of %d bytes are left", f.frames, f.bytes)
	}
}

func TestAnEndedEndpointsOutcomesCountForNothing(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		x, p := pathOf(t, a, "fast")
		x.mu.Lock()
		ep := p.ep
		x.mu.Unlock()
		first := errors.New("first")
		ep.Ended(first)
		ep.Ended(errors.New("second"))
		ep.Completed([]sdk.Completion{{ID: 1, Outcome: sdk.Done}, {ID: 77, Outcome: sdk.Unknown}})
		if !errors.Is(ep.cause, first) || a.Stats().Nonsense != 0 {
			t.Errorf("ended with %v, %d outcomes were looked at", ep.cause, a.Stats().Nonsense)
		}
		ep.se.Close()
	})
}

func TestAttemptsAreBounded(t *testing.T) {
	var d Delivery
	for i := range 1000 {
		d.failed(Attempt{Reason: fmt.Sprint(i)})
	}
	if n := len(d.attempts); n != maxAttempts || d.tried != 1000 {
		t.Fatalf("%d attempts of %d are kept", n, d.tried)
	}
	if d.attempts[0].Reason != "0" || d.attempts[maxAttempts-1].Reason != "999" {
		t.Errorf("the first and the last are missing: %v", d.attempts)
	}
}

func TestADeadlineHasAMost(t *testing.T) {
	run(t, func(w *world) {
		a := w.open("a:1")
		defer w.shut(a)
		now := time.Now()
		for in, want := range map[time.Duration]time.Duration{time.Second: time.Second, 24 * time.Hour: maxDeadline} {
			ctx, cancel := context.WithDeadline(context.Background(), now.Add(in))
			if got := a.deadline(ctx, now).Sub(now); got != want {
				t.Errorf("%v: %v, want %v", in, got, want)
			}
			cancel()
		}
		if got := a.deadline(context.Background(), now).Sub(now); got != time.Minute {
			t.Errorf("none: %v", got)
		}
	})
}

func TestQueuesAreBoundedInNumber(t *testing.T) {
	run(t, func(w *world) {
		for i := range maxQueues {
			w.queues = map[string][]*Queue{"a:1": append(w.queues["a:1"], NewQueue(fmt.Sprintf("%d/", i), QueueBounds{}))}
		}
		w.shut(w.open("a:1"))
		opts := []Option{withCarrier(control.NewNetwork().Carrier("b:1"))}
		for i := range maxQueues + 1 {
			opts = append(opts, WithQueue(NewQueue(fmt.Sprintf("%d/", i), QueueBounds{})))
		}
		if _, err := Open(context.Background(), Config{}, opts...); err == nil || !strings.Contains(err.Error(), "257 queues") {
			t.Errorf("one too many: %v", err)
		}
	})
}

// What an engine sends to itself and finds no room for never left.
func TestASelfSentOneThatFoundNoRoomNeverLeft(t *testing.T) {
	run(t, func(w *world) {
		w.configs["a:1"] = Config{Receive: ReceiveConfig{Frames: 2}, Notification: NotificationConfig{DeadlineMS: 1000}}
		a := w.open("a:1")
		defer w.shut(a)
		var ds []*Delivery
		for _, n := range names("n", 4) {
			ds = append(ds, w.notify(a, "a:1", n))
		}
		for i, d := range ds {
			if err := w.wait(d); i < 2 && err != nil || i >= 2 && !errors.Is(err, NotSent) {
				t.Errorf("%d: %v", i, err)
			}
		}
		w.expect(a, "n-0", "n-1")
	})
}

// A full outbox is waited for as long as the slot wait, and no longer.
func TestAFullOutboxIsBackpressure(t *testing.T) {
	run(t, func(w *world) {
		w.configs["a:1"] = Config{Outbox: OutboxConfig{Bytes: 4096, TotalBytes: 1 << 20}, Notification: NotificationConfig{SlotWaitMS: 500, DeadlineMS: 20000, MaxPayloadBytes: 2000}}
		a := w.open("a:1")
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		start := time.Now()
		for i := 0; ; i++ {
			_, err := a.Notify(ctx, "b:1", Notification{Payload: make([]byte, 1000)})
			if err == nil && i < 100 {
				continue
			}
			if took := time.Since(start); !errors.Is(err, Backpressure) || took != 500*time.Millisecond || i > 4 {
				t.Errorf("%d fit, then %v after %v", i, err, took)
			}
			break
		}
		_ = a.Close(ctx)
	})
}
