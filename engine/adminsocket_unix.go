//go:build unix

package engine

import (
	"context"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// listenPrivately binds a socket that only this user can connect to. On Linux
// it has its mode before it has its name; elsewhere its folder has to protect
// it for a moment.
func listenPrivately(path string) (net.Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = unix.Fchmod(int(fd), 0o600) })
	}}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// lockFolder keeps other engines that start now from looking at, and
// replacing, the same socket. Its owner holds it for moments.
func lockFolder(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for limit := time.Now().Add(2 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return func() { _ = f.Close() }, nil
		}
		if time.Now().After(limit) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
	}
}
