package receipt

import (
	"sync"
	"time"
)

// wait is how long a receipt waits for company.
const wait = time.Millisecond

// Delay runs a function when a receipt has waited long enough. Its owner's
// lock is held for all methods; the function takes it itself, and calls Fired
// first.
type Delay struct {
	// Fire is the function, Tasks counts the goroutine that runs it.
	Fire  func()
	Tasks *sync.WaitGroup

	timer *time.Timer
	armed bool
	// carried says that a receipt found company since the timer was started.
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
	if d.timer == nil {
		d.timer = time.AfterFunc(wait, func() {
			defer d.Tasks.Done()
			d.Fire()
		})
		return
	}
	d.timer.Reset(wait)
}

// Carried notes that a receipt found company.
func (d *Delay) Carried() { d.carried = true }

// Fired begins the function. It says whether what is owed has waited for all
// the time; if not the newest has come after a receipt that was carried, and
// deserves its own.
func (d *Delay) Fired() (waited bool) {
	d.armed = false
	return !d.carried
}

// Stop is for the end: the function is not started any more.
func (d *Delay) Stop() {
	if d.armed && d.timer.Stop() {
		d.armed = false
		d.Tasks.Done()
	}
}
