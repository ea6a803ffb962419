package proc

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Handle is a process that is held on to.
type Handle struct {
	pid int
	fd  *os.File
}

// Open holds on to the process with this number, which must be a child of
// parent.
func Open(pid, parent int) (*Handle, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	h := &Handle{pid: pid, fd: os.NewFile(uintptr(fd), "pidfd")}
	// Asked after it is held: the answer is about this process.
	_, ppid, err := stat(pid)
	if err == nil && ppid != parent {
		err = fmt.Errorf("its parent is %d, not %d", ppid, parent)
	}
	if err == nil && h.Gone() {
		err = unix.ESRCH
	}
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	return h, nil
}

// PID is the process's number.
func (h *Handle) PID() int { return h.pid }

// Signal sends a signal.
func (h *Handle) Signal(s syscall.Signal) error {
	if err := unix.PidfdSendSignal(int(h.fd.Fd()), s, nil, 0); err != nil {
		return fmt.Errorf("process %d: %v: %w", h.pid, s, err)
	}
	return nil
}

// Gone reports whether the process has ended.
func (h *Handle) Gone() bool {
	fds := []unix.PollFd{{Fd: int32(h.fd.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}

// WaitGone waits until the process has ended.
func (h *Handle) WaitGone(ctx context.Context) bool { return until(ctx, h.Gone) }

// WaitStopped waits until the process is stopped by a signal.
func (h *Handle) WaitStopped(ctx context.Context) bool {
	return until(ctx, func() bool {
		state, _, err := stat(h.pid)
		return err == nil && state == 'T' && !h.Gone()
	})
}

// Close lets go of the process.
func (h *Handle) Close() { _ = h.fd.Close() }

// stat reads a process's state and parent. The name in front of them may hold
// anything.
func stat(pid int) (state byte, ppid int, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 2 {
		return 0, 0, fmt.Errorf("/proc/%d/stat: %q", pid, b)
	}
	ppid, err = strconv.Atoi(string(fields[1]))
	return fields[0][0], ppid, err
}
