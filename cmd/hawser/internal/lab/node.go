package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/engine"
)

// Setup is how a node's engine is opened.
type Setup struct {
	Name, Listen string
	// PluginsDir and Lock are plugins.dir and plugins.lock.
	PluginsDir, Lock string
	// Transports are the only ones to run, in order of preference.
	Transports []string
	// CrashBudget and MaxRestartBackoffMS are the keys of plugins; 0 leaves
	// the default.
	CrashBudget, MaxRestartBackoffMS int
	// DeadlineMS is notification.deadline_ms; 0 leaves the default.
	DeadlineMS int
	// Plugins names the binaries of transports, where they have another than
	// their own, and Settings is their config.
	Plugins  map[string]string          `json:",omitempty"`
	Settings map[string]json.RawMessage `json:",omitempty"`
	// Env is added to the environment of a transport's plugin.
	Env map[string]map[string]string `json:",omitempty"`
	// StartTimeoutMS and HealthTimeoutMS are the keys of plugins; 0 leaves the
	// default.
	StartTimeoutMS, HealthTimeoutMS int `json:",omitempty"`
	// Insecure is security.insecure: for networks that nobody else is on.
	Insecure bool `json:",omitempty"`
	// OutboxBytes, ReceiveFrames and ReceiveBytes are outbox.bytes,
	// receive.frames and receive.bytes; 0 leaves the default.
	OutboxBytes, ReceiveFrames, ReceiveBytes int
	// MaxPayloadBytes is notification.max_payload_bytes; 0 leaves the default.
	MaxPayloadBytes int
	// Proto is notification.proto; nil leaves the default.
	Proto *int `json:",omitempty"`
	// CallTimeoutMS is rpc.request_timeout_ms and rpc.bootstrap_timeout_ms; 0
	// leaves the default.
	CallTimeoutMS int `json:",omitempty"`
	// PauseSecs is path_health.cooldown_secs and its maximum, and what it must
	// not be shorter than, rpc.connect_timeout_ms; 0 leaves the defaults.
	PauseSecs int `json:",omitempty"`
}

// Config is the engine's configuration for it.
func (s Setup) Config() engine.Config {
	cfg := engine.Config{
		Node:     engine.NodeConfig{Name: s.Name},
		Control:  engine.ControlConfig{Listen: s.Listen},
		Security: engine.SecurityConfig{Insecure: s.Insecure},
		Notification: engine.NotificationConfig{
			RPCFallback: new(false), Proto: s.Proto, DeadlineMS: s.DeadlineMS, MaxPayloadBytes: s.MaxPayloadBytes,
		},
		RPC: engine.RPCConfig{
			RequestTimeoutMS: s.CallTimeoutMS, BootstrapTimeoutMS: s.CallTimeoutMS, ConnectTimeoutMS: 1000 * s.PauseSecs,
		},
		PathHealth: engine.PathHealthConfig{CooldownSecs: s.PauseSecs, MaxCooldownSecs: s.PauseSecs},
		Outbox:     engine.OutboxConfig{Bytes: s.OutboxBytes},
		Receive:    engine.ReceiveConfig{Frames: s.ReceiveFrames, Bytes: s.ReceiveBytes},
		Plugins: engine.PluginsConfig{
			Dir: s.PluginsDir, Lock: s.Lock, CrashBudget: s.CrashBudget, MaxRestartBackoffMS: s.MaxRestartBackoffMS,
			StartTimeoutMS: s.StartTimeoutMS, HealthTimeoutMS: s.HealthTimeoutMS,
		},
		Transports: []engine.TransportConfig{},
	}
	for _, name := range s.Transports {
		cfg.Transports = append(cfg.Transports, engine.TransportConfig{Name: name, Plugin: s.Plugins[name], Config: s.Settings[name], Env: s.Env[name]})
	}
	return cfg
}

// Check looks for the plugins: one that cannot be run would only cost its
// transport, and the node would do without.
func (s Setup) Check() error {
	found, err := engine.FindPlugins(s.Config())
	if err != nil {
		return err
	}
	for _, p := range found {
		if len(p.Transports) == 0 {
			continue // it only lies there
		}
		if err := p.Fault(); err != nil {
			return err
		}
	}
	return nil
}

// Opened is a node that is up.
type Opened struct {
	Address, Incarnation string
}

// Transport is a transport of a node.
type Transport struct {
	Name, State string
	PID         int
	Instance    uint64
	Restarts    uint64
	Carrier     string
	LastError   string
	Listeners   map[string]string
}

// Node is an engine in a child.
type Node struct {
	log  *slog.Logger
	take func(engine.Event)

	mu sync.Mutex
	e  *engine.Engine
	s  Setup
}

// NewNode returns a node that is not open. Its engine logs to log, and take is
// called with each of its events, one at a time, unless it is nil.
func NewNode(log *slog.Logger, take func(engine.Event)) *Node { return &Node{log: log, take: take} }

// Handlers answers open, transports, stats and reload, and what is in more.
func (n *Node) Handlers(more map[string]Handler) map[string]Handler {
	all := map[string]Handler{
		"open":       With(n.open),
		"transports": With(n.transports),
		"stats":      With(n.stats),
		"reload":     With(n.reload),
	}
	maps.Copy(all, more)
	return all
}

// Engine is the node's engine, once it was opened.
func (n *Node) Engine() (*engine.Engine, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.e == nil {
		return nil, errors.New("the node is not open")
	}
	return n.e, nil
}

func (n *Node) open(ctx context.Context, s Setup) (any, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.e != nil {
		return nil, errors.New("the node is open already")
	}
	e, err := engine.Open(ctx, s.Config(), engine.WithLogger(n.log))
	if err != nil {
		return nil, err
	}
	n.e, n.s = e, s
	if n.take != nil {
		events := e.Events(context.Background()) // until the engine is closed
		go func() {
			for ev := range events.C() {
				n.take(ev)
			}
		}()
	}
	self := e.Self()
	return Opened{Address: self.Address, Incarnation: self.Incarnation.String()}, nil
}

func (n *Node) transports(context.Context, struct{}) (any, error) {
	e, err := n.Engine()
	if err != nil {
		return nil, err
	}
	list := []Transport{}
	for _, t := range e.Transports() {
		u := Transport{Name: t.Name, State: t.State, PID: t.PID, Instance: t.Instance, Restarts: t.Restarts, Carrier: t.Carrier, Listeners: t.Listeners}
		if t.LastError != nil {
			u.LastError = t.LastError.Error()
		}
		list = append(list, u)
	}
	return list, nil
}

func (n *Node) stats(context.Context, struct{}) (any, error) {
	e, err := n.Engine()
	if err != nil {
		return nil, err
	}
	return e.Stats(), nil
}

// reload runs these transports from now on.
func (n *Node) reload(ctx context.Context, names []string) (any, error) {
	e, err := n.Engine()
	if err != nil {
		return nil, err
	}
	s := n.s
	s.Transports = names
	return nil, e.Reload(ctx, s.Config())
}

// Close closes the engine, waiting for what is pending for a while.
func (n *Node) Close(drain time.Duration) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.e == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	if err := n.e.Close(ctx); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}
