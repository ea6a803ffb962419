package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// stdout is the process's standard output. The first write that fails ends the
// command's context, and one that nobody reads is given up soon after the
// context has ended.
type stdout struct {
	w      io.Writer
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu  sync.Mutex
	err error // the first failure
}

// unreadGrace is how long a write may take when the command is to end.
const unreadGrace = 300 * time.Millisecond

var errUnread = errors.New("nobody reads it")

// Write writes, or fails as the first write that failed.
func (o *stdout) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return 0, o.err
	}
	done := make(chan error, 1)
	copied := bytes.Clone(b) // the write may outlast this call
	go func() {
		_, err := o.w.Write(copied)
		done <- err
	}()
	select {
	case o.err = <-done:
	case <-o.ctx.Done():
		select {
		case o.err = <-done:
		case <-time.After(unreadGrace):
			o.err = errUnread
		}
	}
	if o.err != nil {
		o.cancel(o.err)
		return 0, o.err
	}
	return len(b), nil
}

// fault is the first write's that failed.
func (o *stdout) fault() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// interruptible calls f, which may wait for input for ever, and returns
// without it when ctx ends.
func interruptible[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		v, err := f()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}
