package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// request is a line at the control socket. An empty one only asks for the
// counts.
type request struct {
	// Set replaces the faults.
	Set *faultSet `json:"set"`
	// Do is hang, resume or crash.
	Do string `json:"do"`
}

// answer is the line that answers it, unless it was to crash.
type answer struct {
	PID    int                 `json:"pid"`
	Counts sdktest.FaultCounts `json:"counts"`
	Error  string              `json:"error,omitempty"`
}

// control is the socket: JSON, one request a line, answered in order.
type control struct {
	f  *sdktest.FaultyTransport
	ln net.Listener

	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil once closed
	tasks sync.WaitGroup
}

// listen makes the socket. One that an earlier process left is replaced.
func listen(path string, f *sdktest.FaultyTransport) (*control, error) {
	if st, err := os.Lstat(path); err == nil && st.Mode().Type() == fs.ModeSocket {
		_ = os.Remove(path)
	}
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "faults.control: %w", err)
	}
	c := &control{f: f, ln: ln, conns: map[net.Conn]struct{}{}}
	c.tasks.Go(c.accept)
	return c, nil
}

func (c *control) accept() {
	for {
		conn, err := c.ln.Accept()
		if err != nil {
			return
		}
		c.mu.Lock()
		if c.conns == nil {
			c.mu.Unlock()
			_ = conn.Close()
			return
		}
		c.conns[conn] = struct{}{}
		c.tasks.Go(func() { c.serve(conn) })
		c.mu.Unlock()
	}
}

func (c *control) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.conns, conn)
	}()
	out := json.NewEncoder(conn)
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		a := answer{PID: os.Getpid()}
		if err := c.handle(lines.Bytes()); err != nil {
			a.Error = err.Error()
		}
		a.Counts = c.f.Counts()
		if out.Encode(a) != nil {
			return
		}
	}
}

func (c *control) handle(line []byte) error {
	var r request
	if err := json.Unmarshal(line, &r); err != nil {
		return err
	}
	if r.Set != nil {
		if err := r.Set.check(); err != nil {
			return err
		}
		c.f.Set(r.Set.faults())
	}
	switch r.Do {
	case "":
	case "hang":
		c.f.Hang()
	case "resume":
		c.f.Resume()
	case "crash":
		c.f.Crash()
	default:
		return fmt.Errorf("unknown do %q", r.Do)
	}
	return nil
}

func (c *control) close() {
	_ = c.ln.Close()
	c.mu.Lock()
	for conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
	c.mu.Unlock()
	c.tasks.Wait()
}
