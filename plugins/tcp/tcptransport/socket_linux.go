package tcptransport

import (
	"syscall"
	"unsafe"
)

const rawIO = true

// rawMost is up to how many bytes a call is made without telling the
// scheduler. Telling it wakes the runtime's monitor thread whenever the
// process was idle, which costs two context switches for each message of a
// conversation; not telling it delays others by what the kernel takes to copy
// the bytes. The calls never block.
const rawMost = 64 << 10

// rawWrite makes one attempt; a socket that is full takes 0 bytes.
func rawWrite(fd uintptr, b []byte) (int, error) {
	n, again, err := rawCall(syscall.SYS_SENDTO, fd, b, syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL)
	if again {
		return 0, nil
	}
	return n, err
}

// rawRead makes one attempt; again says that there is no input yet.
func rawRead(fd uintptr, b []byte) (n int, again bool, err error) {
	return rawCall(syscall.SYS_RECVFROM, fd, b, syscall.MSG_DONTWAIT)
}

func rawCall(trap, fd uintptr, b []byte, flags uintptr) (n int, again bool, err error) {
	if len(b) == 0 {
		return 0, false, nil
	}
	call := syscall.RawSyscall6
	if len(b) > rawMost {
		call = syscall.Syscall6
	}
	for {
		r, _, errno := call(trap, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), flags, 0, 0)
		switch errno {
		case 0:
			return int(r), false, nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, true, nil
		default:
			return 0, false, errno
		}
	}
}
