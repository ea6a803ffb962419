package link

import (
	"net"
	"testing"
	"time"
)

func addSocketKinds(kinds map[string]func(t *testing.T) pair) {
	kinds["unix"] = func(t *testing.T) pair { return socketPair(t, inlineGap) }
	kinds["unix-inline"] = func(t *testing.T) pair { return socketPair(t, alwaysInline) }
	kinds["unix-flusher"] = func(t *testing.T) pair { return socketPair(t, neverInline) }
}

func conns(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	fa, fb, err := Socketpair()
	if err != nil {
		t.Fatal(err)
	}
	if a, err = FileConn(fa); err != nil {
		t.Fatal(err)
	}
	if b, err = FileConn(fb); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func queueOf(c Carrier) *queue {
	if s, ok := c.(*socket); ok {
		return &s.out
	}
	return &c.(*stream).out
}

func (s *socket) buffered() int { return len(s.in.buf) }

func socketPair(t testing.TB, gap time.Duration) pair {
	a, b := conns(t)
	return pair{
		a: newSocket(a, testMax, gap), b: newSocket(b, testMax, gap),
		garbage: func(t *testing.T, raw []byte) Carrier {
			a, b := conns(t)
			c := newSocket(b, testMax, gap)
			t.Cleanup(func() { c.Close() })
			if _, err := a.Write(raw); err != nil {
				t.Fatal(err)
			}
			a.Close()
			return c
		},
	}
}
