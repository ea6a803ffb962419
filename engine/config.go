package engine

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// Config is an engine's configuration, the same tree as the YAML file that
// [LoadConfig] reads. The zero value of every field means its default; where
// zero itself can be meant the field is a pointer. An engine takes a copy and
// never writes to the caller's.
//
// Fields that end in MS are milliseconds, in Secs seconds, in Bytes bytes.
type Config struct {
	Node         NodeConfig
	Control      ControlConfig
	Notification NotificationConfig
	Outbox       OutboxConfig
	Receive      ReceiveConfig
	Sessions     SessionsConfig
	Memory       MemoryConfig
	Transfer     TransferConfig
	RPC          RPCConfig
	PeerHealth   PeerHealthConfig
	PathHealth   PathHealthConfig
	Plugins      PluginsConfig
	Registry     RegistryConfig
	Security     SecurityConfig
	Admin        AdminConfig
	// Transports is the order of preference. Nil means rdma, if its plugin is
	// installed and this machine has a device, then tcp, then rpcfallback, and
	// mnnvl from when a GPU's memory is used first; an empty list means none
	// but the RPC fallback.
	Transports []TransportConfig
}

// NodeConfig names the engine.
type NodeConfig struct {
	// Name is what peers and logs call this engine. Default: the host name.
	Name string
}

// ControlConfig places the control plane.
type ControlConfig struct {
	// Listen is the address to listen on. Default: 127.0.0.1:0.
	Listen string
	// Advertise is the address that peers are told. Default: the address on
	// which the engine listens.
	Advertise string
}

// NotificationConfig governs notifications.
type NotificationConfig struct {
	// RPCFallback adds the transport rpcfallback last if Transports does not
	// list it. Default: true.
	RPCFallback *bool
	// Proto is the highest protocol to offer, 0 to 2; 0 means raw frames
	// without stamps. Default: 2.
	Proto *int
	// SlotWaitMS is how long Notify waits for room. Default: 1000.
	SlotWaitMS int
	// AckTimeoutMS is the first wait for an acknowledgement. Default: 1000.
	AckTimeoutMS int
	// DeadlineMS is the deadline of a notification whose context has none.
	// Default: 60000.
	DeadlineMS int
	// MaxPayloadBytes bounds name and payload together. Default: 16777216.
	MaxPayloadBytes int
}

// OutboxConfig bounds what waits to be acknowledged.
type OutboxConfig struct {
	// Bytes is the bound per peer. Default: 64 MiB.
	Bytes int
	// TotalBytes is the bound over all peers. Default: 512 MiB.
	TotalBytes int
}

// ReceiveConfig bounds what waits for Receive.
type ReceiveConfig struct {
	// Frames is how many notifications the queues hold. Default: 65536.
	Frames int
	// Bytes is how many bytes they hold. Default: 256 MiB.
	Bytes int
}

// SessionsConfig bounds the senders that are remembered.
type SessionsConfig struct {
	// Max is how many sessions are held; over it hello is refused as Busy.
	// Default: 16384.
	Max int
}

// MemoryConfig governs what is kept of peers' memory.
type MemoryConfig struct {
	// MappingIdleSecs is after how long without a transfer a peer's region is
	// given up again, with whatever a transport maps of it. Default: 300.
	MappingIdleSecs int
}

// TransferConfig governs transfers.
type TransferConfig struct {
	// ChunkBytes is the largest piece that ops are moved in. Each transport has
	// a largest one of its own, that it moves best. Default: 1 GiB, which is
	// more than any of these.
	ChunkBytes int
	// OpBudget is how often a piece may fail before its op does. Default: 8.
	OpBudget int
}

// RPCConfig bounds calls of the control plane. -1, like 0, means 30000.
type RPCConfig struct {
	RequestTimeoutMS   int
	BootstrapTimeoutMS int
	NotifyTimeoutMS    int
	ConnectTimeoutMS   int
	// ProbeTimeoutMS bounds the prober's calls. Default: 2000.
	ProbeTimeoutMS int
}

