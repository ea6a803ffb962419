// Package freeze notices when this process did not run: it was stopped by a
// signal, its virtual machine was paused, or it got no CPU. A verdict about
// somebody else ("no answer in two seconds") that fell due in such an interval
// says nothing about them, and must be given up and armed again.
//
// The detector is a ticker that looks at its own lateness. It does not tell
// why the process did not run, and it cannot see freezes shorter than the
// threshold.
package freeze

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Interval is the time between ticks.
	Interval = 100 * time.Millisecond
	// Threshold is how late a tick must be to count.
	Threshold = 500 * time.Millisecond
	// remembered bounds the history; older freezes are merged, never
	// forgotten.
	remembered = 16
)

// span is an interval in which the process did not run.
type span struct{ from, to time.Time }

// Detector remembers when the process did not run. The zero value is ready
// for use, and answers that there was no freeze until it is fed, by Run or by
// Tick. A nil Detector always answers that.
type Detector struct {
	// OnThaw, if set before Run, is called by Run after each freeze.
	OnThaw func(from, to time.Time)
	// Hold, if set before Run, is what Awake calls. A simulation has it block
	// while the process that it stands for is stopped.
	Hold func()

	voided atomic.Uint64

	mu struct {
		sync.Mutex
		last   time.Time
		spans  []span
		merged time.Time // end of the newest freeze dropped from spans
	}
}

// Awake is called wherever this process goes on after it waited for a timer,
// a peer or a plugin, without any lock: there, at the latest, a stopped
// process stands still.
func (d *Detector) Awake() {
	if d != nil && d.Hold != nil {
		d.Hold()
	}
}

// Run feeds the detector until ctx ends. After that, like before, it answers
// that there was no freeze: a detector that nobody feeds must not make others
// wait for ever.
func (d *Detector) Run(ctx context.Context) {
	t := time.NewTicker(Interval)
	defer t.Stop()
	defer d.reset()
	d.Tick(time.Now())
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			d.Awake()
			// The tick's own time is when it was due; what counts is when it
			// was handled.
			now := time.Now()
			if from := d.tick(now); !from.IsZero() && d.OnThaw != nil {
				d.OnThaw(from, now)
			}
		}
	}
}

// Tick tells the detector that the process runs at this time. Run calls it;
// tests may.
func (d *Detector) Tick(now time.Time) { d.tick(now) }

// tick returns when a freeze that ends now began, zero if there was none.
func (d *Detector) tick(now time.Time) (from time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := d.mu.last
	d.mu.last = now
	if last.IsZero() || !late(last, now) {
		return time.Time{}
	}
	if len(d.mu.spans) == remembered {
		d.mu.merged = d.mu.spans[0].to
		d.mu.spans = append(d.mu.spans[:0], d.mu.spans[1:]...)
	}
	d.mu.spans = append(d.mu.spans, span{last, now})
	return last
}

func (d *Detector) reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.last, d.mu.spans, d.mu.merged = time.Time{}, nil, time.Time{}
}

// Voided is how many verdicts were given up so far.
func (d *Detector) Voided() uint64 { return d.voided.Load() }

// Within reports whether the interval between the two times contains a part
// of a freeze, so that a verdict about it is void. It also sees one that has
// just ended and for which no tick has come yet: whose timer fires first after
// a freeze is a matter of chance.
func (d *Detector) Within(from, to time.Time) bool {
	if d == nil || !d.within(from, to) {
		return false
	}
	d.voided.Add(1)
	return true
}

func (d *Detector) within(from, to time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.last.IsZero() {
		return false
	}
	if late(d.mu.last, to) {
		return true
	}
	if from.Before(d.mu.merged) {
		return true
	}
	for _, s := range d.mu.spans {
		if s.from.Before(to) && from.Before(s.to) {
			return true
		}
	}
	return false
}

// Thawed is when the last freeze ended, zero if there was none: silence before
// it says nothing.
func (d *Detector) Thawed(now time.Time) time.Time {
	if d == nil {
		return time.Time{}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch n := len(d.mu.spans); {
	case !d.mu.last.IsZero() && late(d.mu.last, now):
		return now // and no tick has come yet
	case n > 0:
		return d.mu.spans[n-1].to
	default:
		return time.Time{}
	}
}

// Since reports whether there was a freeze between the time and now.
func (d *Detector) Since(armed time.Time) bool { return d.Within(armed, time.Now()) }

// Wait waits until done is closed, and reports true, or until the limit has
// passed without a freeze, and reports false: a limit that falls due in a
// freeze is armed again.
func (d *Detector) Wait(done <-chan struct{}, limit time.Duration) bool {
	for {
		armed := time.Now()
		t := time.NewTimer(limit)
		select {
		case <-done:
			t.Stop()
			return true
		case <-t.C:
		}
		d.Awake()
		if !d.Since(armed) {
			return false
		}
	}
}

// late reports whether a tick at now, after one at last, shows a freeze.
func late(last, now time.Time) bool { return now.Sub(last) > Interval+Threshold }
