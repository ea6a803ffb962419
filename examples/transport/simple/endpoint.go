package simple

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// endpoint has one goroutine that reads, and alone calls the handler, which
// keeps its calls from overlapping; and one that writes, so that Send never
// blocks.
type endpoint struct {
	t       *Transport
	h       sdk.Handler
	token   token         // by which t.waiting knows it, if it was accepted
	arrived chan net.Conn // one place
	closing chan struct{} // closed when the endpoint is to end
	wake    chan struct{} // there is something to write; one place

	mu       sync.Mutex
	err      error // why it ends; nil while it lives
	gone     bool  // run takes no connection any more
	unsent   [][]byte
	posted   []posted // taken and without a receipt, in order
	bytes    int      // of posted
	receipts uint32   // owed to the peer
}

// posted is a frame that was taken.
type posted struct {
	id   uint64
	size int
}

func newEndpoint(t *Transport, h sdk.Handler) *endpoint {
	return &endpoint{
		t: t, h: h, arrived: make(chan net.Conn, 1),
		closing: make(chan struct{}), wake: make(chan struct{}, 1),
	}
}

// Send implements [sdk.Endpoint]. It copies: the caller's buffers are theirs
// again when it returns. What is taken is bounded, so memory is, too.
func (e *endpoint) Send(frames []sdk.Frame, _ bool) (int, error) {
	defer e.signal()
	e.mu.Lock()
	defer e.mu.Unlock()
	for n, f := range frames {
		size := len(f.Data)
		switch {
		case e.err != nil:
			return n, sdk.Errorf(sdk.Closed, "the endpoint has ended")
		case size > maxFrame:
			return n, sdk.Errorf(sdk.TooLarge, "%d bytes are over the limit max_frame, %d", size, maxFrame)
		case len(e.posted) >= maxInflight, len(e.posted) > 0 && e.bytes+size > maxBytes:
			return n, sdk.Errorf(sdk.Backpressure, "%d frames are without a receipt", len(e.posted))
		}
		e.unsent = append(e.unsent, bytes.Clone(f.Data))
		e.posted = append(e.posted, posted{f.ID, size})
		e.bytes += size
	}
	return len(frames), nil
}

func (e *endpoint) signal() {
	select {
	case e.wake <- struct{}{}:
	default: // it is set already
	}
}

// Close implements [sdk.Endpoint].
func (e *endpoint) Close() { e.close(sdk.Errorf(sdk.Closed, "the endpoint was closed")) }

// close makes both goroutines end. The first reason counts.
func (e *endpoint) close(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
		close(e.closing)
	}
}

// run is the endpoint's life. Ended is its last act, whatever happens before.
func (e *endpoint) run() {
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case conn := <-e.arrived:
		e.carry(conn)
	case <-late.C:
		e.close(sdk.Errorf(sdk.Unavailable, "the peer did not arrive within %v", patience))
	case <-e.closing:
	}
	e.t.mu.Lock()
	delete(e.t.ends, e)
	if e.t.waiting[e.token] == e {
		delete(e.t.waiting, e.token)
	}
	e.t.mu.Unlock()
	e.mu.Lock()
	e.gone = true
	select {
	case conn := <-e.arrived: // it came too late
		_ = conn.Close()
	default:
	}
	e.mu.Unlock()
	e.h.Ended(e.err)
}

// arrive hands over the connection, unless nobody is left to close it.
func (e *endpoint) arrive(conn net.Conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		_ = conn.Close()
		return
	}
	e.arrived <- conn // has room for the one that there can be
}

// carry returns when the connection has ended, and both goroutines with it.
func (e *endpoint) carry(conn net.Conn) {
	var writing sync.WaitGroup
	writing.Go(func() {
		if err := e.write(conn); err != nil {
			e.close(sdk.Errorf(sdk.Unavailable, "write: %w", err))
		}
		_ = conn.Close() // which ends a read or write that is under way
	})
	writing.Go(func() { <-e.closing; _ = conn.Close() })
	e.close(sdk.Errorf(sdk.Unavailable, "the peer is gone: %w", e.read(conn)))
	writing.Wait()
}

// write sends what there is, until the endpoint ends.
func (e *endpoint) write(conn net.Conn) error {
	out := bufio.NewWriter(conn)
	for {
		e.mu.Lock()
		frames, receipts := e.unsent, e.receipts
		e.unsent, e.receipts = nil, 0
		e.mu.Unlock()
		if receipts > 0 {
			record(out, 'R', receipts)
		}
		for _, data := range frames {
			record(out, 'F', uint32(len(data)))
			_, _ = out.Write(data) // bufio keeps the error for Flush
		}
		if err := out.Flush(); err != nil {
			return err
		}
		select {
		case <-e.wake:
		case <-e.closing:
			return nil
		}
	}
}

func record(out *bufio.Writer, kind byte, n uint32) {
	_, _ = out.Write(binary.BigEndian.AppendUint32([]byte{kind}, n))
}

// read takes records and tells the handler. While a handler runs, which may take
// minutes if the engine has no room, nothing is
// read, and TCP slows down the peer: that is all the flow control there is.
func (e *endpoint) read(conn net.Conn) error {
	in := bufio.NewReader(conn)
	header, buf := make([]byte, 5), make([]byte, maxFrame)
	for {
		if _, err := io.ReadFull(in, header); err != nil {
			return err
		}
		n := binary.BigEndian.Uint32(header[1:])
		switch {
		case header[0] == 'F' && n <= maxFrame:
			if _, err := io.ReadFull(in, buf[:n]); err != nil {
				return err
			}
			e.h.Received([][]byte{buf[:n]})
			// Now it is ours no longer: the peer may call it done. If the
			// endpoint was closed meanwhile, it may not have been taken.
			e.mu.Lock()
			if e.err == nil {
				e.receipts++
			}
			e.mu.Unlock()
			e.signal()
		case header[0] == 'R':
			done, err := e.receive(n)
			if err != nil {
				return err
			}
			e.h.Completed(done)
		default:
			return errors.New("a record of no known type, or too long")
		}
	}
}

// receive turns a receipt into outcomes. The peer may count wrongly.
func (e *endpoint) receive(n uint32) ([]sdk.Completion, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n == 0 || int64(n) > int64(len(e.posted)) {
		return nil, errors.New("a receipt for more than was sent")
	}
	done := make([]sdk.Completion, n)
	for i, f := range e.posted[:n] {
		done[i] = sdk.Completion{ID: f.id, Outcome: sdk.Done}
		e.bytes -= f.size
	}
	e.posted = append(e.posted[:0], e.posted[n:]...)
	return done, nil
}
