//go:build !linux

package link

import (
	"errors"
	"fmt"
	"net"
	"os"
)

// NewSocket makes carrier L1, which there is on Linux only: elsewhere the
// carrier fails with errors.ErrUnsupported.
func NewSocket(conn *net.UnixConn, _ int) Carrier {
	conn.Close()
	return failed{fmt.Errorf("link: carrier unix: %w", errors.ErrUnsupported)}
}

// Socketpair fails with errors.ErrUnsupported.
func Socketpair() (host, child *os.File, err error) {
	return nil, nil, fmt.Errorf("link: socketpair: %w", errors.ErrUnsupported)
}
