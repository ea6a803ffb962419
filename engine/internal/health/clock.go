package health

import "time"

// clock makes the times that callers read before they took the lock monotone,
// and knows when this process last did not run.
type clock struct {
	now    time.Time
	thawed time.Time // end of the last freeze
}

func (c *clock) at(now time.Time) time.Time {
	if now.After(c.now) {
		c.now = now
	}
	return c.now
}

// void reports whether what began then and failed now says nothing: this
// process did not run for part of the time.
func (c *clock) void(began time.Time) bool { return began.Before(c.thawed) }

// doubled is first, doubled for each time after the first, at most limit.
func doubled(first, limit time.Duration, times int) time.Duration {
	d := first
	for range times - 1 {
		if d > limit/2 {
			return limit
		}
		d *= 2
	}
	return min(d, limit)
}

// notBefore is t, or now if that is later: waiting for it never takes a
// negative time.
func notBefore(t, now time.Time) time.Time {
	if t.Before(now) {
		return now
	}
	return t
}

// earlier is the earlier of two times, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
