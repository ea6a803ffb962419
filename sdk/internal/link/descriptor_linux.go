package link

import (
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// descriptor is a socket that the runtime's poller does not know of itself. The
// poller always asks for readiness to write too, and a unix socket announces
// that whenever its peer has read something: each record would wake its sender
// once more, which costs as much as waking its receiver. Instead the poller
// watches two epoll sets, one that holds the socket for reading, and one that
// holds it for writing while somebody waits for that.
type descriptor struct {
	in, out watch
	event   unix.EpollEvent // armWrite's, which one goroutine calls

	mu sync.RWMutex // read-locked around calls with fd
	fd int          // -1 once closed
}

// watch is an epoll set that holds one socket.
type watch struct {
	file *os.File
	raw  syscall.RawConn
}

// newDescriptor takes the socket out of conn, which it closes.
func newDescriptor(conn *net.UnixConn) (*descriptor, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		conn.Close()
		return nil, err
	}
	d := &descriptor{fd: -1}
	cerr := raw.Control(func(fd uintptr) {
		d.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	})
	conn.Close()
	if err == nil {
		err = cerr
	}
	if err == nil {
		d.in, err = newWatch(d.fd, unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLET)
	}
	if err == nil {
		d.out, err = newWatch(d.fd, unix.EPOLLONESHOT)
	}
	if err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

func newWatch(fd int, events uint32) (watch, error) {
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return watch{}, fmt.Errorf("epoll: %w", err)
	}
	err = unix.EpollCtl(set, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
	if err == nil {
		err = unix.SetNonblock(set, true) // or the runtime would not poll it
	}
	if err != nil {
		unix.Close(set)
		return watch{}, fmt.Errorf("epoll: %w", err)
	}
	w := watch{file: os.NewFile(uintptr(set), "link-poll")}
	w.raw, err = w.file.SyscallConn()
	return w, err
}

// armWrite makes the set for writing ready once, as soon as the socket is. Its
// descriptor is what the poller's callback was given.
func (d *descriptor) armWrite(set uintptr) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.fd < 0 {
		return net.ErrClosed
	}
	d.event = unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLONESHOT, Fd: int32(d.fd)}
	return unix.EpollCtl(int(set), unix.EPOLL_CTL_MOD, d.fd, &d.event)
}

// call makes one attempt at a call with the socket.
func (d *descriptor) call(m *message, trap uintptr, flags int) (blocked bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.fd < 0 {
		m.n, m.err = 0, net.ErrClosed
		return false
	}
	return m.call(trap, uintptr(d.fd), flags)
}

// closeRead makes reading end after what has come.
func (d *descriptor) closeRead() {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.fd >= 0 {
		_ = unix.Shutdown(d.fd, unix.SHUT_RD)
	}
}

// close unblocks and fails everything, now and later. It is idempotent.
func (d *descriptor) close() {
	for _, w := range []watch{d.in, d.out} {
		if w.file != nil {
			w.file.Close()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fd >= 0 {
		unix.Close(d.fd)
		d.fd = -1
	}
}
