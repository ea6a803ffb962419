package memory

// uses counts what uses something, until its owner wants it back. Its zero
// value is ready; its owner's lock is held for all methods.
type uses struct {
	n    int
	idle chan struct{} // made by leave, closed once there are none
}

// begin says whether there may be one more.
func (u *uses) begin() bool {
	if u.idle != nil {
		return false
	}
	u.n++
	return true
}

// end says whether it was the last one of something that is leaving.
func (u *uses) end() (last bool) {
	u.n--
	if last = u.idle != nil && u.n == 0; last {
		close(u.idle)
	}
	return last
}

// leave refuses more of them, and returns what is closed once there are none.
func (u *uses) leave() <-chan struct{} {
	if u.idle == nil {
		u.idle = make(chan struct{})
		if u.n == 0 {
			close(u.idle)
		}
	}
	return u.idle
}
