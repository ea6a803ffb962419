package rigtest

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
)

const burst = 2000

// Bench compares a transport, within one process, with plain TCP. Each
// benchmark has two contenders that share their round: plain TCP, written as
// well as a person would for that one purpose, with one reply after the last
// message, and the transport, every frame of which gets its outcome. Run it
// with -count and compare the medians' ratio.
func Bench(b *testing.B, name string, fresh func() sdk.Transport) {
	b.Run("RoundTrip", func(b *testing.B) { benchRoundTrip(b, name, fresh) })
	b.Run("Burst", func(b *testing.B) { benchBurst(b, name, fresh) })
	b.Run("OneWay", func(b *testing.B) { benchOneWay(b, name, fresh) })
}

// plainPair is a TCP connection to oneself.
func plainPair(tb testing.TB) (a, b net.Conn) {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer ln.Close() //nolint:errcheck // it has served
	if a, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		tb.Fatal(err)
	}
	if b, err = ln.Accept(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = a.Close()
		_ = b.Close()
	})
	return a, b
}

// hook is a handler made of functions.
type hook struct {
	received  func(frames [][]byte)
	completed func(cs []sdk.Completion)
}

func (h *hook) Received(frames [][]byte) {
	if h.received != nil {
		h.received(frames)
	}
}

func (h *hook) Completed(cs []sdk.Completion) {
	if h.completed != nil {
		h.completed(cs)
	}
}

func (h *hook) Ended(error) {}

func benchRoundTrip(b *testing.B, name string, fresh func() sdk.Transport) {
	b.Run("plain", func(b *testing.B) {
		x, y := plainPair(b)
		go io.Copy(y, struct{ io.Reader }{y}) //nolint:errcheck // ends with the pair
		msg := make([]byte, 64)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := x.Write(msg); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(x, msg); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run(name, func(b *testing.B) {
		var there, back hook
		var left atomic.Int64
		na, nb := Start(b, fresh(), sdk.Config{Instance: 1}), Start(b, fresh(), sdk.Config{Instance: 2})
		ea, eb := Connect(b, na, nb, 1, &there, &back)
		sa, sb := &Sender{Endpoint: ea}, &Sender{Endpoint: eb}
		finished := make(chan struct{})
		back.received = func(frames [][]byte) { _ = sb.Try(frames[0]) }
		there.received = func(frames [][]byte) {
			if left.Add(-1) == 0 {
				close(finished)
				return
			}
			_ = sa.Try(frames[0])
		}
		left.Store(int64(b.N))
		b.ReportAllocs()
		b.ResetTimer()
		_ = sa.Try(make([]byte, 64))
		<-finished
	})
}

// benchBurst is the time from the first of 2000 sends to the last receipt.
func benchBurst(b *testing.B, name string, fresh func() sdk.Transport) {
	b.Run("plain", func(b *testing.B) {
		x, y := plainPair(b)
		go plainSink(y, 64, burst)
		w := newPlainWriter(x)
		defer w.close()
		msg := make([]byte, 64)
		var ack [8]byte
		b.ReportAllocs()
		for b.Loop() {
			for range burst {
				w.send(msg)
			}
			if _, err := io.ReadFull(x, ack[:]); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run(name, func(b *testing.B) {
		s := newCounted(b, fresh)
		msg := make([]byte, 64)
		b.ReportAllocs()
		for b.Loop() {
			for range burst {
				s.send(b, msg)
			}
			s.settle()
		}
	})
}

// benchOneWay is the time per message of an endless stream, which the
// receiver counts.
func benchOneWay(b *testing.B, name string, fresh func() sdk.Transport) {
	for _, c := range []struct {
		name string
		size int
	}{{"64B", 64}, {"64KiB", 64 << 10}} {
		b.Run(c.name+"/plain", func(b *testing.B) {
			x, y := plainPair(b)
			go plainSink(y, c.size, b.N)
			w := newPlainWriter(x)
			defer w.close()
			msg := make([]byte, c.size)
			var ack [8]byte
			b.SetBytes(int64(c.size))
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				w.send(msg)
			}
			if _, err := io.ReadFull(x, ack[:]); err != nil {
				b.Fatal(err)
			}
		})
		b.Run(c.name+"/"+name, func(b *testing.B) {
			s := newCounted(b, fresh)
			msg := make([]byte, c.size)
			b.SetBytes(int64(c.size))
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				s.send(b, msg)
			}
			s.settle()
		})
	}
}

// counted sends over an endpoint and waits for receipts.
type counted struct {
	s    *Sender
	sent int64
	done atomic.Int64
	news chan struct{}
}

func newCounted(b *testing.B, fresh func() sdk.Transport) *counted {
	c := &counted{news: make(chan struct{}, 1)}
	na, nb := Start(b, fresh(), sdk.Config{Instance: 1}), Start(b, fresh(), sdk.Config{Instance: 2})
	ea, _ := Connect(b, na, nb, 1, &hook{completed: func(cs []sdk.Completion) {
		c.done.Add(int64(len(cs)))
		select {
		case c.news <- struct{}{}:
		default:
		}
	}}, &hook{})
	c.s = &Sender{Endpoint: ea}
	return c
}

func (c *counted) send(b *testing.B, msg []byte) {
	for {
		err := c.s.Try(msg)
		if err == nil {
			c.sent++
			return
		}
		if sdk.CodeOf(err) != sdk.Backpressure {
			b.Fatal(err)
		}
		<-c.news
	}
}

func (c *counted) settle() {
	for c.done.Load() < c.sent {
		<-c.news
	}
}

// plainWriter coalesces what is sent while it writes.
type plainWriter struct {
	conn net.Conn
	mu   sync.Mutex
	more sync.Cond
	room sync.Cond
	buf  []byte
	over bool
}

func newPlainWriter(conn net.Conn) *plainWriter {
	w := &plainWriter{conn: conn}
	w.more.L, w.room.L = &w.mu, &w.mu
	go w.run()
	return w
}

func (w *plainWriter) send(msg []byte) {
	w.mu.Lock()
	for len(w.buf) > 1<<20 {
		w.room.Wait()
	}
	w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(len(msg)))
	w.buf = append(w.buf, msg...)
	w.mu.Unlock()
	w.more.Signal()
}

func (w *plainWriter) run() {
	var out []byte
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.over {
		if len(w.buf) == 0 {
			w.more.Wait()
			continue
		}
		out, w.buf = w.buf, out[:0]
		w.room.Signal()
		w.mu.Unlock()
		_, err := w.conn.Write(out)
		w.mu.Lock()
		w.over = w.over || err != nil
	}
}

func (w *plainWriter) close() {
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	w.more.Signal()
}

// plainSink reads messages and answers every n of them with 8 bytes.
func plainSink(conn net.Conn, size, n int) {
	r := bufio.NewReaderSize(conn, 128<<10)
	msg := make([]byte, size)
	var head [4]byte
	for got := 0; ; {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return
		}
		if _, err := io.ReadFull(r, msg[:binary.LittleEndian.Uint32(head[:])]); err != nil {
			return
		}
		if got++; got == n {
			got = 0
			if _, err := conn.Write(head[:4:4]); err != nil {
				return
			}
			if _, err := conn.Write(head[:4:4]); err != nil {
				return
			}
		}
	}
}
