package outbox

import "time"

// minRTO is the shortest ack timeout: well above what a loaded receiver takes
// to answer, so that a slow one is not mistaken for a lossy path.
const minRTO = 200 * time.Millisecond

// maxCredit is the longest pause between two requests for room.
const maxCredit = time.Second

// rto is the adaptive ack timeout: the smoothed round trip plus four times its
// deviation (RFC 6298), doubled while nothing at all is acked, never above the
// configured value.
type rto struct {
	limit   time.Duration
	srtt    time.Duration
	rttvar  time.Duration
	backoff uint
}

func newRTO(limit time.Duration) rto { return rto{limit: limit} }

func (r *rto) value() time.Duration {
	v := r.limit
	if r.srtt > 0 {
		v = max(minRTO, r.srtt+4*r.rttvar)
	}
	return min(r.limit, v<<r.backoff)
}

func (r *rto) sample(d time.Duration) {
	if r.srtt == 0 {
		r.srtt, r.rttvar = max(d, 1), d/2
		return
	}
	r.rttvar += ((r.srtt - d).Abs() - r.rttvar) / 4
	r.srtt = max(r.srtt+(d-r.srtt)/8, 1)
}

func (r *rto) progress() { r.backoff = 0 }

func (r *rto) expired() {
	if r.backoff < 5 {
		r.backoff++
	}
}

// AckTimeout is how long a sent entry waits for its ack now.
func (b *Box) AckTimeout() time.Duration { return b.rto.value() }

// Timeouts takes the entries whose ack is overdue, to be sent again, elsewhere
// if possible, and returns what is late per lane. What the receiver has no
// room for now is no loss and no reason to change path: it is sent again when
// there is room. Nor is there one if something sent later over the same lane
// was acked.
func (b *Box) Timeouts(now time.Time) map[*Lane]Late {
	var late map[*Lane]Late
	if b.unacked {
		return nil
	}
	wait := b.rto.value()
	for _, l := range b.lanes {
		for e := l.list.head; e != nil && now.Sub(e.sentAt) >= wait; e = l.list.head {
			if e.seq > b.roomSeq {
				b.again(e, nil)
				continue
			}
			if late == nil {
				late = map[*Lane]Late{}
			}
			n := late[l]
			n.Entries++
			if e.order < l.acked[fastAcks-1] {
				b.again(e, nil)
			} else {
				if b.again(e, l.Owner); n.Since.IsZero() {
					n.Since = e.sentAt
				}
			}
			late[l] = n
		}
	}
	if late != nil {
		b.rto.expired()
	}
	return late
}

// Late is what was overdue on a lane.
type Late struct {
	// Entries is how many.
	Entries int
	// Since is when the first of those was sent after which nothing was acked;
	// zero if there is none.
	Since time.Time
}

// Rearm makes every ack timeout begin anew: the time since was not the peer's.
func (b *Box) Rearm(now time.Time) {
	for _, l := range b.lanes {
		for e := l.list.head; e != nil; e = e.next {
			e.sentAt = now
		}
	}
}

// creditTimer paces requests for room.
type creditTimer struct {
	due   time.Time
	pause time.Duration
}

// needsCredit reports whether room holds something back, or the receiver does
// not know yet that everything is resolved.
func (b *Box) needsCredit() bool {
	if b.session == 0 || b.unacked {
		return false
	}
	if b.Unresolved() == 0 {
		if b.waiting.n == 0 {
			return b.acked+1 < b.low
		}
		return b.next > b.roomSeq || b.roomBytes == 0
	}
	if b.low > b.roomSeq || b.resend.n > 0 && b.resend.tail.seq > b.roomSeq {
		return true
	}
	return b.waiting.n > 0 && (b.next > b.roomSeq || b.bytes >= b.roomBytes)
}

// CreditDue reports whether a request for room is to be sent now, and if so
// when the next one would be: every ack timeout, backed off to a second.
func (b *Box) CreditDue(now time.Time) bool {
	if !b.needsCredit() {
		b.credit = creditTimer{}
		return false
	}
	if b.credit.due.IsZero() {
		b.credit.pause = min(b.rto.value(), maxCredit)
		b.credit.due = now.Add(b.credit.pause)
		return false
	}
	if now.Before(b.credit.due) {
		return false
	}
	b.credit.pause = min(2*b.credit.pause, maxCredit)
	b.credit.due = now.Add(b.credit.pause)
	return true
}

// Due is when the box next wants Expire, Timeouts or CreditDue to be called;
// zero if never.
func (b *Box) Due() time.Time {
	var due time.Time
	earlier := func(t time.Time) {
		if due.IsZero() || t.Before(due) {
			due = t
		}
	}
	if e := b.deadlines.first(); e != nil {
		earlier(e.Deadline)
	}
	wait := b.rto.value()
	for _, l := range b.lanes {
		if l.list.head != nil && !b.unacked {
			earlier(l.list.head.sentAt.Add(wait))
		}
	}
	if !b.credit.due.IsZero() {
		earlier(b.credit.due)
	}
	return due
}
