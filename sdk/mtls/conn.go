package mtls

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

const (
	// recordHandshake and recordAlert are the first bytes of TLS records.
	recordHandshake = 0x16
	recordAlert     = 0x15

	// lingerTime and lingerBytes bound how long, and how much, is read of a
	// peer that was refused, so that it gets the refusal before the reset.
	lingerTime  = time.Second
	lingerBytes = 64 << 10
)

// needTLS is the alert protocol_version: what a peer that does not speak TLS is
// answered, and what [Client] without keys looks for.
var needTLS = []byte{recordAlert, 3, 3, 0, 2, 2, 70}

// Conn is a connection under TLS. Its handshake is part of the first Read or
// Write, if Handshake was not called. Close does not wait for the peer: what
// ends is told by the protocol above.
type Conn struct {
	*tls.Conn
	under  net.Conn
	server bool
	told   func(error)

	once   sync.Once
	failed error
}

// Client makes the dialing side's end of a connection. Without keys it is conn
// itself, and fails if the peer demands TLS. A refusal, which may come as late
// as with the first Read, has code [sdk.Refused] and is given to told as well
// unless that is nil.
func Client(conn net.Conn, r *Keyring, protocol string, told func(error)) net.Conn {
	if told == nil {
		told = func(error) {}
	}
	if r == nil {
		return &plain{Conn: conn, told: told}
	}
	return &Conn{Conn: tls.Client(conn, r.client(protocol)), under: conn, told: told}
}

// Server makes the accepting side's end of a connection; without keys it is
// conn itself. told is given nil after the handshake, or the reason if the peer
// is refused.
func Server(conn net.Conn, r *Keyring, protocol string, told func(error)) net.Conn {
	if r == nil {
		return conn
	}
	if told == nil {
		told = func(error) {}
	}
	return &Conn{Conn: tls.Server(&sniffed{Conn: conn}, r.server(protocol)), under: conn, server: true, told: told}
}

// LooksLikeTLS reports whether the bytes begin a TLS handshake.
func LooksLikeTLS(b []byte) bool { return len(b) >= 2 && b[0] == recordHandshake && b[1] == 3 }

// Handshake makes a connection of [Client] or [Server] ready, and reports who
// refused whom. It is not needed, but early.
func Handshake(ctx context.Context, conn net.Conn) error {
	if c, ok := conn.(*Conn); ok {
		return c.handshake(ctx)
	}
	return nil
}

// Under returns the connection that carries conn.
func Under(conn net.Conn) net.Conn {
	switch c := conn.(type) {
	case *Conn:
		return c.under
	case *plain:
		return c.Conn
	}
	return conn
}

func (c *Conn) handshake(ctx context.Context) error {
	c.once.Do(func() {
		err := c.HandshakeContext(ctx)
		if err == nil {
			if c.server {
				c.told(nil)
			}
			return
		}
		c.failed = c.explain(err)
		if c.server || sdk.CodeOf(c.failed) != 0 {
			c.told(c.failed)
		}
		if c.server {
			Linger(c.under) // else a reset may overtake the alert
		}
	})
	return c.failed
}

// Linger ends the sending direction and reads, for a moment, what a refused
// peer still sends, so that it gets what was written before.
func Linger(conn net.Conn) {
	if t, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = t.CloseWrite()
	}
	_ = conn.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, conn, lingerBytes)
}

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	if err := c.handshake(context.Background()); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(b)
	if err == nil || err == io.EOF {
		return n, err
	}
	if err = c.explain(err); sdk.CodeOf(err) != 0 {
		c.told(err)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF // see Close
	}
	return n, err
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) {
	if err := c.handshake(context.Background()); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *Conn) Close() error { return c.under.Close() }

// explain words what TLS itself says too briefly.
func (c *Conn) explain(err error) error {
	var header tls.RecordHeaderError
	var remote *net.OpError
	switch {
	case sdk.CodeOf(err) != 0:
		return err
	case errors.As(err, &header):
		return sdk.Errorf(sdk.Refused, "the peer does not use TLS, as security demands here: configure security.ca, security.cert and security.key there too")
	case errors.As(err, &remote) && remote.Op == "remote error" && c.server:
		return sdk.Errorf(sdk.Refused, "the peer refused this node's certificate (%v): its error says why", remote.Err)
	case errors.As(err, &remote) && remote.Op == "remote error":
		return sdk.Errorf(sdk.Refused, "the peer refused this node's certificate (%v): is it signed by the peer's CA, not expired, "+
			"and in the peer's security.allow? The peer's log says why", remote.Err)
	}
	return err
}

// sniffed is the accepting side's raw connection. It answers a peer that does
// not speak TLS with an alert, which crypto/tls alone does not.
type sniffed struct {
	net.Conn
	seen bool
}

func (s *sniffed) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if n > 0 && !s.seen {
		s.seen = true
		if b[0] != recordHandshake {
			_, _ = s.Conn.Write(needTLS)
		}
	}
	return n, err
}

// plain is the dialing side without keys.
type plain struct {
	net.Conn
	told func(error)
	seen bool
}

func (p *plain) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	if n > 0 && !p.seen {
		p.seen = true
		if b[0] == recordAlert {
			err := sdk.Errorf(sdk.Refused, "the peer demands TLS: configure security.ca, security.cert and security.key here too")
			p.told(err)
			return 0, err
		}
	}
	return n, err
}

// bare is the accepting side without keys.
type bare struct {
	net.Conn
	told func(error)
	seen bool
}

func (b *bare) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if n > 0 && !b.seen {
		b.seen = true
		if p[0] == recordHandshake {
			err := sdk.Errorf(sdk.Refused, "the peer uses TLS, which is not configured here: configure security.ca, security.cert and security.key here too")
			b.told(err)
			return 0, err
		}
	}
	return n, err
}

// Listener returns l with its connections under TLS, or, without keys, as they
// are. told is given each connection after its handshake, if there is one, and
// the reason if the peer was refused.
func Listener(l net.Listener, r *Keyring, protocol string, told func(conn net.Conn, err error)) net.Listener {
	return &listener{Listener: l, keys: r, protocol: protocol, told: told}
}

type listener struct {
	net.Listener
	keys     *Keyring
	protocol string
	told     func(net.Conn, error)
}

// Accept implements net.Listener. The handshake is not made here: nobody waits
// for a peer that is slow with it.
func (l *listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	var c net.Conn
	tell := func(err error) {
		if l.told != nil {
			l.told(c, err)
		}
	}
	if l.keys == nil {
		c = &bare{Conn: conn, told: tell}
	} else {
		c = Server(conn, l.keys, l.protocol, tell)
	}
	return c, nil
}
