//go:build linux && cgo

package ibverbs

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// waiter lets Go's poller wait for a descriptor that libibverbs owns: it has a
// duplicate, since both sides close theirs.
type waiter struct {
	file *os.File
	conn syscall.RawConn
}

func newWaiter(fd int, name string) (*waiter, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(dup), name)
	// A descriptor that cannot be polled has no deadlines either.
	if err := file.SetReadDeadline(time.Time{}); err != nil {
		file.Close()
		return nil, err
	}
	conn, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, err
	}
	return &waiter{file, conn}, nil
}

// wait calls take whenever there may be something, until it returns another
// number than EAGAIN.
func (w *waiter) wait(take func() syscall.Errno) error {
	var errno syscall.Errno
	err := w.conn.Read(func(uintptr) bool {
		errno = take()
		return errno != syscall.EAGAIN
	})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed):
		return verbs.ErrClosed
	case err != nil:
		return err
	case errno != 0:
		return errno
	}
	return nil
}

// interrupt ends what waits and what will wait.
func (w *waiter) interrupt() { _ = w.file.SetReadDeadline(time.Unix(1, 0)) }

func (w *waiter) close() { w.file.Close() }
