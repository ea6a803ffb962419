package link

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
)

// packetSize is how many bytes of records the sender packs into one packet,
// unless one record alone is bigger.
const packetSize = 256 << 10

// MaxPacket is the largest packet that a carrier made by NewStream sends or
// takes. The message limits under a PacketStream must leave room for it.
func MaxPacket(maxPayload int) int {
	return max(packetSize, HeaderSize+clampPayload(maxPayload))
}

// PacketStream is what carrier L0 runs over: packets, whole, in order, both
// ways. A gRPC stream of bytes is one.
type PacketStream interface {
	// Send sends one packet and may block. It does not keep p. One goroutine
	// calls it, which may be another one than Recv's. Its error is io.EOF if
	// the other end is gone.
	Send(p []byte) error
	// Recv returns the next packet, valid until the next call. Its error is
	// io.EOF if the other end is gone, or says what is wrong.
	Recv() ([]byte, error)
	// Close ends the stream and makes a Send and a Recv under way return. It
	// is called at least once, possibly by several goroutines.
	Close() error
}

// stream is carrier L0.
type stream struct {
	s      PacketStream
	closed atomic.Bool
	out    queue
	cause  atomic.Pointer[error] // why Send failed

	in assembler // Recv's alone
}

// NewStream makes carrier L0 of a stream of packets, which the carrier owns
// from now on. Each packet holds whole records, one after the other. Payloads
// over maxPayload are refused both ways.
func NewStream(s PacketStream, maxPayload int) Carrier {
	c := &stream{s: s}
	c.in.max = clampPayload(maxPayload)
	// A packet stream has no way to send without blocking: never inline.
	c.out.max, c.out.limit, c.out.gap, c.out.write = c.in.max, queueLimit, neverInline, c.write
	c.out.run()
	return c
}

func (c *stream) Send(recs []Record, mode Mode) (int, error) { return c.out.send(recs, mode) }

func (c *stream) CarriesFiles() bool { return false }

func (c *stream) Moved() uint64 { return c.in.moved.Load() }

func (c *stream) Recv(dst []Record) ([]Record, error) {
	for start := len(dst); len(dst) == start; {
		if c.closed.Load() {
			return dst, ErrClosed
		}
		if c.in.err != nil {
			c.out.end()
			_ = c.s.Close()
			return dst, c.in.err
		}
		var err error
		if dst, err = c.packet(dst); err != nil {
			c.in.fail(err)
		}
	}
	return dst, nil
}

// packet receives one packet and appends its records. Those before a violation
// are still delivered.
func (c *stream) packet(dst []Record) ([]Record, error) {
	p, err := c.s.Recv()
	if cause := c.cause.Load(); err != nil && cause != nil && !errors.Is(*cause, io.EOF) {
		// Send saw it first and knows more.
		return dst, *cause
	}
	switch {
	case err == io.EOF:
		return dst, err
	case err != nil:
		return dst, fmt.Errorf("link: receive: %w", err)
	case len(p) > MaxPacket(c.in.max):
		return dst, fmt.Errorf("%w: packet of %d bytes, at most %d are allowed", ErrViolation, len(p), MaxPacket(c.in.max))
	}
	c.in.moved.Add(uint64(len(p)))
	c.in.buf, c.in.r, c.in.w = p, 0, len(p)
	dst, err = c.in.parse(dst)
	if err == nil && c.in.r != c.in.w {
		err = fmt.Errorf("%w: packet ends inside a record", ErrViolation)
	}
	return dst, err
}

func (c *stream) Close() error {
	c.closed.Store(true)
	c.out.end()
	err := c.s.Close()
	<-c.out.done
	return err
}

// write sends one packet of the whole records at the front of b.
func (c *stream) write(b []byte, _ []int) (int, error) {
	n := encodedSize(b)
	for n+HeaderSize <= len(b) {
		size := encodedSize(b[n:])
		if n+size > packetSize {
			break
		}
		n += size
	}
	if err := c.s.Send(b[:n]); err != nil {
		cause := fmt.Errorf("link: send: %w", err)
		c.cause.Store(&cause)
		return 0, cause
	}
	return n, nil
}
