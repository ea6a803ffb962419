package demo

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
)

// Fault is what was done to a node in the middle of a row.
type Fault struct {
	What string `json:"fault"`
	// At is how many notifications had been sent when it landed, Received how
	// many had arrived.
	At       int `json:"at"`
	Received int `json:"received"`
	// Proof is how it shows that it happened.
	Proof string `json:"proof"`

	when time.Duration
}

const (
	// goneTimeout is how long a killed process may take to be gone.
	goneTimeout = 2 * time.Second
	// backTimeout is how long a plugin may take to be replaced.
	backTimeout = 15 * time.Second
	pollEvery   = 20 * time.Millisecond
)

// target is a plugin process that something is about to happen to.
type target struct {
	n      *peer
	plugin lab.Transport
	lab.Handle
}

// aim waits until a node's plugin is up and holds on to its process.
func (n *peer) aim(ctx context.Context, transport string) (*target, error) {
	t, err := n.transport(ctx, transport, "be up", func(t lab.Transport) bool { return t.PID != 0 && t.State == "up" })
	if err != nil {
		return nil, err
	}
	h, err := n.host.Hold(ctx, t.PID, n.PID())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.plugin(transport), err)
	}
	return &target{n, t, h}, nil
}

// kill kills the process and waits until it is gone.
func (t *target) kill(ctx context.Context) (when time.Duration, err error) {
	when = lab.Now()
	if err := t.Signal(syscall.SIGKILL); err != nil {
		return when, err
	}
	return when, t.waitGone(ctx, goneTimeout)
}

func (t *target) waitGone(ctx context.Context, limit time.Duration) error {
	limit *= t.n.slow
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if !t.WaitGone(ctx) {
		return fmt.Errorf("%s, process %d, is still there after %v", t.name(), t.PID(), limit)
	}
	return nil
}

// replaced waits until another instance of the plugin is up.
func (t *target) replaced(ctx context.Context) (lab.Transport, error) {
	return t.n.transport(ctx, t.plugin.Name, "be replaced", func(now lab.Transport) bool {
		return now.State == "up" && now.Instance > t.plugin.Instance && now.PID != t.plugin.PID
	})
}

func (t *target) name() string { return t.n.plugin(t.plugin.Name) }

// transport waits until a node's transport is as wanted.
func (n *peer) transport(ctx context.Context, transport, what string, wanted func(lab.Transport) bool) (lab.Transport, error) {
	ctx, cancel := context.WithTimeout(ctx, backTimeout*n.slow)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		var list []lab.Transport
		if err := n.Call(ctx, "transports", nil, &list); err != nil {
			return lab.Transport{}, err
		}
		var last lab.Transport
		for _, t := range list {
			if last = t; t.Name == transport {
				break
			}
		}
		if last.Name == transport && wanted(last) {
			return last, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return last, fmt.Errorf("%s did not %s: it is %s (%s)", n.plugin(transport), what, last.State, last.LastError)
		}
	}
}

// plugin names a node's plugin.
func (n *peer) plugin(transport string) string { return n.name + "'s " + transport + " plugin" }
