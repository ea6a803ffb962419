package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// askTimeout bounds a request that is done at once. Emulated hosts are slow.
const askTimeout = 30 * time.Second

// Ask makes a request that has one answer. What the agent could not do is an
// error.
func (h Host) Ask(ctx context.Context, q Request) (Answer, error) {
	limit := askTimeout
	if q.Run != nil {
		limit += q.Run.Limit()
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, _, a, err := h.open(ctx, q)
	if err == nil {
		_ = conn.Close()
	}
	return a, err
}

// Limit is how long Run may take.
func (c *Command) Limit() time.Duration {
	if c.Seconds <= 0 {
		return time.Minute
	}
	return time.Duration(c.Seconds) * time.Second
}

// open makes a request and reads the answer. ctx bounds that only.
func (h Host) open(ctx context.Context, q Request) (net.Conn, *bufio.Reader, Answer, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", h.Agent)
	if err != nil {
		return nil, nil, Answer{}, fmt.Errorf("agent %s: %w", h.Agent, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	q.Secret = h.Secret
	in := bufio.NewReader(conn)
	var a Answer
	line, err := json.Marshal(q)
	if err == nil {
		_, err = conn.Write(append(line, '\n'))
	}
	if err == nil {
		line, err = in.ReadBytes('\n')
	}
	if err == nil {
		err = json.Unmarshal(line, &a)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		err = errors.Join(context.Cause(ctx), err)
	} else if a.Error != "" {
		err = errors.New(a.Error)
	}
	if err != nil {
		_ = conn.Close()
		return nil, nil, a, fmt.Errorf("agent %s: %w", h.Agent, err)
	}
	return conn, in, a, nil
}

// Run runs a program to its end and returns what it printed, which is also in
// the error if it failed.
func (h Host) Run(ctx context.Context, args ...string) (string, error) {
	a, err := h.Ask(ctx, Request{Run: &Command{Args: args}})
	out := strings.TrimSpace(string(a.Output))
	if err == nil && a.Status != 0 {
		err = fmt.Errorf("%s: exit status %d: %s", strings.Join(args, " "), a.Status, out)
	}
	return out, err
}

// Read reads a file.
func (h Host) Read(ctx context.Context, path string) ([]byte, error) {
	a, err := h.Ask(ctx, Request{Read: path})
	return a.Output, err
}

// List lists a folder.
func (h Host) List(ctx context.Context, path string) ([]string, error) {
	a, err := h.Ask(ctx, Request{List: path})
	return strings.Fields(string(a.Output)), err
}

// Offset is what has to be added to the host's monotonic clock to get this
// process's, as now tells it: measured a few times, the quickest counts.
func (h Host) Offset(ctx context.Context, now func() time.Duration) (time.Duration, error) {
	const tries = 8
	var best, offset time.Duration
	for i := range tries {
		began := now()
		a, err := h.Ask(ctx, Request{Stat: &Target{PID: 1}})
		if err != nil {
			return 0, err
		}
		took := now() - began
		if i == 0 || took < best {
			best, offset = took, began+took/2-time.Duration(a.Clock)
		}
	}
	return offset, nil
}
