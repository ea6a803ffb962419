package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync"
)

// Child is a process that the agent runs for this one.
type Child struct {
	PID  int
	conn net.Conn
	gone chan struct{}

	mu    sync.Mutex // of writes
	ended bool       // of stdin
	exit  error
}

// Start starts a program. What it prints is written to stdout and stderr, one
// write at a time.
func (h Host) Start(ctx context.Context, c Command, stdout, stderr io.Writer) (*Child, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, in, a, err := h.open(ctx, Request{Start: &c})
	if err != nil {
		return nil, err
	}
	p := &Child{PID: a.PID, conn: conn, gone: make(chan struct{})}
	go func() {
		defer close(p.gone)
		defer conn.Close()
		p.exit = copyOut(in, stdout, stderr)
	}()
	return p, nil
}

// copyOut takes in frames until the child has ended.
func copyOut(in *bufio.Reader, stdout, stderr io.Writer) error {
	for {
		kind, b, err := ReadFrame(in)
		if err != nil {
			return fmt.Errorf("the connection to the agent ended: %w", err)
		}
		switch kind {
		case Stdout:
			_, _ = stdout.Write(b)
		case Stderr:
			_, _ = stderr.Write(b)
		case Exit:
			var a Answer
			if err := json.Unmarshal(b, &a); err != nil {
				return err
			}
			if a.Status != 0 {
				return fmt.Errorf("exit status %d %s", a.Status, a.Error)
			}
			return nil
		}
	}
}

// Write writes to the child's stdin.
func (p *Child) Write(b []byte) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(b) > 0 && err == nil {
		k := min(len(b), MaxFrame)
		if err = WriteFrame(p.conn, Stdin, b[:k]); err == nil {
			n += k
		}
		b = b[k:]
	}
	return n, err
}

// CloseStdin ends the child's stdin.
func (p *Child) CloseStdin() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return nil
	}
	p.ended = true
	return WriteFrame(p.conn, Stdin, nil)
}

// Gone is closed when the child has ended and all that it printed was written.
func (p *Child) Gone() <-chan struct{} { return p.gone }

// Wait waits for that; a status other than 0 is an error.
func (p *Child) Wait() error {
	<-p.gone
	return p.exit
}

// Kill lets the agent kill the child and its process group.
func (p *Child) Kill() {
	_ = p.conn.Close()
	<-p.gone
}
