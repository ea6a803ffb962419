package benchnode

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
)

// The plain program that transfers are compared with: it copies the same bytes
// between the same memory over one TCP connection, in the processes that use
// them, with nothing between. A request is a header and, of a write, its bytes;
// the answer to a write is one byte, to a read its bytes. Answers come in order.

// plainHeader is u8 write | 3 zero | u32 size | u64 offset.
const plainHeader = 16

type plainServer struct {
	l       net.Listener
	running sync.WaitGroup
	mu      sync.Mutex
	conns   []net.Conn
}

func servePlain(memory []byte) (*plainServer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &plainServer{l: l}
	s.running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, conn)
			s.mu.Unlock()
			s.running.Go(func() {
				defer conn.Close() //nolint:errcheck // its other end knows
				_ = answerPlain(conn, memory)
			})
		}
	})
	return s, nil
}

func (s *plainServer) address() string { return s.l.Addr().String() }

func (s *plainServer) close() {
	_ = s.l.Close()
	s.mu.Lock()
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
}

func answerPlain(conn net.Conn, memory []byte) error {
	var h [plainHeader]byte
	for {
		if _, err := io.ReadFull(conn, h[:]); err != nil {
			return err
		}
		size, offset := uint64(binary.LittleEndian.Uint32(h[4:])), binary.LittleEndian.Uint64(h[8:])
		if offset > uint64(len(memory)) || size > uint64(len(memory))-offset {
			return fmt.Errorf("%d bytes at %d are not within %d", size, offset, len(memory))
		}
		part := memory[offset : offset+size]
		if h[0] == 0 {
			if _, err := conn.Write(part); err != nil {
				return err
			}
			continue
		}
		if _, err := io.ReadFull(conn, part); err != nil {
			return err
		}
		if _, err := conn.Write([]byte{1}); err != nil {
			return err
		}
	}
}

// plainClient moves between its memory and a server's.
type plainClient struct {
	conn   net.Conn
	memory []byte
	under  chan *plainOp
	over   chan struct{} // closed when the reader has ended
}

// plainOp is one that is under way.
type plainOp struct {
	into []byte // of a read
	done chan struct{}
	err  error
}

// Wait returns when the op has ended.
func (o *plainOp) Wait(ctx context.Context) error {
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func dialPlain(address string, memory []byte) (*plainClient, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	p := &plainClient{conn, memory, make(chan *plainOp, 1<<16), make(chan struct{})}
	go p.read()
	return p, nil
}

func (p *plainClient) begin(write bool, slot, size int) (*plainOp, error) {
	offset := slot * size
	part := p.memory[offset : offset+size]
	var h [plainHeader]byte
	binary.LittleEndian.PutUint32(h[4:], uint32(size))
	binary.LittleEndian.PutUint64(h[8:], uint64(offset))
	o := &plainOp{done: make(chan struct{})}
	out := net.Buffers{h[:]}
	if write {
		h[0] = 1
		out = append(out, part)
	} else {
		o.into = part
	}
	p.under <- o
	_, err := out.WriteTo(p.conn)
	return o, err
}

func (p *plainClient) read() {
	defer close(p.over)
	r := bufio.NewReader(p.conn) // large reads go past its buffer
	var failed error
	for o := range p.under {
		into := o.into
		if into == nil {
			into = make([]byte, 1)
		}
		if failed == nil {
			_, failed = io.ReadFull(r, into)
		}
		o.err = failed
		close(o.done)
	}
}

func (p *plainClient) close() {
	close(p.under)
	_ = p.conn.Close()
	<-p.over
}