// PeerHealthConfig governs how silent peers are marked.
type PeerHealthConfig struct {
	// Enable turns marks and the prober on. Default: true.
	Enable *bool
	// CooldownMS is a mark's first cooldown. Default: 5000.
	CooldownMS int
	// MaxCooldownMS is the longest cooldown. Default: 60000.
	MaxCooldownMS int
	// ProbeIntervalMS is how often a marked peer is asked. Default: 1000.
	ProbeIntervalMS int
	// MaxAgeMS is when an untouched mark is forgotten. Default: 600000.
	MaxAgeMS int
}

// PathHealthConfig governs how failing paths are paused.
type PathHealthConfig struct {
	// ErrorThreshold errors within the window pause a path. Default: 3.
	ErrorThreshold int
	// ErrorWindowSecs is that window. Default: 10.
	ErrorWindowSecs int
	// CooldownSecs is the first pause. Default: 30.
	CooldownSecs int
	// MaxCooldownSecs is the longest pause. Default: 300.
	MaxCooldownSecs int
}

// PluginsConfig governs plugin processes.
type PluginsConfig struct {
	// Dir holds the plugins' binaries. Default: the directories of
	// HAWSER_PLUGIN_PATH, then that of the running program.
	Dir string
	// Lock is the file of checksums. Default: plugins.lock beside the
	// binaries, if it exists.
	Lock string
	// RunDir is where private run directories are made. Default: the user's
	// runtime directory, else the system's temporary one.
	RunDir string
	// StartTimeoutMS bounds each part of a start. Default: 10000.
	StartTimeoutMS int
	// StopTimeoutMS bounds an orderly stop. Default: 3000.
	StopTimeoutMS int
	// AbandonAfterMS is how long a killed plugin may take to be gone.
	// Default: 10000.
	AbandonAfterMS int
	// DrainTimeoutMS bounds the drain before a replacement. Default: 30000.
	DrainTimeoutMS int
	// HealthIntervalMS is the time between health calls. Default: 1000.
	HealthIntervalMS int
	// HealthTimeoutMS is a health call's deadline. Default: 2000.
	HealthTimeoutMS int
	// CrashBudget crashes within the window are too many. Default: 5.
	CrashBudget int
	// CrashWindowSecs is that window. Default: 60.
	CrashWindowSecs int
	// RestartBackoffMS is the first wait before a restart. Default: 100.
	RestartBackoffMS int
	// MaxRestartBackoffMS is the longest one. Default: 30000.
	MaxRestartBackoffMS int
	// QuarantineRetrySecs is how often a quarantined plugin is tried again.
	// Default: 300.
	QuarantineRetrySecs int
}

// RegistryConfig says where a peer's name becomes an address.
type RegistryConfig struct {
	// Type is p2p (the name is the address) or static. Default: p2p.
	Type string
	// Static maps names to addresses, for type static.
	Static map[string]string
}

// SecurityConfig turns mutual TLS on, for the control plane and for the
// transports that support it. Without it only loopback addresses can be bound.
// The files are read again when they change.
type SecurityConfig struct {
	// CA is a PEM file of the authority that has signed every peer's
	// certificate. CA, Cert and Key go together.
	CA string
	// Cert is a PEM file of this engine's certificate, for serverAuth and
	// clientAuth, with its intermediates if any.
	Cert string
	// Key is a PEM file of the certificate's key. Others must not be able to
	// read it.
	Key string
	// Allow lists the peers' names that are admitted: DNS names, addresses,
	// URIs or common names of their certificates. Default: all that the CA
	// has signed.
	Allow []string
	// Insecure permits other than loopback addresses without TLS.
	Insecure bool
}

// AdminConfig places the admin interfaces. Default: off.
type AdminConfig struct {
	// Socket is the path of a unix socket, "auto" for one in the user's
	// runtime directory, where the command line looks, or "off".
	Socket string
	// HTTP is an address on which Handler is served.
	HTTP string
}

