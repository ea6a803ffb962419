package verbs

import (
	"errors"
	"syscall"
)

// Errno is what a refused call fails with, as verbs says it: ENOMEM with a full
// queue, EINVAL for a wrong order, EBUSY for an object that is still used.
type Errno = syscall.Errno

// ErrClosed is what waiting calls return once they were interrupted.
var ErrClosed = errors.New("verbs: interrupted")

// CallError is a verbs call that failed.
type CallError struct {
	Call   string // "ibv_reg_mr"
	Object string // "rxe0"
	Err    error
}

func (e *CallError) Error() string {
	s := e.Call
	if e.Object != "" {
		s += " on " + e.Object
	}
	return s + ": " + e.Err.Error()
}

func (e *CallError) Unwrap() error { return e.Err }
