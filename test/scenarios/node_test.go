//go:build linux

package scenarios

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
)

// config is what every engine here has.
func config(name string) engine.Config {
	return engine.Config{
		Node:       engine.NodeConfig{Name: name},
		Plugins:    unhurried(engine.PluginsConfig{Dir: bin, RunDir: runs}),
		Transports: tcpFirst(),
	}
}

// tcpFirst is not the default, which on a machine with RDMA is something else.
func tcpFirst() []engine.TransportConfig {
	return []engine.TransportConfig{{Name: "tcp"}, {Name: "rpcfallback"}}
}

// node is an engine of this process, and what it receives.
type node struct {
	*engine.Engine
	inbox  tally
	closed chan struct{}
}

// open opens an engine and reads what arrives. The test's end closes it.
func open(t *testing.T, cfg engine.Config, opts ...engine.Option) *node {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	e, err := engine.Open(ctx, cfg, opts...)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{Engine: e, closed: make(chan struct{})}
	go func() {
		defer close(n.closed)
		for {
			r, err := e.Receive(context.Background())
			if err != nil {
				return
			}
			n.inbox.take(r)
		}
	}()
	t.Cleanup(func() {
		err := n.shut()
		if slow > 1 && errors.Is(err, context.DeadlineExceeded) {
			// Its plugins have been killed, having had the 5 s that all get.
			t.Logf("close %s on a slow machine: %v", cfg.Node.Name, err)
		} else if err != nil {
			t.Errorf("close %s: %v", cfg.Node.Name, err)
		}
	})
	return n
}

// shut closes the engine and reads the rest.
func (n *node) shut() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := n.Close(ctx)
	select {
	case <-n.closed:
	case <-ctx.Done():
		err = errors.Join(err, errors.New("Receive goes on after Close"))
	}
	return err
}

func (n *node) address() string { return n.Self().Address }

// transport is a transport's status.
func (n *node) transport(t *testing.T, name string) engine.TransportStatus {
	t.Helper()
	s, ok := n.status(name)
	if !ok {
		t.Fatalf("no transport %s among %+v", name, n.Transports())
	}
	return s
}

func (n *node) status(name string) (engine.TransportStatus, bool) {
	for _, s := range n.Transports() {
		if s.Name == name {
			return s, true
		}
	}
	return engine.TransportStatus{}, false
}

// replaced waits for another instance than the one with the number.
func (n *node) replaced(t *testing.T, name string, than uint64) (s engine.TransportStatus) {
	t.Helper()
	until(t, fmt.Sprintf("instance %d of %s to be replaced", than, name), func() bool {
		s = n.transport(t, name)
		return s.State == "up" && s.Instance > than
	})
	return s
}

// send sends some notifications and waits until each is acknowledged. It
// returns how they went.
func (n *node) send(t *testing.T, to string, prefix string, count int) (reports []engine.Report) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var all []*engine.Delivery
	for i := range count {
		d, err := n.Notify(ctx, to, message(prefix, i))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	for i, d := range all {
		if err := d.Wait(ctx); err != nil {
			t.Fatalf("%s %d: %v", prefix, i, err)
		}
		reports = append(reports, d.Report())
	}
	return reports
}

// pluginPIDs lists the plugins' processes.
func pluginPIDs(e *engine.Engine) (list []int) {
	for _, s := range e.Transports() {
		if s.PID > 0 {
			list = append(list, s.PID)
		}
	}
	return list
}

// briefly bounds a call.
func briefly(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// lap is a duration for people.
func lap(since time.Time) time.Duration { return time.Since(since).Round(time.Millisecond) }
