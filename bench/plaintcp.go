package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// The baseline: the same notifications over one loopback TCP connection, in
// the processes that use them, with nothing between. A frame has the size of
// Hawser's: 44 bytes of header, the raw encoding, and a length before it. The
// receiver reads in batches, copies each payload, and acknowledges each batch
// with the count so far. Writes are inline when the connection is quiet and
// coalesced when sends come back to back, as Hawser's are.

const (
	plainHeader = 44
	kindPing    = 1
	kindPong    = 2
	kindData    = 3
	kindAck     = 4
)

// coalescer writes to a connection.
type coalescer struct {
	conn net.Conn
	mu   sync.Mutex
	buf  []byte
	back []byte
	busy bool
	last time.Time
	kick chan struct{}
}

// backToBack is the gap under which sends are coalesced.
const backToBack = 2 * time.Microsecond

func newCoalescer(conn net.Conn) *coalescer {
	c := &coalescer{conn: conn, kick: make(chan struct{}, 1)}
	go c.flusher()
	return c
}

// frame appends a frame; with lazy it leaves the write to the flusher.
func (c *coalescer) frame(kind byte, seq uint64, payload []byte, lazy bool) error {
	c.mu.Lock()
	name := "data"
	size := plainHeader + 8 + len(name) + len(payload)
	c.buf = binary.LittleEndian.AppendUint32(c.buf, uint32(size))
	var h [plainHeader]byte
	h[5] = kind
	binary.LittleEndian.PutUint64(h[24:], seq)
	c.buf = append(c.buf, h[:]...)
	c.buf = binary.LittleEndian.AppendUint32(c.buf, uint32(len(name)))
	c.buf = append(c.buf, name...)
	c.buf = binary.LittleEndian.AppendUint32(c.buf, uint32(len(payload)))
	c.buf = append(c.buf, payload...)
	now := time.Now()
	quiet := now.Sub(c.last) >= backToBack
	c.last = now
	full := len(c.buf) > 1<<20
	if c.busy || lazy || !quiet {
		c.mu.Unlock()
		select {
		case c.kick <- struct{}{}:
		default:
		}
		for full { // bounded, as a sender must be
			time.Sleep(50 * time.Microsecond)
			c.mu.Lock()
			full = len(c.buf) > 1<<20
			c.mu.Unlock()
		}
		return nil
	}
	return c.writeLocked()
}

// writeLocked writes what is there and unlocks.
func (c *coalescer) writeLocked() error {
	c.busy = true
	out := c.buf
	c.buf = c.back[:0]
	c.mu.Unlock()
	_, err := c.conn.Write(out)
	c.mu.Lock()
	c.back, c.busy = out, false
	c.last = time.Now()
	more := len(c.buf) > 0
	c.mu.Unlock()
	if more {
		select {
		case c.kick <- struct{}{}:
		default:
		}
	}
	return err
}

func (c *coalescer) flusher() {
	for range c.kick {
		c.mu.Lock()
		if c.busy || len(c.buf) == 0 {
			c.mu.Unlock()
			continue
		}
		if c.writeLocked() != nil {
			return
		}
	}
}

// readFrames calls f for each frame; last says that no whole frame is left of
// what was read.
func readFrames(conn net.Conn, f func(kind byte, seq uint64, payload []byte, last bool) error) error {
	r := bufio.NewReaderSize(conn, 64<<10)
	frame := make([]byte, 0, 1<<10)
	for {
		var length [4]byte
		if _, err := io.ReadFull(r, length[:]); err != nil {
			return err
		}
		n := int(binary.LittleEndian.Uint32(length[:]))
		if n < plainHeader+8 || n > 1<<20 {
			return fmt.Errorf("frame of %d bytes", n)
		}
		if cap(frame) < n {
			frame = make([]byte, n)
		}
		frame = frame[:n]
		if _, err := io.ReadFull(r, frame); err != nil {
			return err
		}
		nameLen := int(binary.LittleEndian.Uint32(frame[plainHeader:]))
		payload := frame[plainHeader+8+nameLen:]
		if err := f(frame[5], binary.LittleEndian.Uint64(frame[24:]), payload, r.Buffered() == 0); err != nil {
			return err
		}
	}
}

type plainClient struct {
	w     *coalescer
	conn  net.Conn
	peer  *child
	seq   uint64
	pongs chan []byte

	mu    sync.Mutex
	acked uint64
	woken *sync.Cond
	err   error
}

func openPlainTCP() (client, error) {
	peer, err := self("tcp")
	if err != nil {
		return nil, err
	}
	conn, err := net.Dial("tcp", peer.address)
	if err != nil {
		peer.stop()
		return nil, err
	}
	c := &plainClient{w: newCoalescer(conn), conn: conn, peer: peer, pongs: make(chan []byte, 16)}
	c.woken = sync.NewCond(&c.mu)
	go c.read()
	return c, nil
}

func (c *plainClient) read() {
	err := readFrames(c.conn, func(kind byte, seq uint64, payload []byte, _ bool) error {
		if kind == kindPong {
			c.pongs <- append([]byte(nil), payload...)
			return nil
		}
		c.mu.Lock()
		c.acked = seq
		c.mu.Unlock()
		c.woken.Broadcast()
		return nil
	})
	c.mu.Lock()
	c.err = err
	c.mu.Unlock()
	c.woken.Broadcast()
	close(c.pongs)
}

func (c *plainClient) RoundTrip(payload []byte) error {
	if err := c.w.frame(kindPing, 0, payload, false); err != nil {
		return err
	}
	if _, ok := <-c.pongs; !ok {
		return io.ErrUnexpectedEOF
	}
	return nil
}

func (c *plainClient) Send(payload []byte) (func() error, error) {
	c.seq++
	seq := c.seq
	if err := c.w.frame(kindData, seq, payload, false); err != nil {
		return nil, err
	}
	return func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		for c.acked < seq && c.err == nil {
			c.woken.Wait()
		}
		return c.err
	}, nil
}

func (c *plainClient) Close() {
	_ = c.conn.Close()
	c.peer.stop()
}

// servePlainTCP is the baseline's peer. What it receives goes through a queue
// to another goroutine, as a program that uses it would have it.
func servePlainTCP() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		w := newCoalescer(conn)
		type item struct {
			kind    byte
			payload []byte
		}
		queue := make(chan item, 1<<16)
		go func() {
			for x := range queue {
				if x.kind == kindPing {
					_ = w.frame(kindPong, 0, x.payload, false)
				}
			}
		}()
		var received uint64
		_ = readFrames(conn, func(kind byte, _ uint64, payload []byte, last bool) error {
			queue <- item{kind, append([]byte(nil), payload...)}
			if kind == kindData {
				received++
				if last {
					return w.frame(kindAck, received, nil, true)
				}
			}
			return nil
		})
	}()
	untilEOF()
	return nil
}
