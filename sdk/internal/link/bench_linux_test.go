package link

import (
	"slices"
	"syscall"
	"testing"
	"time"
)

// The benchmarks compare ways to write within one run, across two processes:
// "unix" is the adaptive writer, "unix-inline" writes for each send,
// "unix-flusher" never inline. Compare them with each other only.
var benchKinds = []string{"unix", "unix-inline", "unix-flusher", "grpc"}

// gaps are thresholds of the adaptive writer, for BenchmarkGap.
var gaps = []string{"500ns", "1us", "2us", "4us", "8us", "16us", "50us"}

func forKinds(b *testing.B, kinds []string, f func(b *testing.B, kind string)) {
	for _, kind := range kinds {
		b.Run(kind, func(b *testing.B) { f(b, kind) })
	}
}

// pause spins, so that no timer's wake-up is measured.
func pause(d time.Duration) {
	for start := time.Now(); time.Since(start) < d; {
	}
}

// roundTrips sends one record at a time, each after the answer to the one
// before and a pause.
func roundTrips(b *testing.B, kind string, paced time.Duration) {
	c := startChild(b, kind, "echo")
	inline := countInline(c)
	rec := []Record{{Type: Send, Payload: make([]byte, 64)}}
	var in []Record
	took := make([]time.Duration, 0, b.N)
	b.ResetTimer()
	for range b.N {
		if paced > 0 {
			pause(paced)
		}
		start := time.Now()
		if _, err := c.Send(rec, 0); err != nil {
			b.Fatal(err)
		}
		var err error
		if in, err = c.Recv(in[:0]); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2])/1e3, "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100])/1e3, "p99-us")
	b.ReportMetric(float64(*inline)/float64(b.N), "inline/op")
}

// countInline counts inline writes. Read it when nobody sends.
func countInline(c *child) *int {
	n := new(int)
	if q := queueOf(c.Carrier); q.try != nil {
		try := q.try
		q.mu.Lock()
		q.try = func(b []byte, fds []int) (int, error) {
			*n++
			return try(b, fds)
		}
		q.mu.Unlock()
	}
	return n
}

// bursts sends groups of 2000, one record for each call with some work
// between, and waits for the answer to the last.
func bursts(b *testing.B, kind string, work time.Duration) {
	const size = 2000
	c := startChild(b, kind, "sink")
	rec, ping := []Record{{Type: Send, Payload: make([]byte, 64)}}, []Record{{Type: Ping}}
	var in []Record
	inline := countInline(c)
	before := cpu(b)
	b.ResetTimer()
	for range b.N {
		for range size {
			if work > 0 {
				pause(work)
			}
			if _, err := c.Send(rec, Wait); err != nil {
				b.Fatal(err)
			}
		}
		if _, err := c.Send(ping, Wait); err != nil {
			b.Fatal(err)
		}
		var err error
		if in, err = c.Recv(in[:0]); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	c.stop()
	own := cpu(b) - before
	total := own + c.cmd.ProcessState.SystemTime() + c.cmd.ProcessState.UserTime()
	n := float64(b.N * size)
	b.ReportMetric(n/b.Elapsed().Seconds()/1e3, "kmsg/s")
	b.ReportMetric(float64(total)/1e3/n, "cpu-us/msg")
	b.ReportMetric(float64(*inline)/n, "inline/msg")
}

func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkRoundTrip(b *testing.B) {
	forKinds(b, benchKinds, func(b *testing.B, kind string) { roundTrips(b, kind, 0) })
}

func BenchmarkRoundTripPaced(b *testing.B) {
	forKinds(b, benchKinds, func(b *testing.B, kind string) { roundTrips(b, kind, 200*time.Microsecond) })
}

func BenchmarkBurst(b *testing.B) {
	forKinds(b, benchKinds, func(b *testing.B, kind string) { bursts(b, kind, 0) })
}

// BenchmarkBurstOfWork is a sender that does something for each record: here
// an inline write for each still halves the rate.
func BenchmarkBurstOfWork(b *testing.B) {
	forKinds(b, benchKinds, func(b *testing.B, kind string) { bursts(b, kind, time.Microsecond) })
}

// BenchmarkGap is where the adaptive writer's threshold comes from.
func BenchmarkGap(b *testing.B) {
	b.Run("trip", func(b *testing.B) {
		forKinds(b, gaps, func(b *testing.B, kind string) { roundTrips(b, kind, 0) })
	})
	for _, work := range []time.Duration{0, time.Microsecond, 3 * time.Microsecond, 10 * time.Microsecond} {
		b.Run("burst-"+work.String(), func(b *testing.B) {
			forKinds(b, gaps, func(b *testing.B, kind string) { bursts(b, kind, work) })
		})
	}
}
