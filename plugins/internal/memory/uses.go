package memory

import "context"

// Uses counts what uses something, until its owner wants it back. Its zero
// value is ready; its owner's lock is held for all methods.
type Uses struct {
	n    int
	idle chan struct{} // made by Leave, closed once there are none
}

// Begin says whether there may be one more.
func (u *Uses) Begin() bool {
	if u.idle != nil {
		return false
	}
	u.n++
	return true
}

// End says whether it was the last one of something that is leaving.
func (u *Uses) End() (last bool) {
	u.n--
	if last = u.idle != nil && u.n == 0; last {
		close(u.idle)
	}
	return last
}

// Leave refuses more of them, and returns what is closed once there are none.
func (u *Uses) Leave() <-chan struct{} {
	if u.idle == nil {
		u.idle = make(chan struct{})
		if u.n == 0 {
			close(u.idle)
		}
	}
	return u.idle
}

// Count is how many there are.
func (u *Uses) Count() int { return u.n }

// Over waits for something, without the lock, until ctx ends. It is over also if
// both have.
func Over(ctx context.Context, something <-chan struct{}) bool {
	select {
	case <-something:
		return true
	default:
	}
	select {
	case <-something:
		return true
	case <-ctx.Done():
		return false
	}
}
