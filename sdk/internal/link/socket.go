package link

import (
	"fmt"
	"net"
	"os"
)

// FileConn makes a connection of one end of a Socketpair, and closes f in any
// case.
func FileConn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok || u.LocalAddr().Network() != "unix" {
		c.Close()
		return nil, fmt.Errorf("link: descriptor is a %s socket, not a unix stream", c.LocalAddr().Network())
	}
	return u, nil
}

// failed is a carrier that never worked.
type failed struct{ err error }

func (f failed) Send([]Record, Mode) (int, error)    { return 0, f.err }
func (f failed) Recv(dst []Record) ([]Record, error) { return dst, f.err }
func (f failed) Moved() uint64                       { return 0 }
func (f failed) CarriesFiles() bool                  { return false }
func (f failed) Close() error                        { return nil }
