package link

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// message is the arguments and results of sendmsg and recvmsg. The wrappers of
// x/sys allocate for each call; this one is used again and again, and must not
// be copied once it is in use.
type message struct {
	hdr unix.Msghdr
	iov unix.Iovec
	n   int
	err error
}

// set prepares a call with these bytes and this control buffer.
func (m *message) set(b, oob []byte) {
	m.hdr, m.iov = unix.Msghdr{Iov: &m.iov}, unix.Iovec{}
	m.hdr.SetIovlen(1)
	if len(b) > 0 {
		m.iov.Base = &b[0]
		m.iov.SetLen(len(b))
	}
	if len(oob) > 0 {
		m.hdr.Control = &oob[0]
		m.hdr.SetControllen(len(oob))
	}
}

// rawMost is up to how many bytes a call is made without telling the
// scheduler. Telling it wakes the runtime's monitor thread whenever the
// process was idle, which costs two context switches for each message of a
// conversation; not telling it delays others by what the kernel takes to copy
// the bytes. The calls never block.
const rawMost = 256 << 10

// call makes one attempt and reports whether it would block. MSG_DONTWAIT
// because O_NONBLOCK belongs to the open file, which another process may
// share.
func (m *message) call(trap, fd uintptr, flags int) (blocked bool) {
	m.n, m.err = 0, nil
	do := unix.RawSyscall
	if m.iov.Len > rawMost {
		do = unix.Syscall
	}
	for {
		n, _, errno := do(trap, fd, uintptr(unsafe.Pointer(&m.hdr)), uintptr(flags|unix.MSG_DONTWAIT))
		switch errno {
		case 0:
			m.n = int(n)
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return true
		default:
			m.err = errno
		}
		return false
	}
}
