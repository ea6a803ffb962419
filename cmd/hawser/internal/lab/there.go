package lab

import (
	"context"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/agent"
)

// There is a virtual host of the lab, reached through its agent. It sees this
// machine's files under their own names, and so the running program.
type There struct {
	agent.Host
	shift time.Duration
}

// At returns the host, once its agent has answered.
func At(ctx context.Context, h agent.Host) (*There, error) {
	shift, err := h.Offset(ctx, Now)
	if err != nil {
		return nil, err
	}
	return &There{h, shift}, nil
}

// Address implements [Host].
func (t *There) Address() string { return t.Host.Address }

// Shift implements [Host].
func (t *There) Shift() time.Duration { return t.shift }

// Hold implements [Host].
func (t *There) Hold(ctx context.Context, pid, parent int) (Handle, error) {
	a, err := t.Ask(ctx, agent.Request{Stat: &agent.Target{PID: pid, Parent: parent}})
	if err == nil && a.Gone {
		err = syscall.ESRCH
	}
	if err != nil {
		return nil, err
	}
	return &distant{t.Host, agent.Target{PID: pid, Started: a.Started}}, nil
}

func (t *There) start(o Options, exe string, stderr io.Writer) (*spawned, error) {
	r, w := io.Pipe()
	p, err := t.Start(context.Background(), agent.Command{Args: append([]string{exe}, o.Args...), Env: o.Env}, w, stderr)
	if err != nil {
		return nil, err
	}
	reaped := make(chan struct{})
	go func() {
		defer close(reaped)
		<-p.Gone()
		_ = w.Close()
	}()
	kill := func() {
		target := agent.Target{PID: p.PID, Signal: int(syscall.SIGKILL)}
		if _, err := t.Ask(context.Background(), agent.Request{Signal: &target}); err != nil {
			p.Kill()
		}
	}
	return &spawned{pid: p.PID, in: &distantInput{p, sync.OnceValue(p.CloseStdin)}, out: r, kill: kill, reaped: reaped}, nil
}

// distantInput is a child's stdin.
type distantInput struct {
	io.Writer
	end func() error
}

func (d *distantInput) Close() error { return d.end() }

// distant is a process of another host, known by its number and when it was
// started.
type distant struct {
	h      agent.Host
	target agent.Target
}

// distantPoll is how often its state is asked for.
const distantPoll = 50 * time.Millisecond

func (d *distant) PID() int { return d.target.PID }

func (d *distant) Close() {}

func (d *distant) Signal(s syscall.Signal) error {
	target := d.target
	target.Signal = int(s)
	_, err := d.h.Ask(context.Background(), agent.Request{Signal: &target})
	return err
}

func (d *distant) WaitGone(ctx context.Context) bool {
	return d.until(ctx, func(a agent.Answer) bool { return a.Gone })
}

func (d *distant) WaitStopped(ctx context.Context) bool {
	return d.until(ctx, func(a agent.Answer) bool { return !a.Gone && a.State == "T" })
}

func (d *distant) until(ctx context.Context, f func(agent.Answer) bool) bool {
	tick := time.NewTicker(distantPoll)
	defer tick.Stop()
	for {
		a, err := d.h.Ask(ctx, agent.Request{Stat: &d.target})
		if err == nil && f(a) {
			return true
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
}
