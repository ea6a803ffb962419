package main

import (
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// client is a contender's sending end, connected to a fresh peer.
type client interface {
	// RoundTrip sends one notification whose peer answers with another one,
	// and returns when that was received.
	RoundTrip(payload []byte) error
	// Send sends one notification and returns a function that waits until the
	// peer has acknowledged it. One goroutine calls it.
	Send(payload []byte) (wait func() error, err error)
	Close()
}

// contender is something to measure.
type contender struct {
	name string
	// guarantee says what its acknowledgement means.
	guarantee string
	open      func() (client, error)
	// unary contenders have one call under way at a time.
	unary bool
}

// measured is one round of one contender.
type measured struct {
	p50, p99 time.Duration // of round trips
	burst    time.Duration // median, from the first send to the last ack
	rate     float64       // acknowledged notifications per second
}

func (m measured) String() string {
	return fmt.Sprintf("rtt p50 %v p99 %v, burst %v, %.0f/s", m.p50, m.p99, m.burst, m.rate)
}

func measure(c contender, s settings) (measured, error) {
	x, err := c.open()
	if err != nil {
		return measured{}, err
	}
	defer x.Close()
	payload := make([]byte, s.payload)
	for range s.pings/10 + 50 { // warm
		if err := x.RoundTrip(payload); err != nil {
			return measured{}, err
		}
	}
	var m measured
	if m.p50, m.p99, err = roundTrips(x, payload, s.pings); err != nil {
		return m, err
	}
	burst, rate := s.burst, s.rate
	bursts := s.bursts
	if c.unary { // two orders of magnitude slower: fewer will do
		rate, bursts = rate/20, max(1, bursts/10)
	}
	if m.burst, err = burstTime(x, payload, burst, bursts); err != nil {
		return m, err
	}
	m.rate, err = ackedRate(x, payload, rate, s.window)
	return m, err
}

func roundTrips(x client, payload []byte, n int) (p50, p99 time.Duration, err error) {
	h := hdrhistogram.New(1, int64(10*time.Second), 3)
	for range n {
		start := time.Now()
		if err := x.RoundTrip(payload); err != nil {
			return 0, 0, err
		}
		_ = h.RecordValue(int64(time.Since(start)))
	}
	return time.Duration(h.ValueAtQuantile(50)), time.Duration(h.ValueAtQuantile(99)), nil
}

func burstTime(x client, payload []byte, size, n int) (time.Duration, error) {
	h := hdrhistogram.New(1, int64(100*time.Second), 3)
	waits := make([]func() error, size)
	for range n {
		start := time.Now()
		for i := range waits {
			var err error
			if waits[i], err = x.Send(payload); err != nil {
				return 0, err
			}
		}
		for _, wait := range waits {
			if err := wait(); err != nil {
				return 0, err
			}
		}
		_ = h.RecordValue(int64(time.Since(start)))
	}
	return time.Duration(h.ValueAtQuantile(50)), nil
}

func ackedRate(x client, payload []byte, n, window int) (float64, error) {
	waits := make([]func() error, window)
	start := time.Now()
	for i := range n {
		slot := &waits[i%window]
		if *slot != nil {
			if err := (*slot)(); err != nil {
				return 0, err
			}
		}
		var err error
		if *slot, err = x.Send(payload); err != nil {
			return 0, err
		}
	}
	for _, wait := range waits {
		if wait != nil {
			if err := wait(); err != nil {
				return 0, err
			}
		}
	}
	return float64(n) / time.Since(start).Seconds(), nil
}
