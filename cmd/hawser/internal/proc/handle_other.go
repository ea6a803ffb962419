//go:build !linux

package proc

import (
	"context"
	"errors"
	"syscall"
)

// Handle is a process that is held on to.
type Handle struct{}

// Open answers that this platform cannot.
func Open(int, int) (*Handle, error) {
	return nil, errors.New("holding on to a process needs Linux")
}

// PID is the process's number.
func (*Handle) PID() int { return 0 }

// Signal sends a signal.
func (*Handle) Signal(syscall.Signal) error { return errors.ErrUnsupported }

// Gone reports whether the process has ended.
func (*Handle) Gone() bool { return true }

// WaitGone waits until the process has ended.
func (*Handle) WaitGone(context.Context) bool { return true }

// WaitStopped waits until the process is stopped by a signal.
func (*Handle) WaitStopped(context.Context) bool { return false }

// Close lets go of the process.
func (*Handle) Close() {}