// TransportConfig is one transport to run.
type TransportConfig struct {
	// Name is the transport's name: 1 to 32 of [a-z0-9-].
	Name string
	// Plugin is its binary: a path, or a name that is looked up in
	// PluginsConfig.Dir. Default: hawser-NAME.
	Plugin string
	// SHA256 is the binary's checksum in hexadecimal. Default: the one in
	// the lock file.
	SHA256 string
	// Config is the transport's own settings, a JSON object. Default: {}.
	Config json.RawMessage
	// Env adds variables to the plugin's environment.
	Env map[string]string
	// Keys lets the transport have the keys of SecurityConfig, to secure its
	// connections, if it asks for them. Default: true for tcp and rpcfallback
	// with their default Plugin or in process, else false.
	Keys *bool
	// InProcess makes the transport inside this process; Plugin, SHA256 and
	// Env then do not apply. It has no key in the file.
	InProcess func() sdk.Transport

	// optional: nobody has listed it. It is tried, and costs nothing where
	// there is nothing for it.
	optional bool
	// onDemand: likewise, and not before a GPU's memory is used.
	onDemand bool
}

const (
	defaultControlListen = "127.0.0.1:0"
	rpcFallbackName      = "rpcfallback"
	pluginPrefix         = "hawser-"
	defaultRPCTimeout    = 30 * time.Second
)

// Effective returns a copy of c with every default filled in, or an error that
// names each key whose value is not valid. It is what an engine runs with.
func (c Config) Effective() (Config, error) {
	filled := c.withDefaults()
	if err := filled.Validate(); err != nil {
		return Config{}, err
	}
	return filled, nil
}

// withDefaults returns a copy of c that shares nothing with it and has every
// default filled in.
func (c Config) withDefaults() Config {
	c = c.clone()
	for _, k := range configKeys {
		k.fill(&c)
	}
	if c.Node.Name == "" {
		if c.Node.Name, _ = os.Hostname(); c.Node.Name == "" {
			c.Node.Name = "localhost"
		}
	}
	if c.Transports == nil {
		c.Transports = []TransportConfig{
			{Name: "rdma", optional: true}, {Name: "tcp"}, {Name: "mnnvl", optional: true, onDemand: true},
		}
	}
	listed := slices.ContainsFunc(c.Transports, func(t TransportConfig) bool { return t.Name == rpcFallbackName })
	if *c.Notification.RPCFallback && !listed {
		c.Transports = append(c.Transports, TransportConfig{Name: rpcFallbackName})
	}
	for i := range c.Transports {
		t := &c.Transports[i]
		if t.Plugin == "" && t.InProcess == nil {
			t.Plugin = pluginPrefix + t.Name
		}
		if t.Keys == nil {
			builtIn := t.Name == "tcp" || t.Name == rpcFallbackName
			t.Keys = new(builtIn && (t.InProcess != nil || t.Plugin == pluginPrefix+t.Name))
		}
		if len(t.Config) == 0 {
			t.Config = json.RawMessage("{}")
		}
	}
	return c
}

func (c Config) clone() Config {
	c.Notification.RPCFallback = clonePointer(c.Notification.RPCFallback)
	c.Notification.Proto = clonePointer(c.Notification.Proto)
	c.PeerHealth.Enable = clonePointer(c.PeerHealth.Enable)
	c.Registry.Static = maps.Clone(c.Registry.Static)
	c.Security.Allow = slices.Clone(c.Security.Allow)
	c.Transports = slices.Clone(c.Transports)
	for i := range c.Transports {
		t := &c.Transports[i]
		t.Config, t.Env, t.Keys = slices.Clone(t.Config), maps.Clone(t.Env), clonePointer(t.Keys)
	}
	return c
}

func clonePointer[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return new(*p)
}

// The methods below read a filled-in configuration.

func milliseconds(n int) time.Duration { return time.Duration(n) * time.Millisecond }
func seconds(n int) time.Duration      { return time.Duration(n) * time.Second }

// rpcTimeout gives -1, the library's default, its value.
func rpcTimeout(n int) time.Duration {
	if n <= 0 {
		return defaultRPCTimeout
	}
	return milliseconds(n)
}

// SlotWait is SlotWaitMS as a duration.
func (c NotificationConfig) SlotWait() time.Duration { return milliseconds(c.SlotWaitMS) }

// AckTimeout is AckTimeoutMS as a duration.
func (c NotificationConfig) AckTimeout() time.Duration { return milliseconds(c.AckTimeoutMS) }

// Deadline is DeadlineMS as a duration.
func (c NotificationConfig) Deadline() time.Duration { return milliseconds(c.DeadlineMS) }

