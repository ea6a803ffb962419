package receipt

import (
	"sync"
	"time"
)

// A receipt waits for company for minWait. Where it keeps finding some, as in
// a closed loop, the timer is only a precaution, and each of its firings costs
// the loop far more than its own work, since it wakes another processor, which
// then takes a part of the loop away: there it backs off to maxWait, which is
// how late the last receipt of a conversation can be.
const (
	minWait = time.Millisecond
	maxWait = 8 * time.Millisecond
)

// Delay runs a function when a receipt has waited long enough. Its owner's
// lock is held for all methods; the function takes it itself, and calls Fired
// first.
type Delay struct {
	// Fire is the function, Tasks counts the goroutine that runs it.
	Fire  func()
	Tasks *sync.WaitGroup

	timer *time.Timer
	armed bool
	wait  time.Duration
	// carried says that a frame took a receipt along since the timer was
	// started.
	carried bool
}

// Arm starts the timer unless it runs. It is not touched when a frame takes a
// receipt along: receipts are not worth two timer operations a message.
func (d *Delay) Arm() {
	if d.armed {
		return
	}
	d.armed, d.carried = true, false
	d.Tasks.Add(1)
	d.wait = max(d.wait, minWait)
	if d.timer == nil {
		d.timer = time.AfterFunc(d.wait, func() {
			defer d.Tasks.Done()
			d.Fire()
		})
		return
	}
	d.timer.Reset(d.wait)
}

// Carried notes that a frame took a receipt along.
func (d *Delay) Carried() { d.carried = true }

// Fired begins the function. It says whether what is owed has waited for all
// the time; if not the newest has come after a receipt that was carried, and
// deserves its own.
func (d *Delay) Fired() (waited bool) {
	d.armed = false
	if d.carried {
		d.wait = min(2*d.wait, maxWait)
	} else {
		d.wait = minWait
	}
	return !d.carried
}

// Stop is for the end: the function is not started any more.
func (d *Delay) Stop() {
	if d.armed && d.timer.Stop() {
		d.armed = false
		d.Tasks.Done()
	}
}
