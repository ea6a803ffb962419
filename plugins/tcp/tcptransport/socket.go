package tcptransport

import (
	"io"
	"net"
	"syscall"
	"time"

	"github.com/hawser-transport/hawser/sdk/mtls"
)

// socket is a connection with two operations that net.Conn lacks: a write that
// does not wait, and a wait for input that holds no buffer.
//
// Under TLS it has neither: what is sent is written by the flusher, which may
// wait, and a wait for input holds one byte.
//
// One goroutine at a time reads, one at a time writes.
type socket struct {
	net.Conn
	// raw is nil where the platform or the connection has no such thing; then
	// nothing is written without waiting.
	raw syscall.RawConn
	// first is where input arrives while no buffer is held, without raw.
	first [1]byte

	// The callbacks and what they work on are fields, since a closure for
	// each call would be an allocation for each call.
	out struct {
		fn  func(fd uintptr) bool
		b   []byte
		n   int
		err error
	}
	in struct {
		fn     func(fd uintptr) bool
		buf    *chunk
		chunks *chunks
		n      int
		err    error
	}
}

func newSocket(conn net.Conn, pool *chunks) *socket {
	s := &socket{Conn: conn}
	s.in.chunks = pool
	under := tune(conn)
	if _, secured := conn.(*mtls.Conn); secured {
		return s
	}
	s.Conn = under // what it looks for is past
	if c, ok := under.(syscall.Conn); ok && rawIO {
		if raw, err := c.SyscallConn(); err == nil {
			s.raw = raw
			s.out.fn, s.in.fn = s.writeReady, s.readReady
		}
	}
	return s
}

// tune sets a connection's options and returns what carries it.
func tune(conn net.Conn) (under net.Conn) {
	under = mtls.Under(conn)
	if t, ok := under.(*net.TCPConn); ok {
		// Errors would show in the first read or write.
		_ = t.SetNoDelay(true)
		_ = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 5})
	}
	return under
}

// tryWrite writes what fits without waiting.
func (s *socket) tryWrite(b []byte) (int, error) {
	if s.raw == nil {
		return 0, nil
	}
	s.out.b, s.out.n, s.out.err = b, 0, nil
	err := s.raw.Write(s.out.fn)
	s.out.b = nil
	if err == nil {
		err = s.out.err
	}
	return s.out.n, err
}

func (s *socket) writeReady(fd uintptr) bool {
	s.out.n, s.out.err = rawWrite(fd, s.out.b)
	return true
}

// read waits for input and appends it to *buf, which it gets from the pool
// when there is input and returns to it before it waits with nothing in hand.
func (s *socket) read(buf **chunk) error {
	if s.raw == nil {
		return s.readPlain(buf)
	}
	s.in.buf, s.in.n, s.in.err = *buf, 0, nil
	err := s.raw.Read(s.in.fn)
	*buf, s.in.buf = s.in.buf, nil
	if err != nil {
		return err
	}
	return s.in.err
}

func (s *socket) readReady(fd uintptr) bool {
	if s.in.buf == nil {
		s.in.buf = s.in.chunks.get()
	}
	c := s.in.buf
	n, again, err := rawRead(fd, c.b[len(c.b):cap(c.b)])
	switch {
	case again:
		if len(c.b) == 0 {
			s.in.chunks.put(c)
			s.in.buf = nil
		}
		return false
	case err != nil:
		s.in.err = err
	case n == 0:
		s.in.err = io.EOF
	default:
		c.b = c.b[:len(c.b)+n]
	}
	return true
}

func (s *socket) readPlain(buf **chunk) error {
	if c := *buf; c != nil && len(c.b) == 0 {
		s.in.chunks.put(c)
		*buf = nil
	}
	if *buf == nil {
		n, err := s.Conn.Read(s.first[:])
		if n == 0 {
			return err
		}
		*buf = s.in.chunks.get()
		(*buf).b = append((*buf).b, s.first[0])
		return nil
	}
	c := *buf
	n, err := s.Conn.Read(c.b[len(c.b):cap(c.b)])
	c.b = c.b[:len(c.b)+n]
	if n > 0 {
		return nil
	}
	return err
}
