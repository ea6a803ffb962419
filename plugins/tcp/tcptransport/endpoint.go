package tcptransport

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/sdk"
)

// endpoint is one end of a connection for frames. Its run goroutine is the only one that
// calls the handler.
type endpoint struct {
	t       *Transport
	handler sdk.Handler
	peer    string // for messages
	out     *writer
	arrived chan *socket // an accepted endpoint's connection, holds one
}

func newEndpoint(t *Transport, target sdk.Target, h sdk.Handler) *endpoint {
	peer := bootstrap.PeerName(target)
	return &endpoint{t: t, handler: h, peer: peer, out: newWriter(t, peer), arrived: make(chan *socket, 1)}
}

// Send implements [sdk.Endpoint].
func (e *endpoint) Send(frames []sdk.Frame, more bool) (int, error) { return e.out.send(frames, more) }

// Close implements [sdk.Endpoint].
func (e *endpoint) Close() { e.End(errClosed) }

// Arrive implements end.
func (e *endpoint) Arrive(conn net.Conn) { e.arrived <- newSocket(conn, &e.t.chunks) }

// End ends it for a reason.
func (e *endpoint) End(cause error) { e.out.end(cause) }

// await is an accepted endpoint's goroutine until its peer arrives.
func (e *endpoint) await(token bootstrap.Token, patience time.Duration) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case sock := <-e.arrived:
		e.run(sock)
		return
	case <-timer.C:
		e.out.end(sdk.Errorf(sdk.Unavailable, "%s did not connect within %s", e.peer, patience))
	case <-e.out.done:
	}
	if !e.t.Pending.Remove(token) {
		// It was claimed a moment ago, and comes too late.
		_ = (<-e.arrived).Close()
	}
	e.finish()
}

// run carries the connection's traffic until it ends.
func (e *endpoint) run(sock *socket) {
	if e.out.attach(sock) {
		e.t.Life.Tasks.Go(e.out.flush)
		e.out.end(e.read(sock))
	} else {
		_ = sock.Close()
	}
	e.finish()
}

func (e *endpoint) finish() {
	cs, cause := e.out.withdraw()
	if len(cs) > 0 {
		e.handler.Completed(cs)
	}
	e.t.Life.Forget(e)
	e.handler.Ended(cause)
}

// read hands over what comes until the connection ends, and says why it did.
func (e *endpoint) read(sock *socket) error {
	var buf *chunk
	defer func() {
		if buf != nil {
			e.t.chunks.put(buf)
		}
	}()
	for {
		if err := sock.read(&buf); err != nil {
			return e.broke(err)
		}
		used, err := buf.in.parse(buf.b)
		if in := &buf.in; in.receipted {
			var bad error
			if buf.done, bad = e.out.receipted(in.count, buf.done[:0]); bad != nil {
				return bad
			}
			if len(buf.done) > 0 {
				e.handler.Completed(buf.done)
			}
		}
		if in := &buf.in; len(in.frames) > 0 {
			frames := len(in.frames)
			e.out.heard.Store(true)
			e.handler.Received(in.frames)
			e.out.taken(frames, in.bytes)
		}
		if err != nil {
			return err
		}
		buf.b = buf.b[:copy(buf.b, buf.b[used:])]
	}
}

// broke words the end of a connection.
func (e *endpoint) broke(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return sdk.Errorf(sdk.Unavailable, "%s closed the connection", e.peer)
	}
	if errors.Is(err, net.ErrClosed) {
		return errClosed
	}
	return sdk.Errorf(sdk.Unavailable, "the connection to %s broke: %w", e.peer, err)
}
