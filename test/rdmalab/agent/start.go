//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os/exec"
	"sync"

	"github.com/hawser-transport/hawser/cmd/hawser/agent"
)

// start runs a child for as long as the connection lasts. An error means that
// it was not started and nothing was answered.
func start(conn net.Conn, c *agent.Command) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cmd, err := command(ctx, c)
	if err != nil {
		return err
	}
	out := &frames{conn: conn}
	cmd.Stdout, cmd.Stderr = out.of(agent.Stdout), out.of(agent.Stderr)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	out.mu.Lock() // the answer comes before what the child prints
	answered := reply(conn, agent.Answer{PID: cmd.Process.Pid})
	out.mu.Unlock()
	go func() {
		defer cancel()
		if answered == nil {
			feed(conn, stdin)
		}
	}()
	a := agent.Answer{}
	if err := cmd.Wait(); err != nil {
		a.Status, a.Error = 1, err.Error()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			a.Status = max(1, exit.ExitCode())
		}
	}
	b, err := json.Marshal(a)
	if err != nil {
		return nil // strings and numbers
	}
	_, _ = out.of(agent.Exit).Write(b)
	return nil
}

// feed writes what comes to the child's stdin until the connection ends.
func feed(conn net.Conn, stdin io.WriteCloser) {
	defer stdin.Close()
	for {
		kind, b, err := agent.ReadFrame(conn)
		if err != nil {
			return
		}
		if kind == agent.Stdin && len(b) == 0 {
			_ = stdin.Close()
		} else if kind == agent.Stdin {
			_, _ = stdin.Write(b) // a child that reads no more is no reason to end it
		}
	}
}

// frames are written one at a time.
type frames struct {
	mu   sync.Mutex
	conn net.Conn
}

func (f *frames) of(kind byte) io.Writer {
	return writer(func(p []byte) (n int, err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for len(p) > 0 && err == nil {
			k := min(len(p), agent.MaxFrame)
			err = agent.WriteFrame(f.conn, kind, p[:k])
			n, p = n+k, p[k:]
		}
		return n, err
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
