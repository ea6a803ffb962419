//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/cmd/hawser/agent"
)

const (
	// maxConns bounds requests and children at a time.
	maxConns = 128
	// maxRequest bounds a request's line, requestIn the wait for it.
	maxRequest = 1 << 20
	requestIn  = 30 * time.Second
)

func serve(l net.Listener, secret string) error {
	room := make(chan struct{}, maxConns)
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		room <- struct{}{}
		go func() {
			defer func() { conn.Close(); <-room }()
			handle(conn, secret)
		}()
	}
}

func handle(conn net.Conn, secret string) {
	_ = conn.SetReadDeadline(time.Now().Add(requestIn))
	var q agent.Request
	line, err := bufio.NewReader(io.LimitReader(conn, maxRequest)).ReadBytes('\n') // nothing follows unasked
	if err == nil {
		err = json.Unmarshal(line, &q)
	}
	if err == nil && subtle.ConstantTimeCompare([]byte(q.Secret), []byte(secret)) != 1 {
		err = errors.New("not this host's secret")
	}
	_ = conn.SetReadDeadline(time.Time{})
	if err == nil && q.Start != nil {
		err = start(conn, q.Start)
		if err == nil {
			return
		}
	}
	var a agent.Answer
	if err == nil {
		a, err = answer(q)
	}
	if err != nil {
		a.Error = err.Error()
	}
	_ = reply(conn, a)
}

func reply(w io.Writer, a agent.Answer) error {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // cannot fail
	a.Clock = t.Nano()
	line, err := json.Marshal(a)
	if err == nil {
		_, err = w.Write(append(line, '\n'))
	}
	return err
}

func answer(q agent.Request) (agent.Answer, error) {
	switch {
	case q.Run != nil:
		return run(q.Run)
	case q.Signal != nil:
		return agent.Answer{}, signal(q.Signal)
	case q.Stat != nil:
		return stat(q.Stat)
	case q.Read != "":
		f, err := os.Open(q.Read)
		if err != nil {
			return agent.Answer{}, err
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, agent.MaxOutput))
		return agent.Answer{Output: b}, err
	case q.List != "":
		entries, err := os.ReadDir(q.List)
		var names bytes.Buffer
		for _, e := range entries {
			fmt.Fprintln(&names, e.Name())
		}
		return agent.Answer{Output: names.Bytes()}, err
	default:
		return agent.Answer{}, errors.New("nothing is asked for")
	}
}

// run runs a short command.
func run(c *agent.Command) (agent.Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), c.Limit())
	defer cancel()
	cmd, err := command(ctx, c)
	if err != nil {
		return agent.Answer{}, err
	}
	out := &limited{}
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	var exit *exec.ExitError
	if ctx.Err() == nil && errors.As(err, &exit) {
		return agent.Answer{Output: out.kept, Status: max(1, exit.ExitCode())}, nil
	}
	return agent.Answer{Output: out.kept}, errors.Join(err, ctx.Err())
}

// limited keeps the first MaxOutput bytes.
type limited struct{ kept []byte }

func (l *limited) Write(p []byte) (int, error) {
	l.kept = append(l.kept, p[:min(len(p), agent.MaxOutput-len(l.kept))]...)
	return len(p), nil
}

// command is a program in a process group of its own, which is killed with it
// when ctx ends.
func command(ctx context.Context, c *agent.Command) (*exec.Cmd, error) {
	if len(c.Args) == 0 {
		return nil, errors.New("no program is named")
	}
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd, nil
}

// signal sends a signal to the process that is meant, and to no other.
func signal(t *agent.Target) error {
	fd, err := unix.PidfdOpen(t.PID, 0)
	if err != nil {
		return fmt.Errorf("process %d: %w", t.PID, err)
	}
	defer unix.Close(fd)
	if a, err := stat(t); err != nil || a.Gone {
		return errors.Join(err, fmt.Errorf("process %d: %w", t.PID, unix.ESRCH))
	}
	return unix.PidfdSendSignal(fd, unix.Signal(t.Signal), nil, 0)
}

// stat says what has become of a process. One that is another than was meant is
// gone, and so is one that only waits to be reaped.
func stat(t *agent.Target) (agent.Answer, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(t.PID) + "/stat")
	if err != nil {
		return agent.Answer{Gone: true}, nil
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 20 {
		return agent.Answer{}, fmt.Errorf("process %d: %q", t.PID, b)
	}
	parent, _ := strconv.Atoi(fields[1])
	started, _ := strconv.ParseUint(fields[19], 10, 64)
	a := agent.Answer{State: fields[0], Started: started, Gone: fields[0] == "Z" || fields[0] == "X"}
	if t.Started != 0 {
		a.Gone = a.Gone || started != t.Started
	} else if t.Parent != 0 && parent != t.Parent {
		return a, fmt.Errorf("process %d: its parent is %d, not %d", t.PID, parent, t.Parent)
	}
	return a, nil
}
