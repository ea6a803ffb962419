package freeze

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// at returns a time so many milliseconds after an arbitrary start.
func at(ms int) time.Time {
	return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(ms) * time.Millisecond)
}

func TestWithin(t *testing.T) {
	steady := []int{0, 100, 200, 300, 400}
	// The process did not run between 200 and 2000.
	stopped := []int{0, 100, 200, 2000, 2100}
	for _, c := range []struct {
		name     string
		ticks    []int
		from, to int
		want     bool
	}{
		{"never fed", nil, 0, 10000, false},
		{"steady", steady, 0, 400, false},
		{"a tick exactly as late as allowed", []int{0, 600}, 0, 600, false},
		{"a tick one millisecond later", []int{0, 601}, 0, 601, true},
		{"before the freeze", stopped, 0, 200, false},
		{"after it", stopped, 2000, 2100, false},
		{"around it", stopped, 100, 2050, true},
		{"inside it", stopped, 300, 400, true},
		{"into it", stopped, 100, 300, true},
		{"out of it", stopped, 1900, 2100, true},
		{"just ended, and no tick yet", steady, 350, 1001, true},
		{"asked as late as allowed", steady, 350, 1000, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var d Detector
			for _, ms := range c.ticks {
				d.Tick(at(ms))
			}
			if got := d.Within(at(c.from), at(c.to)); got != c.want {
				t.Fatalf("Within(%d, %d) = %v, want %v", c.from, c.to, got, c.want)
			}
		})
	}
}

func TestManyFreezesAreNeverForgotten(t *testing.T) {
	var d Detector
	for i := range 10 * remembered {
		d.Tick(at(i * 1000))
	}
	if len(d.mu.spans) > remembered {
		t.Fatalf("%d freezes are remembered", len(d.mu.spans))
	}
	end := (10*remembered - 1) * 1000
	if !d.Within(at(500), at(end)) {
		t.Fatal("an interval with many freezes contains none")
	}
	d.Tick(at(end + 100))
	if d.Within(at(end), at(end+100)) {
		t.Fatal("an interval after all of them contains one")
	}
}

func TestNilDetector(t *testing.T) {
	var d *Detector
	if d.Since(time.Time{}) {
		t.Fatal("nil detector saw a freeze")
	}
}

func TestRunStaysQuietWhileTheProcessRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d Detector
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go d.Run(ctx)
		start := time.Now()
		time.Sleep(time.Hour)
		if d.Since(start) {
			t.Fatal("a freeze in an hour without one")
		}
		cancel()
		synctest.Wait()
		time.Sleep(time.Hour)
		if d.Since(start) {
			t.Fatal("a detector that nobody feeds saw a freeze")
		}
	})
}

func TestWaitIsArmedAgainAfterAFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d Detector
		// Ticks until 1 s, nothing until 10 s, then ticks for good.
		go func() {
			for range 11 {
				d.Tick(time.Now())
				time.Sleep(Interval)
			}
			time.Sleep(9 * time.Second)
			for range 600 {
				d.Tick(time.Now())
				time.Sleep(Interval)
			}
		}()
		start := time.Now()
		if d.Wait(nil, 2*time.Second) {
			t.Fatal("nil channel was closed")
		}
		if took := time.Since(start); took < 12*time.Second || took > 14*time.Second {
			t.Fatalf("gave up after %v", took)
		}
		done := make(chan struct{})
		close(done)
		if !d.Wait(done, time.Second) {
			t.Fatal("closed channel was not seen")
		}
		synctest.Wait()
		time.Sleep(time.Minute)
	})
}

func TestThawed(t *testing.T) {
	for _, c := range []struct {
		name  string
		ticks []int
		now   int
		want  time.Time
	}{
		{"never fed", nil, 5000, time.Time{}},
		{"steady", []int{0, 100, 200}, 300, time.Time{}},
		{"before", []int{0, 100, 2000, 2100}, 2150, at(2000)},
		{"just ended, and no tick yet", []int{0, 100}, 2000, at(2000)},
		{"the last of two", []int{0, 2000, 4000, 4100}, 4200, at(4000)},
	} {
		var d Detector
		for _, ms := range c.ticks {
			d.Tick(at(ms))
		}
		if got := d.Thawed(at(c.now)); !got.Equal(c.want) {
			t.Errorf("%s: thawed at %v, want %v", c.name, got, c.want)
		}
	}
	if d := (*Detector)(nil); !d.Thawed(at(0)).IsZero() {
		t.Error("nil detector saw a freeze")
	}
}

func TestVoidedAndHold(t *testing.T) {
	held := 0
	d := Detector{Hold: func() { held++ }}
	d.Awake()
	(*Detector)(nil).Awake()
	for _, ms := range []int{0, 100, 2000} {
		d.Tick(at(ms))
	}
	d.Within(at(0), at(50))
	d.Within(at(0), at(1500))
	if n := d.Voided(); held != 1 || n != 1 {
		t.Errorf("held %d times, %d verdicts voided", held, n)
	}
}
