package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// event is one failure, so many milliseconds after the start.
type event struct {
	at     int
	upFor  time.Duration
	err    error
	frozen bool
	retry  bool // leaves quarantine before
	lift   bool // is pardoned before
	want   string
}

func TestRestarts(t *testing.T) {
	boom := errors.New("boom")
	scarce := sdk.Errorf(sdk.InvalidArgument, "plugin binary: %w", syscall.EMFILE)
	missing := sdk.Errorf(sdk.Unsupported, "no device")
	for _, c := range []struct {
		name   string
		events []event
	}{
		{"the fifth within a minute is too many", []event{
			{at: 0, err: boom, want: "wait"}, {at: 1000, err: boom, want: "wait"}, {at: 2000, err: boom, want: "wait"},
			{at: 3000, err: boom, want: "wait"}, {at: 59999, err: boom, want: "quarantine"}}},
		{"the fifth after a minute is not", []event{
			{at: 0, err: boom, want: "wait"}, {at: 1000, err: boom, want: "wait"}, {at: 2000, err: boom, want: "wait"},
			{at: 3000, err: boom, want: "wait"}, {at: 60000, err: boom, want: "wait"}}},
		{"a shortage may pass, and counts", []event{
			{err: scarce, want: "wait"}, {at: 1, err: scarce, want: "wait"}, {at: 2, err: scarce, want: "wait"},
			{at: 3, err: scarce, want: "wait"}, {at: 4, err: scarce, want: "quarantine"}}},
		{"what cannot be mended is not tried again", []event{{err: missing, want: "quarantine"}}},
		{"a held device neither", []event{{err: sdk.Errorf(sdk.Busy, "%w", errDeviceHeld), want: "quarantine"}}},
		{"a freeze is nobody's fault", []event{
			{err: boom, frozen: true, want: "100ms"}, {err: boom, frozen: true, want: "100ms"}, {err: boom, frozen: true, want: "100ms"},
			{err: boom, frozen: true, want: "100ms"}, {err: missing, frozen: true, want: "100ms"}, {err: boom, want: "wait"}}},
		{"out of quarantine one crash is enough", []event{
			{err: missing, want: "quarantine"}, {at: 300000, retry: true, err: boom, want: "quarantine"},
			{at: 600000, retry: true, err: boom, upFor: time.Minute, want: "wait"}}},
		{"a request pardons", []event{
			{err: missing, want: "quarantine"}, {at: 1, retry: true, lift: true, err: boom, want: "wait"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRestarts(Options{}.withDefaults())
			start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			for i, e := range c.events {
				if e.retry {
					r.retry()
				}
				if e.lift {
					r.lift()
				}
				v := r.failed(start.Add(time.Duration(e.at)*time.Millisecond), e.upFor, e.err, e.frozen)
				got := "wait"
				if v.quarantine {
					got = "quarantine"
				} else if e.frozen {
					got = v.wait.String()
				}
				if got != e.want {
					t.Fatalf("event %d: %s, want %s", i, got, e.want)
				}
			}
		})
	}
}

func TestBackoffGrowsWithinBounds(t *testing.T) {
	o := Options{CrashBudget: 1 << 20}.withDefaults()
	for range 20 {
		r := newRestarts(o)
		now := time.Now()
		for i := range 30 {
			v := r.failed(now, 0, errors.New("boom"), false)
			middle := min(100*time.Millisecond<<i, 30*time.Second)
			if i > 20 {
				middle = 30 * time.Second
			}
			low, high := max(middle/2, o.BackoffMin), min(middle+middle/2+1, o.BackoffMax)
			if v.quarantine || v.wait < low || v.wait > high {
				t.Fatalf("wait %d is %v, want %v to %v", i, v.wait, low, high)
			}
		}
	}
}

func TestBackoffHasJitter(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 50 {
		r := newRestarts(Options{}.withDefaults())
		_ = r.failed(time.Now(), 0, errors.New("boom"), false)
		seen[r.failed(time.Now(), 0, errors.New("boom"), false).wait] = true
	}
	if len(seen) < 10 {
		t.Fatalf("%d different waits of 50", len(seen))
	}
}

func TestSignsOfLife(t *testing.T) {
	for i := range 8 {
		s := sign{moved: i&1 != 0, answered: i&2 != 0, frozen: i&4 != 0}
		if s.alive() != (i != 0) {
			t.Errorf("%+v: alive %v", s, s.alive())
		}
	}
	for err, want := range map[error]bool{
		nil:                         true,
		errors.New("disk full"):     true,
		error(sdk.Busy):             true,
		error(sdk.DeadlineExceeded): false,
		error(sdk.Unavailable):      false,
		error(sdk.PluginExited):     false,
		context.DeadlineExceeded:    false,
	} {
		if answered(err) != want {
			t.Errorf("%v: answered %v", err, !want)
		}
	}
}

func TestDefaults(t *testing.T) {
	o := Options{BackoffMin: time.Minute}.withDefaults()
	got := fmt.Sprint(o.StartTimeout, o.StopTimeout, o.AbandonAfter, o.HealthInterval, o.HealthTimeout, o.CrashBudget, o.CrashWindow, o.BackoffMax, o.QuarantineRetry)
	if want := "10s 3s 10s 1s 2s 5 1m0s 1m0s 5m0s"; got != want {
		t.Fatalf("%s, want %s", got, want)
	}
}
