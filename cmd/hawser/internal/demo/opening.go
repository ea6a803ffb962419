package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
	"github.com/hawser-transport/hawser/engine"
)

// setup is how a node's engine is opened.
type setup struct {
	lab.Setup
	// Proto is notification.proto, nil for the default.
	Proto *int `json:",omitempty"`
	// CallTimeoutMS is rpc.request_timeout_ms and rpc.bootstrap_timeout_ms; 0
	// leaves the default.
	CallTimeoutMS int `json:",omitempty"`
	// PauseSecs is path_health.cooldown_secs and its maximum, and what it must
	// not be shorter than, rpc.connect_timeout_ms; 0 leaves the defaults.
	PauseSecs int `json:",omitempty"`
}

// Config is the engine's configuration for it.
func (x setup) Config() engine.Config {
	cfg := x.Setup.Config()
	cfg.Notification.Proto = x.Proto
	cfg.RPC.RequestTimeoutMS, cfg.RPC.BootstrapTimeoutMS = x.CallTimeoutMS, x.CallTimeoutMS
	cfg.PathHealth.CooldownSecs, cfg.PathHealth.MaxCooldownSecs = x.PauseSecs, x.PauseSecs
	cfg.RPC.ConnectTimeoutMS = 1000 * x.PauseSecs
	return cfg
}

// opening is a node's engine, and what has happened to its paths.
type opening struct {
	log *slog.Logger

	mu     sync.Mutex
	e      *engine.Engine
	s      setup
	health healthReport
	paused map[string]bool
}

// healthReport is what an engine has found wrong since it was opened.
type healthReport struct {
	// Silent and Resumed count peers that were marked, and marks that ended;
	// Pauses counts pauses of paths.
	Silent, Resumed, Pauses int
	// Paused are the paths that are paused now.
	Paused []string
	// Down are transports that went down, and why.
	Down []string
}

func (n *opening) handlers() map[string]lab.Handler {
	return map[string]lab.Handler{
		"open":       lab.With(n.open),
		"transports": lab.With(n.transports),
		"stats":      lab.With(n.stats),
		"reload":     lab.With(n.reload),
		"health":     lab.With(n.report),
	}
}

// Engine is the node's engine, once it was opened.
func (n *opening) Engine() (*engine.Engine, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.e == nil {
		return nil, errors.New("the node is not open")
	}
	return n.e, nil
}

func (n *opening) open(ctx context.Context, s setup) (any, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.e != nil {
		return nil, errors.New("the node is open already")
	}
	e, err := engine.Open(ctx, s.Config(), engine.WithLogger(n.log))
	if err != nil {
		return nil, err
	}
	n.e, n.s, n.paused = e, s, map[string]bool{}
	events := e.Events(context.Background()) // until the engine is closed
	go func() {
		for ev := range events.C() {
			n.take(ev)
		}
	}()
	self := e.Self()
	return lab.Opened{Address: self.Address, Incarnation: self.Incarnation.String()}, nil
}

// take keeps account of an event.
func (n *opening) take(ev engine.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	way := fmt.Sprintf("%s/%s to %s", ev.Transport, ev.Path, ev.Address)
	switch ev.Kind {
	case engine.PeerSilent:
		n.health.Silent++
	case engine.PeerResumed:
		n.health.Resumed++
	case engine.PathPaused:
		n.health.Pauses++
		n.paused[way] = true
	case engine.PathResumed:
		delete(n.paused, way)
	case engine.TransportDown, engine.TransportQuarantined:
		n.health.Down = append(n.health.Down, fmt.Sprintf("%s: %v: %v", ev.Transport, ev.Kind, ev.Err))
	}
}

func (n *opening) report(context.Context, struct{}) (any, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r := n.health
	for way := range n.paused {
		r.Paused = append(r.Paused, way)
	}
	return r, nil
}

func (n *opening) transports(context.Context, struct{}) (any, error) {
	e, err := n.Engine()
	if err != nil {
		return nil, err
	}
	list := []lab.Transport{}
	for _, t := range e.Transports() {
		u := lab.Transport{
			Name: t.Name, State: t.State, PID: t.PID, Instance: t.Instance,
			Restarts: t.Restarts, Carrier: t.Carrier, Listeners: t.Listeners,
		}
		if t.LastError != nil {
			u.LastError = t.LastError.Error()
		}
		list = append(list, u)
	}
	return list, nil
}

func (n *opening) stats(context.Context, struct{}) (any, error) {
	e, err := n.Engine()
	if err != nil {
		return nil, err
	}
	return e.Stats(), nil
}

// reload runs these transports from now on.
func (n *opening) reload(ctx context.Context, names []string) (any, error) {
	e, err := n.Engine()
	if err != nil {
		return nil, err
	}
	s := n.s
	s.Transports = names
	return nil, e.Reload(ctx, s.Config())
}

// Close closes the engine, waiting for what is pending for a while.
func (n *opening) Close(drain time.Duration) error {
	e, err := n.Engine()
	if err != nil {
		return nil // never opened
	}
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}
