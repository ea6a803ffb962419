package rdmatransport

import (
	"time"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/sdk"
)

const (
	// inspectEvery is how often a device's quiet queue pairs are asked for their
	// state, and inspectMost how many at a time: asking is a system call, on some
	// devices a command to the firmware.
	inspectEvery = 250 * time.Millisecond
	inspectMost  = 32
)

// inspect finds queue pairs that have failed without a word until the device
// closes. An end that only receives has no completion that would tell, not every
// device has an event for it, and the peer's sends meet silence.
func (d *device) inspect() {
	tick := time.NewTicker(inspectEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			for _, e := range d.quiet() {
				e.examine()
			}
		case <-d.closing:
			return
		}
	}
}

// quiet picks endpoints that have had no completion since it was last asked. Of
// many it takes some, in the map's order, which is another one each time.
func (d *device) quiet() (list []*endpoint) {
	d.table.mu.Lock()
	defer d.table.mu.Unlock()
	for _, e := range d.table.m {
		if len(list) == inspectMost {
			break
		}
		if !e.active.Swap(false) {
			list = append(list, e)
		}
	}
	return list
}

// examine ends the endpoint if its queue pair carries nothing any more.
func (e *endpoint) examine() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.linked || e.cause != nil {
		return // its queue pair may be gone
	}
	if state, err := e.qp.State(); err == nil && (state == verbs.Err || state == verbs.Reset) {
		e.breakLocked(sdk.Errorf(sdk.Unavailable, "the queue pair to %s is in state %s", e.peer, state))
	}
}
