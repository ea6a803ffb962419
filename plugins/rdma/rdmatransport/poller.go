package rdmatransport

import (
	"errors"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// poll is the device's poller: it polls while there is work, and sleeps on the
// channel otherwise.
func (d *device) poll() {
	for {
		n, err := d.sweep()
		if err == nil && n == 0 {
			// What came before the queue was armed has no event.
			if err = d.cq.Arm(); err == nil {
				n, err = d.sweep()
			}
			if err == nil && n == 0 {
				err = d.channel.Wait()
			}
		}
		if errors.Is(err, verbs.ErrClosed) {
			return
		}
		if err != nil {
			d.fail(err)
			return
		}
	}
}

// sweep handles every completion that is in the queue when it is called. Any
// goroutine may call it.
func (d *device) sweep() (handled int, err error) {
	d.polling.Lock()
	defer d.polling.Unlock()
	for handled < d.entries {
		n, err := d.cq.Poll(d.wcs[:])
		if err != nil {
			return handled, err
		}
		if n == 0 {
			return handled, nil
		}
		handled += n
		d.dispatch(d.wcs[:n])
	}
	return handled, nil
}

// dispatch gives completions to their endpoints, those of one endpoint in a
// row under one lock.
func (d *device) dispatch(wcs []verbs.WC) {
	sent := 0
	var e *endpoint
	var number uint32
	looked := false
	d.table.mu.Lock()
	for i := range wcs {
		wc := &wcs[i]
		if !looked || wc.QP != number {
			if e != nil {
				e.dispatchedLocked()
				e.mu.Unlock()
			}
			e, number, looked = d.table.m[wc.QP], wc.QP, true
			if e != nil {
				e.mu.Lock()
			}
		}
		if wc.ID&recvID != 0 {
			d.landed(e, wc)
		} else if e != nil && e.serial == serialOf(wc.ID) && e.sentLocked(wc) {
			sent++
		} else {
			d.late.Add(1)
		}
	}
	if e != nil {
		e.dispatchedLocked()
		e.mu.Unlock()
	}
	d.table.mu.Unlock()
	d.giveRoom(sent)
	if len(d.spent) > 0 {
		d.receives.put(d.spent)
		d.spent = d.spent[:0]
	}
}

// landed gives a receive to the endpoint, which is locked, or nil for none. The
// buffer is posted again unless the endpoint keeps it.
func (d *device) landed(e *endpoint, wc *verbs.WC) {
	index, mem, ok := d.receives.take(wc.ID)
	if !ok {
		d.late.Add(1)
		return
	}
	if e == nil {
		d.late.Add(1)
	} else if e.landedLocked(wc, index, mem) {
		return
	}
	d.spent = append(d.spent, index)
}
