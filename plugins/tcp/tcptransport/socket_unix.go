//go:build unix && !linux

package tcptransport

import "syscall"

const rawIO = true

// rawWrite makes one attempt; a socket that is full takes 0 bytes.
func rawWrite(fd uintptr, b []byte) (int, error) {
	for {
		n, err := syscall.Write(int(fd), b)
		switch err {
		case nil:
			return n, nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, nil
		default:
			return 0, err
		}
	}
}

// rawRead makes one attempt; again says that there is no input yet.
func rawRead(fd uintptr, b []byte) (n int, again bool, err error) {
	for {
		n, err := syscall.Read(int(fd), b)
		switch err {
		case nil:
			return n, false, nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, true, nil
		default:
			return 0, false, err
		}
	}
}
