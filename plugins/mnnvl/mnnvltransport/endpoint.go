//go:build linux

package mnnvltransport

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
)

// endpoint is one end of a connection that carries nothing. Its run goroutine
// waits for the connection's end and then for the copies'.
type endpoint struct {
	t       *Transport
	handler sdk.Handler
	peer    string // for messages
	// provider and instance are whose regions ops may name: those of the
	// instance that the connection leads to. active says that ops may be sent.
	provider sdk.Incarnation
	instance uint64
	active   bool
	arrived  chan net.Conn // an accepted endpoint's connection, holds one

	ctx     context.Context // ends when it is to end
	cancel  context.CancelCauseFunc
	closing atomic.Bool

	// calls is held while the handler is called.
	calls sync.Mutex

	mu    sync.Mutex
	conn  net.Conn
	open  int
	bytes int
	idle  chan struct{} // closed once it is closing and no op is open
}

func newEndpoint(t *Transport, target sdk.Target, h sdk.Handler) *endpoint {
	e := &endpoint{
		t: t, handler: h, peer: bootstrap.PeerName(target), provider: target.Peer,
		arrived: make(chan net.Conn, 1), idle: make(chan struct{}),
	}
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	return e
}

func (e *endpoint) isClosing() bool { return e.closing.Load() }

// Send implements [sdk.Endpoint].
func (e *endpoint) Send(frames []sdk.Frame, _ bool) (int, error) {
	for i, f := range frames {
		t := e.parse(f)
		if err := e.admit(t); err != nil {
			if t.here != nil {
				e.t.regions.release(t.here)
			}
			return i, err
		}
		d := e.t.devices[0]
		if t.here != nil {
			d = t.here.device
		}
		d.worker.push(t)
	}
	return len(frames), nil
}

// parse makes a task of an op. One that cannot be done says why.
func (e *endpoint) parse(f sdk.Frame) *task {
	t := &task{e: e, id: f.ID}
	var err error
	if t.op, err = limits.ParseOp(f.Data); err == nil {
		err = e.resolve(t)
	}
	if err != nil {
		t.refused = sdk.CodeOf(err)
	}
	return t
}

// The reasons why an op is not posted, made once; a Completion has only the code.
var (
	errPassive = sdk.Errorf(sdk.Unsupported, "the passive end sends no ops")
	errStale   = sdk.Errorf(sdk.StaleCapability, "no such region")
	errReach   = sdk.Errorf(sdk.Unsupported, "the region is out of the device's reach")
)

// resolve finds an op's regions and checks ranges and permissions.
func (e *endpoint) resolve(t *task) error {
	if !e.active {
		return errPassive
	}
	o := &t.op
	if t.here = e.t.regions.take(o.Local); t.here == nil {
		return errStale
	}
	t.there = e.t.remotes.find(e.provider, o)
	if t.there == nil || t.there.Instance != e.instance {
		return errStale
	}
	if !t.here.device.place.reaches(&t.there.export) {
		return errReach
	}
	if err := t.here.Admit(o.Kind == sdk.Read, o.LocalOffset, o.Length); err != nil {
		return err
	}
	return t.there.Admit(o.Kind == sdk.Write, o.RemoteOffset, o.Length)
}

// admit counts an op, if there is room.
func (e *endpoint) admit(t *task) error {
	size := int(t.op.Length)
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closing.Load():
		return errClosed
	case e.open >= limits.Inflight, e.open > 0 && e.bytes+size > limits.InflightBytes:
		return errFull
	}
	e.open++
	e.bytes += size
	return nil
}

// complete tells the handler of outcomes. There is room again before it is
// called, since it may send.
func (e *endpoint) complete(os []outcome) {
	e.calls.Lock()
	defer e.calls.Unlock()
	cs := make([]sdk.Completion, len(os))
	e.mu.Lock()
	for i, o := range os {
		cs[i] = o.Completion
		e.bytes -= int(o.bytes)
	}
	e.open -= len(os)
	e.settle()
	e.mu.Unlock()
	e.handler.Completed(cs)
}

// settle notes that nothing is open any more. The lock is held.
func (e *endpoint) settle() {
	if !e.closing.Load() || e.open > 0 {
		return
	}
	select {
	case <-e.idle:
	default:
		close(e.idle)
	}
}

// Close implements [sdk.Endpoint].
func (e *endpoint) Close() { e.End(errClosed) }

// End ends it for a reason. The first one counts.
func (e *endpoint) End(cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closing.Store(true)
	e.cancel(cause)
	if e.conn != nil {
		_ = e.conn.Close()
	}
	e.settle()
}

// Arrive implements [streams.Arriver].
func (e *endpoint) Arrive(conn net.Conn) { e.arrived <- conn }

// attach gives the endpoint its connection, unless it has ended.
func (e *endpoint) attach(conn net.Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing.Load() {
		return false
	}
	if c, ok := mtls.Under(conn).(*net.TCPConn); ok { // which is silent while its peer's machine is gone
		_ = c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 5})
	}
	e.conn = conn
	return true
}

// await is an accepted endpoint's goroutine until its peer arrives.
func (e *endpoint) await(token bootstrap.Token, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case conn := <-e.arrived:
		e.run(conn)
		return
	case <-timer.C:
		e.End(sdk.Errorf(sdk.Unavailable, "%s did not connect within %s", e.peer, wait))
	case <-e.ctx.Done():
	}
	if !e.t.Pending.Remove(token) {
		// It was claimed a moment ago, and comes too late.
		_ = (<-e.arrived).Close()
	}
	e.finish()
}

// run waits for the end of the connection.
func (e *endpoint) run(conn net.Conn) {
	if !e.attach(conn) {
		_ = conn.Close()
	} else {
		var b [1]byte
		_, err := io.ReadFull(conn, b[:])
		e.End(e.broke(err))
	}
	e.finish()
}

// broke words the end of the connection.
func (e *endpoint) broke(err error) error {
	switch {
	case err == nil:
		return sdk.Errorf(sdk.Refused, "%s sent something on a connection that carries nothing", e.peer)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return sdk.Errorf(sdk.Unavailable, "%s closed the connection", e.peer)
	}
	return sdk.Errorf(sdk.Unavailable, "the connection to %s broke: %w", e.peer, err)
}

// finish waits until no copy of the endpoint is under way, and says so: nothing
// of this process touches memory for it any more.
func (e *endpoint) finish() {
	<-e.idle
	e.calls.Lock() // the last outcomes are being told
	defer e.calls.Unlock()
	e.t.Life.Forget(e)
	e.handler.Ended(context.Cause(e.ctx))
}
