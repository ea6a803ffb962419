package engine

import "time"

// What a mover does when something is due.

// seeLocked takes in when an op has to be looked at.
func (m *mover) seeLocked(due time.Time) {
	if m.opsDue.IsZero() || due.Before(m.opsDue) {
		m.opsDue = due
	}
}

// tick is the timer: deadlines, stalled endpoints, lanes to be tried again.
func (m *mover) tick() {
	m.s.e.freeze.Awake()
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.armed = time.Time{}
	m.opsDue = time.Time{}
	for _, o := range m.liveLocked() {
		if o.ended {
			continue
		}
		switch {
		case o.err == nil:
			m.seeLocked(o.t.deadline)
		case now.Before(o.settleBy):
			m.seeLocked(o.settleBy)
		default:
			m.seeLocked(o.giveUp)
		}
		if o.err == nil && !now.Before(o.t.deadline) {
			m.overLocked(o)
		}
		if o.err != nil && !o.ended && !now.Before(o.giveUp) {
			m.endLocked(o) // what it has stays leased
		}
	}
	for ch := range m.channelsLocked() {
		if m.overdueLocked(ch, now) {
			m.closeLocked(ch)
		}
	}
	m.pumpLocked()
}

// overdueLocked reports whether an endpoint is to be ended for the sake of the
// chunks that it has: it is stalled, or one's op cannot wait for it.
func (m *mover) overdueLocked(ch *channel, now time.Time) bool {
	if ch.closing || ch.ended {
		return false
	}
	patient := false
	for _, c := range ch.posted {
		if c.op == nil {
			continue
		}
		if c.op.err != nil && !now.Before(c.op.settleBy) {
			return true
		}
		patient = patient || c.op.event != nil // it waits for the application
	}
	if ch.ops == 0 || now.Before(ch.stallsAt()) {
		return false
	}
	if patient || m.s.e.freeze.Within(ch.moved, now) {
		ch.moved = now // or this process did not run
		return false
	}
	m.s.e.stats.moves[moveStalled].Add(1)
	ch.stalled = true
	return true
}

// armLocked sets the timer to what falls due after now, when the pump has looked.
func (m *mover) armLocked(now time.Time) {
	var due time.Time
	see := func(t time.Time) {
		if !t.IsZero() && (due.IsZero() || t.Before(due)) {
			due = t
		}
	}
	see(m.opsDue)
	queued := len(m.queue.groups) > 0
	if queued {
		see(now.Add(strandedFor))
	}
	for _, l := range m.order {
		if queued {
			see(later(l.retryAt, now))
		}
		if queued && l.connecting != nil {
			see(later(l.connecting.begun.Add(m.s.e.cfg.Notification.SlotWait()), now))
		}
	}
	for ch := range m.channelsLocked() {
		if ch.closing {
			continue
		}
		if ch.ops > 0 {
			see(ch.stallsAt())
		}
		see(later(ch.blockedUntil, now))
		if !ch.retired.IsZero() {
			see(now.Add(retireCheck))
		}
	}
	if due.IsZero() {
		m.timer.Stop()
		m.armed = time.Time{}
		return
	}
	if !m.armed.IsZero() && !due.Before(m.armed) && m.armed.After(now) {
		return
	}
	m.armed = due
	m.timer.Reset(max(due.Sub(now), time.Millisecond))
}
