//go:build linux

package mnnvltransport

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/plugins/internal/streams"
	"github.com/hawser-transport/hawser/sdk/mtls"
)

// maxHalfOpen bounds the connections that have not said what they are for:
// beyond it new ones are closed until one has spoken or its time is over.
const maxHalfOpen = 256

// entrance accepts connections and gives them to the endpoints that expect them.
type entrance struct {
	t        *Transport
	ln       net.Listener
	courtesy bootstrap.Courtesy

	mu       sync.Mutex
	shut     bool
	halfOpen map[net.Conn]struct{}
}

func newEntrance(t *Transport, ln net.Listener) *entrance {
	return &entrance{t: t, ln: ln, halfOpen: map[net.Conn]struct{}{}}
}

// close stops accepting. The listening socket, which another instance may
// share, lives on; only this instance's descriptor of it is closed.
func (n *entrance) close() {
	_ = n.ln.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.shut = true
	for conn := range n.halfOpen {
		_ = conn.Close()
	}
}

// serve is the accepting goroutine.
func (n *entrance) serve() {
	const pause = 20 * time.Millisecond
	for {
		n.courtesy.Pause(n.t.Life.Done())
		conn, err := n.ln.Accept()
		switch {
		case err == nil && n.enter(conn):
			n.t.Life.Tasks.Go(func() {
				kept := n.hear(conn)
				n.leave(conn)
				if !kept {
					_ = conn.Close()
				}
			})
		case err == nil:
			_ = conn.Close()
		case errors.Is(err, net.ErrClosed):
			return
		default: // out of descriptors, most likely: it passes
			select {
			case <-time.After(pause):
			case <-n.t.Life.Done():
				return
			}
		}
	}
}

func (n *entrance) enter(conn net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.shut || len(n.halfOpen) >= maxHalfOpen {
		return false
	}
	n.halfOpen[conn] = struct{}{}
	return true
}

func (n *entrance) leave(conn net.Conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.halfOpen, conn)
}

// hear reads a connection's join message and answers it. It says whether the
// connection now belongs to an endpoint.
func (n *entrance) hear(raw net.Conn) (kept bool) {
	keepAlive(raw)
	_ = raw.SetDeadline(time.Now().Add(streams.Milliseconds(n.t.settings.HandshakeTimeoutMS)))
	conn := mtls.Server(raw, n.t.Keys, protocol, nil)
	if err := mtls.Handshake(context.Background(), conn); err != nil {
		n.t.Log.Debug("turned a connection away", "from", raw.RemoteAddr().String(), "error", err)
		return false
	}
	var b [bootstrap.JoinLen]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return false
	}
	if n.t.Keys == nil && mtls.LooksLikeTLS(b[:]) {
		n.t.Log.Warn("turned a connection away: it uses TLS, which is not configured here: configure security.ca, security.cert and security.key here too",
			"from", raw.RemoteAddr().String())
		_, _ = conn.Write(bootstrap.NotHawser.Marshal()) // no TLS either, and the peer sees it
		mtls.Linger(conn)
		return false
	}
	j, verdict := bootstrap.ParseJoin(b[:])
	if verdict == bootstrap.NotHawser {
		return false
	}
	if verdict == bootstrap.Welcome && j.Kind != bootstrap.Memory {
		verdict = bootstrap.WrongKind
	}
	var e *endpoint
	if verdict == bootstrap.Welcome {
		e, verdict = n.t.Pending.Claim(j, mtls.Identity(conn))
	}
	if verdict == bootstrap.WrongInstance {
		n.courtesy.Ask()
	}
	_, _ = conn.Write(verdict.Marshal())
	if e == nil {
		n.t.Log.Debug("turned a connection away", "from", raw.RemoteAddr().String(), "why", verdict.String())
		return false
	}
	_ = conn.SetDeadline(time.Time{})
	e.arrived <- conn
	return true
}
