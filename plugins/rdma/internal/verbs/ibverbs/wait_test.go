//go:build linux && cgo

package ibverbs

import (
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

func pipe(t *testing.T) (r, w int) {
	t.Helper()
	var fds [2]int
	must(t, unix.Pipe2(fds[:], unix.O_CLOEXEC))
	t.Cleanup(func() {
		unix.Close(fds[0])
		unix.Close(fds[1])
	})
	return fds[0], fds[1]
}

func TestWaiter(t *testing.T) {
	r, w := pipe(t)
	waiter, err := newWaiter(r, "test")
	must(t, err)
	defer waiter.close()
	waits, got := make(chan bool, 10), make(chan error, 1)
	take := func() syscall.Errno {
		var b [1]byte
		_, err := unix.Read(r, b[:])
		if err == unix.EAGAIN {
			waits <- true
		}
		errno, _ := err.(syscall.Errno)
		return errno
	}
	for range 2 { // what comes while it waits
		go func() { got <- waiter.wait(take) }()
		<-waits
		_, err := unix.Write(w, []byte("x"))
		must(t, err)
		must(t, <-got)
	}
	if err := waiter.wait(func() syscall.Errno { return syscall.EIO }); err != syscall.EIO {
		t.Fatal(err)
	}
	go func() { got <- waiter.wait(take) }()
	<-waits
	waiter.interrupt()
	if err := <-got; err != verbs.ErrClosed {
		t.Fatal(err)
	}
	_, err = unix.Write(w, []byte("x"))
	must(t, err)
	if err := waiter.wait(take); err != verbs.ErrClosed {
		t.Fatal(err)
	}
	waiter.close()
	if _, err := unix.FcntlInt(uintptr(r), unix.F_GETFD, 0); err != nil {
		t.Fatalf("the library's descriptor was closed: %v", err)
	}
}

// TestWaiterNeedsPolling: a descriptor that cannot be waited for is refused at once.
func TestWaiterNeedsPolling(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	must(t, err)
	defer f.Close()
	if _, err := newWaiter(int(f.Fd()), "file"); err == nil {
		t.Fatal("a regular file was taken")
	}
	if _, err := newWaiter(-1, "none"); err == nil {
		t.Fatal("no descriptor was taken")
	}
}
