package transfer

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"

	"github.com/hawser-transport/hawser/sdk"
)

// Conn carries bytes in order, both ways. One goroutine at a time reads, one
// writes. Close makes both return, soon and for good; any goroutine may call
// it, more than once.
type Conn interface {
	io.ReadWriteCloser
}

// Endpoint is an [Active] or a [Passive].
type Endpoint interface {
	sdk.Endpoint
	// End ends it, for a cause of which only the first counts.
	End(cause error)
	// Arrive gives it its connection, once.
	Arrive(conn Conn)
	// Done is closed when it has ended, before Ended is called.
	Done() <-chan struct{}
}

// What Send returns, made once.
var (
	errClosed  = sdk.Errorf(sdk.Closed, "the endpoint is closed")
	errFull    = sdk.Errorf(sdk.Backpressure, "as many ops are under way as may be")
	errPassive = sdk.Errorf(sdk.InvalidArgument, "ops are of the side that connected the endpoint")
)

// batchOps and batchBytes bound what is written at a time, except that one op
// of any size is.
const (
	batchOps   = 64
	batchBytes = 256 << 10
)

// end is what both ends have: their connection, and how they end.
type end struct {
	peer    string        // for messages
	done    chan struct{} // closed when it has ended
	arrived chan Conn     // holds one

	mu    sync.Mutex
	conn  Conn
	cause error // nil before
}

func newEnd(peer string) end {
	return end{peer: peer, done: make(chan struct{}), arrived: make(chan Conn, 1)}
}

// Arrive implements [Endpoint].
func (e *end) Arrive(conn Conn) { e.arrived <- conn }

// Done implements [Endpoint].
func (e *end) Done() <-chan struct{} { return e.done }

// End implements [Endpoint].
func (e *end) End(cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cause == nil {
		e.cause = cause
		close(e.done)
	}
	if e.conn != nil {
		_ = e.conn.Close()
	}
}

// Close implements [sdk.Endpoint].
func (e *end) Close() { e.End(errClosed) }

// carry runs both halves over a connection until the endpoint has ended, and
// meanwhile, which returns then, too. Afterwards nothing reads or writes.
func (e *end) carry(conn Conn, read, write func(Conn) error, meanwhile func()) {
	e.mu.Lock()
	e.conn = conn
	ended := e.cause != nil
	e.mu.Unlock()
	if ended {
		_ = conn.Close()
		return
	}
	var halves sync.WaitGroup
	halves.Go(func() { e.End(e.broke(read(conn))) })
	halves.Go(func() { e.End(e.broke(write(conn))) })
	meanwhile()
	halves.Wait()
}

// broke words the end of a connection.
func (e *end) broke(err error) error {
	switch {
	case err == nil || errors.Is(err, net.ErrClosed):
		return errClosed
	case sdk.CodeOf(err) != 0:
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return sdk.Errorf(sdk.Unavailable, "%s closed the connection", e.peer)
	}
	return sdk.Errorf(sdk.Unavailable, "the connection to %s broke: %w", e.peer, err)
}

// wake puts a token into a channel that holds one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
