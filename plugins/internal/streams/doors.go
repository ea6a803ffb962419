package streams

import (
	"container/list"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/sdk/mtls"
)

// maxHalfOpen bounds the connections that have not said what they are for.
// When there are more the oldest is closed: a peer of ours speaks at once, so
// whoever opens connections and keeps silent only drives out himself.
const maxHalfOpen = 256

// Arriver is an endpoint with a connection of its own.
type Arriver interface {
	Endpoint
	// Arrive gives an accepted one its connection. It does not wait.
	Arrive(conn net.Conn)
}

// Doors are what stands open to the world: the listener, and the connections
// that have not been given to an endpoint yet.
type Doors[E Arriver] struct {
	base     *Base[E]
	ln       net.Listener
	protocol string
	patience time.Duration

	// turnedAway counts the connections that were closed without an endpoint
	// or an answered probe.
	turnedAway atomic.Uint64

	courtesy bootstrap.Courtesy

	mu       sync.Mutex
	shut     bool
	halfOpen list.List // of net.Conn, oldest first
}

// OpenDoors accepts connections of a protocol, which have so long to say what
// they are for. It is for the serve of Listen.
func OpenDoors[E Arriver](b *Base[E], ln net.Listener, protocol string, patience time.Duration) *Doors[E] {
	d := &Doors[E]{base: b, ln: ln, protocol: protocol, patience: patience}
	b.Life.Tasks.Go(d.serve)
	return d
}

// Close stops accepting. The listening socket, which another instance may
// share, lives on; only this instance's descriptor of it is closed.
func (d *Doors[E]) Close() {
	_ = d.ln.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = true
	for el := d.halfOpen.Front(); el != nil; el = el.Next() {
		_ = el.Value.(net.Conn).Close()
	}
}

// serve is the accepting goroutine.
func (d *Doors[E]) serve() {
	const firstPause, lastPause = 5 * time.Millisecond, time.Second
	pause := firstPause
	for {
		d.courtesy.Pause(d.base.Life.Done())
		conn, err := d.ln.Accept()
		if err == nil {
			pause = firstPause
			d.admit(conn)
			continue
		}
		if errors.Is(err, net.ErrClosed) || d.closed() {
			return
		}
		// Out of descriptors, most likely: it passes.
		d.base.Log.Warn("cannot accept a connection", "error", err, "pause", pause)
		select {
		case <-time.After(pause):
			pause = min(2*pause, lastPause)
		case <-d.base.Life.Done():
			return
		}
	}
}

func (d *Doors[E]) closed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.shut
}

// admit lets a connection say what it is for.
func (d *Doors[E]) admit(conn net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut {
		_ = conn.Close()
		return
	}
	if d.halfOpen.Len() >= maxHalfOpen {
		oldest := d.halfOpen.Front()
		_ = oldest.Value.(net.Conn).Close()
		d.halfOpen.Remove(oldest)
	}
	el := d.halfOpen.PushBack(conn)
	d.base.Life.Tasks.Go(func() {
		kept := d.hear(conn, el)
		d.leave(el)
		if !kept {
			_ = conn.Close()
		}
	})
}

// leave takes a connection off the half-open ones, if it still is one.
func (d *Doors[E]) leave(el *list.Element) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.halfOpen.Remove(el)
}

// hear reads a connection's join message and answers it. It says whether the
// connection now belongs to an endpoint.
func (d *Doors[E]) hear(conn net.Conn, el *list.Element) (kept bool) {
	_ = conn.SetDeadline(time.Now().Add(d.patience))
	conn = mtls.Server(conn, d.base.Keys, d.protocol, nil)
	if err := mtls.Handshake(context.Background(), conn); err != nil {
		d.turnAway(conn, err.Error())
		return false
	}
	var b [bootstrap.JoinLen]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		d.turnAway(conn, "said nothing in time")
		return false
	}
	if d.base.Keys == nil && mtls.LooksLikeTLS(b[:]) {
		d.turnAway(conn, "uses TLS, which is not configured here: configure security.ca, security.cert and security.key here too")
		_, _ = conn.Write(bootstrap.NotHawser.Marshal()) // no TLS either, and the peer sees it
		mtls.Linger(conn)
		return false
	}
	j, verdict := bootstrap.ParseJoin(b[:])
	if verdict == bootstrap.NotHawser {
		d.turnAway(conn, verdict.String())
		return false
	}
	var e E
	claims := verdict == bootstrap.Welcome && j.Kind != bootstrap.Probe
	if claims {
		e, verdict = d.base.Pending.Claim(j, mtls.Identity(conn))
	}
	if verdict == bootstrap.WrongInstance {
		d.courtesy.Ask()
	}
	if verdict != bootstrap.Welcome {
		d.turnAway(conn, verdict.String())
	}
	_, _ = conn.Write(verdict.Marshal())
	if !claims || verdict != bootstrap.Welcome {
		return false
	}
	// From here on the connection is the endpoint's, which notices if it is
	// broken, and no flood of half-open ones may close it.
	d.leave(el)
	_ = conn.SetDeadline(time.Time{})
	e.Arrive(conn)
	return true
}

func (d *Doors[E]) turnAway(conn net.Conn, why string) {
	n := d.turnedAway.Add(1)
	// One line for each power of two: a scanner must not fill the log.
	if n&(n-1) == 0 {
		d.base.Log.Warn("turned a connection away", "from", conn.RemoteAddr().String(), "why", why, "so far", n)
	}
}