// MappingIdle is MappingIdleSecs.
func (c MemoryConfig) MappingIdle() time.Duration { return seconds(c.MappingIdleSecs) }

// RequestTimeout is RequestTimeoutMS as a duration.
func (c RPCConfig) RequestTimeout() time.Duration { return rpcTimeout(c.RequestTimeoutMS) }

// BootstrapTimeout is BootstrapTimeoutMS as a duration.
func (c RPCConfig) BootstrapTimeout() time.Duration { return rpcTimeout(c.BootstrapTimeoutMS) }

// NotifyTimeout is NotifyTimeoutMS as a duration.
func (c RPCConfig) NotifyTimeout() time.Duration { return rpcTimeout(c.NotifyTimeoutMS) }

// ConnectTimeout is ConnectTimeoutMS as a duration.
func (c RPCConfig) ConnectTimeout() time.Duration { return rpcTimeout(c.ConnectTimeoutMS) }

// ProbeTimeout is ProbeTimeoutMS as a duration.
func (c RPCConfig) ProbeTimeout() time.Duration { return milliseconds(c.ProbeTimeoutMS) }

// Cooldown is CooldownMS as a duration.
func (c PeerHealthConfig) Cooldown() time.Duration { return milliseconds(c.CooldownMS) }

// MaxCooldown is MaxCooldownMS as a duration.
func (c PeerHealthConfig) MaxCooldown() time.Duration { return milliseconds(c.MaxCooldownMS) }

// ProbeInterval is ProbeIntervalMS as a duration.
func (c PeerHealthConfig) ProbeInterval() time.Duration { return milliseconds(c.ProbeIntervalMS) }

// MaxAge is MaxAgeMS as a duration.
func (c PeerHealthConfig) MaxAge() time.Duration { return milliseconds(c.MaxAgeMS) }

// ErrorWindow is ErrorWindowSecs as a duration.
func (c PathHealthConfig) ErrorWindow() time.Duration { return seconds(c.ErrorWindowSecs) }

// Cooldown is CooldownSecs as a duration.
func (c PathHealthConfig) Cooldown() time.Duration { return seconds(c.CooldownSecs) }

// MaxCooldown is MaxCooldownSecs as a duration.
func (c PathHealthConfig) MaxCooldown() time.Duration { return seconds(c.MaxCooldownSecs) }

// StartTimeout is StartTimeoutMS as a duration.
func (c PluginsConfig) StartTimeout() time.Duration { return milliseconds(c.StartTimeoutMS) }

// StopTimeout is StopTimeoutMS as a duration.
func (c PluginsConfig) StopTimeout() time.Duration { return milliseconds(c.StopTimeoutMS) }

// AbandonAfter is AbandonAfterMS as a duration.
func (c PluginsConfig) AbandonAfter() time.Duration { return milliseconds(c.AbandonAfterMS) }

// DrainTimeout is DrainTimeoutMS as a duration.
func (c PluginsConfig) DrainTimeout() time.Duration { return milliseconds(c.DrainTimeoutMS) }

// HealthInterval is HealthIntervalMS as a duration.
func (c PluginsConfig) HealthInterval() time.Duration { return milliseconds(c.HealthIntervalMS) }

// HealthTimeout is HealthTimeoutMS as a duration.
func (c PluginsConfig) HealthTimeout() time.Duration { return milliseconds(c.HealthTimeoutMS) }

// CrashWindow is CrashWindowSecs as a duration.
func (c PluginsConfig) CrashWindow() time.Duration { return seconds(c.CrashWindowSecs) }

// RestartBackoff is RestartBackoffMS as a duration.
func (c PluginsConfig) RestartBackoff() time.Duration { return milliseconds(c.RestartBackoffMS) }

// MaxRestartBackoff is MaxRestartBackoffMS as a duration.
func (c PluginsConfig) MaxRestartBackoff() time.Duration {
	return milliseconds(c.MaxRestartBackoffMS)
}

// QuarantineRetry is QuarantineRetrySecs as a duration.
func (c PluginsConfig) QuarantineRetry() time.Duration { return seconds(c.QuarantineRetrySecs) }
