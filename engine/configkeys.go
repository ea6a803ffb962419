package engine

import (
	"fmt"
	"strings"

	"github.com/hawser-transport/hawser/engine/internal/nearest"
)

// configKey is one scalar, list or map of the configuration. The table of
// them is what the file's parser, the environment, the schema, the defaults,
// the checks and `config show` all go by. The list of transports is apart.
type configKey struct {
	path string
	doc  string
	// field returns a pointer to the value in c: *int, **int, **bool, *bool,
	// *string, *[]string or *map[string]string.
	field func(c *Config) any
	// def is the default: an int, bool or string, or nil if doc tells it.
	def any
	// min and max bound an int.
	min, max int64
	// auto allows -1 besides.
	auto bool
	// enum lists the values of a string.
	enum []string
}

const (
	maxConfigMS    = 600_000
	maxConfigSecs  = 86_400
	maxConfigCount = 1 << 24
	maxConfigSize  = 1 << 40
	maxConfigText  = 4096
)

var configKeys = []configKey{
	{path: "node.name", doc: "What peers and logs call this engine. Default: the host name.",
		field: func(c *Config) any { return &c.Node.Name }},

	{path: "control.listen", doc: "Address on which the control plane listens.",
		field: func(c *Config) any { return &c.Control.Listen }, def: defaultControlListen},
	{path: "control.advertise", doc: "Address that peers are told. Default: the listening address.",
		field: func(c *Config) any { return &c.Control.Advertise }},

	{path: "notification.rpc_fallback", doc: "Add the transport rpcfallback last if it is not listed.",
		field: func(c *Config) any { return &c.Notification.RPCFallback }, def: true},
	{path: "notification.proto", doc: "Highest protocol to offer: 2 is acknowledged end to end, 1 deduplicated, 0 raw frames without stamps.",
		field: func(c *Config) any { return &c.Notification.Proto }, def: 2, min: 0, max: 2},
	{path: "notification.slot_wait_ms", doc: "How long a notification waits for room before it fails as backpressure.",
		field: func(c *Config) any { return &c.Notification.SlotWaitMS }, def: 1000, min: 1, max: maxConfigMS},
	{path: "notification.ack_timeout_ms", doc: "First wait for an acknowledgement before resending elsewhere; it adapts.",
		field: func(c *Config) any { return &c.Notification.AckTimeoutMS }, def: 1000, min: 1, max: maxConfigMS},
	{path: "notification.deadline_ms", doc: "Deadline of a notification whose context has none.",
		field: func(c *Config) any { return &c.Notification.DeadlineMS }, def: 60_000, min: 1, max: maxConfigMS},
	{path: "notification.max_payload_bytes", doc: "Largest name and payload together.",
		field: func(c *Config) any { return &c.Notification.MaxPayloadBytes }, def: 16 << 20, min: 1, max: 16 << 20},

	{path: "outbox.bytes", doc: "Bytes per peer that may wait to be acknowledged. While what an earlier life or another name of the peer left is over it, nothing new is taken.",
		field: func(c *Config) any { return &c.Outbox.Bytes }, def: 64 << 20, min: 1, max: maxConfigSize},
	{path: "outbox.total_bytes", doc: "The same bound over all peers.",
		field: func(c *Config) any { return &c.Outbox.TotalBytes }, def: 512 << 20, min: 1, max: maxConfigSize},

	{path: "receive.frames", doc: "Notifications that may wait to be received.",
		field: func(c *Config) any { return &c.Receive.Frames }, def: 65_536, min: 1, max: maxConfigCount},
	{path: "receive.bytes", doc: "Bytes that may wait to be received.",
		field: func(c *Config) any { return &c.Receive.Bytes }, def: 256 << 20, min: 1, max: maxConfigSize},

	{path: "sessions.max", doc: "Senders that are remembered at a time; over it hello is refused as busy.",
		field: func(c *Config) any { return &c.Sessions.Max }, def: 16_384, min: 1, max: 1 << 20},

	{path: "memory.mapping_idle_secs", doc: "After how long without a transfer a peer's region is given up again, with whatever a transport maps of it.",
		field: func(c *Config) any { return &c.Memory.MappingIdleSecs }, def: 300, min: 1, max: maxConfigSecs},

	{path: "transfer.chunk_bytes", doc: "The largest piece that transfers are moved in; each transport has a largest one of its own.",
		field: func(c *Config) any { return &c.Transfer.ChunkBytes }, def: 1 << 30, min: 4 << 10, max: 1 << 30},
	{path: "transfer.op_budget", doc: "How often a piece of a transfer may fail before its op does.",
		field: func(c *Config) any { return &c.Transfer.OpBudget }, def: 8, min: 1, max: 1000},

	{path: "rpc.request_timeout_ms", doc: "Deadline of a control-plane request; -1 means 30000.",
		field: func(c *Config) any { return &c.RPC.RequestTimeoutMS }, def: -1, min: 1, max: maxConfigMS, auto: true},
	{path: "rpc.bootstrap_timeout_ms", doc: "Deadline of a bootstrap; -1 means 30000.",
		field: func(c *Config) any { return &c.RPC.BootstrapTimeoutMS }, def: -1, min: 1, max: maxConfigMS, auto: true},
	{path: "rpc.notify_timeout_ms", doc: "How long a receipt of the RPC fallback is waited for at protocols 0 and 1, where no ack could tell; -1 means 30000.",
		field: func(c *Config) any { return &c.RPC.NotifyTimeoutMS }, def: -1, min: 1, max: maxConfigMS, auto: true},
	{path: "rpc.connect_timeout_ms", doc: "How long a call waits for a connection; -1 means 30000.",
		field: func(c *Config) any { return &c.RPC.ConnectTimeoutMS }, def: -1, min: 1, max: maxConfigMS, auto: true},
	{path: "rpc.probe_timeout_ms", doc: "Deadline of the prober's calls.",
		field: func(c *Config) any { return &c.RPC.ProbeTimeoutMS }, def: 2000, min: 1, max: maxConfigMS},

	{path: "peer_health.enable", doc: "Mark silent peers, so that later calls fail at once, and probe them.",
		field: func(c *Config) any { return &c.PeerHealth.Enable }, def: true},
	{path: "peer_health.cooldown_ms", doc: "First cooldown of a silent peer; it doubles.",
		field: func(c *Config) any { return &c.PeerHealth.CooldownMS }, def: 5000, min: 1, max: maxConfigMS},
	{path: "peer_health.max_cooldown_ms", doc: "Longest cooldown of a silent peer.",
		field: func(c *Config) any { return &c.PeerHealth.MaxCooldownMS }, def: 60_000, min: 1, max: maxConfigMS},
	{path: "peer_health.probe_interval_ms", doc: "How often a silent peer is asked whether it is back.",
		field: func(c *Config) any { return &c.PeerHealth.ProbeIntervalMS }, def: 1000, min: 1, max: maxConfigMS},
	{path: "peer_health.max_age_ms", doc: "When an untouched mark is forgotten.",
		field: func(c *Config) any { return &c.PeerHealth.MaxAgeMS }, def: 600_000, min: 1, max: maxConfigSecs * 1000},

	{path: "path_health.error_threshold", doc: "Errors within the window that pause a path.",
		field: func(c *Config) any { return &c.PathHealth.ErrorThreshold }, def: 3, min: 1, max: 1000},
	{path: "path_health.error_window_secs", doc: "The window in which errors count.",
		field: func(c *Config) any { return &c.PathHealth.ErrorWindowSecs }, def: 10, min: 1, max: maxConfigSecs},
	{path: "path_health.cooldown_secs", doc: "First pause of a path; it doubles.",
		field: func(c *Config) any { return &c.PathHealth.CooldownSecs }, def: 30, min: 1, max: maxConfigSecs},
	{path: "path_health.max_cooldown_secs", doc: "Longest pause of a path.",
		field: func(c *Config) any { return &c.PathHealth.MaxCooldownSecs }, def: 300, min: 1, max: maxConfigSecs},

	{path: "plugins.dir", doc: "Directory of the plugins' binaries. It is searched first, then those of HAWSER_PLUGIN_PATH, then that of the running program.",
		field: func(c *Config) any { return &c.Plugins.Dir }},
	{path: "plugins.lock", doc: "File of the binaries' checksums. Default: plugins.lock beside them, if it exists.",
		field: func(c *Config) any { return &c.Plugins.Lock }},
	{path: "plugins.run_dir", doc: "Where private run directories are made. Default: the user's runtime directory, else the temporary one.",
		field: func(c *Config) any { return &c.Plugins.RunDir }},
	{path: "plugins.start_timeout_ms", doc: "Bound of each part of a plugin's start.",
		field: func(c *Config) any { return &c.Plugins.StartTimeoutMS }, def: 10_000, min: 1, max: maxConfigMS},
	{path: "plugins.stop_timeout_ms", doc: "How long an orderly stop may take before the plugin is killed.",
		field: func(c *Config) any { return &c.Plugins.StopTimeoutMS }, def: 3000, min: 1, max: maxConfigMS},
	{path: "plugins.abandon_after_ms", doc: "How long a killed plugin may take to be gone before it is abandoned.",
		field: func(c *Config) any { return &c.Plugins.AbandonAfterMS }, def: 10_000, min: 1, max: maxConfigMS},
	{path: "plugins.drain_timeout_ms", doc: "Bound of the drain before a plugin is replaced.",
		field: func(c *Config) any { return &c.Plugins.DrainTimeoutMS }, def: 30_000, min: 1, max: maxConfigMS},
	{path: "plugins.health_interval_ms", doc: "Time between health calls.",
		field: func(c *Config) any { return &c.Plugins.HealthIntervalMS }, def: 1000, min: 1, max: maxConfigMS},
	{path: "plugins.health_timeout_ms", doc: "Deadline of a health call.",
		field: func(c *Config) any { return &c.Plugins.HealthTimeoutMS }, def: 2000, min: 1, max: maxConfigMS},
	{path: "plugins.crash_budget", doc: "Crashes within the window that quarantine a plugin.",
		field: func(c *Config) any { return &c.Plugins.CrashBudget }, def: 5, min: 1, max: 1_000_000},
	{path: "plugins.crash_window_secs", doc: "The window in which crashes count.",
		field: func(c *Config) any { return &c.Plugins.CrashWindowSecs }, def: 60, min: 1, max: maxConfigSecs},
	{path: "plugins.restart_backoff_ms", doc: "First wait before a restart; it doubles.",
		field: func(c *Config) any { return &c.Plugins.RestartBackoffMS }, def: 100, min: 1, max: maxConfigMS},
	{path: "plugins.max_restart_backoff_ms", doc: "Longest wait before a restart.",
		field: func(c *Config) any { return &c.Plugins.MaxRestartBackoffMS }, def: 30_000, min: 1, max: maxConfigMS},
	{path: "plugins.quarantine_retry_secs", doc: "How often a quarantined plugin is tried again.",
		field: func(c *Config) any { return &c.Plugins.QuarantineRetrySecs }, def: 300, min: 1, max: maxConfigSecs},

	{path: "registry.type", doc: "Where a peer's name becomes an address: p2p (the name is the address) or static.",
		field: func(c *Config) any { return &c.Registry.Type }, def: "p2p", enum: []string{"p2p", "static"}},
	{path: "registry.static", doc: "Names and their addresses, for type static.",
		field: func(c *Config) any { return &c.Registry.Static }},

	{path: "security.ca", doc: "PEM file of the authority that has signed every peer's certificate. With security.cert and security.key it turns mutual TLS on.",
		field: func(c *Config) any { return &c.Security.CA }},
	{path: "security.cert", doc: "PEM file of this engine's certificate, for serverAuth and clientAuth, with its intermediates if any.",
		field: func(c *Config) any { return &c.Security.Cert }},
	{path: "security.key", doc: "PEM file of the certificate's key, which others must not be able to read.",
		field: func(c *Config) any { return &c.Security.Key }},
	{path: "security.allow", doc: "Names of the peers that are admitted: DNS names, addresses, URIs or common names of their certificates. Default: all that the authority has signed.",
		field: func(c *Config) any { return &c.Security.Allow }},
	{path: "security.insecure", doc: "Permit other than loopback addresses without TLS: whoever reaches them can read, forge and disturb everything.",
		field: func(c *Config) any { return &c.Security.Insecure }, def: false},

	{path: "admin.socket", doc: "Path of the admin's unix socket; auto is one in the user's runtime directory, where the command line looks; off is none. Default: off, in `hawser node` auto.",
		field: func(c *Config) any { return &c.Admin.Socket }},
	{path: "admin.http", doc: "Address for health, metrics and status, host:port. Default: off.",
		field: func(c *Config) any { return &c.Admin.HTTP }},
}

// transportsKey is the one top-level key that is a list.
const transportsKey = "transports"

// transportKeys are the keys of one transport.
var transportKeys = []struct{ name, doc string }{
	{"name", "The transport's name: 1 to 32 of [a-z0-9-]."},
	{"plugin", "Its binary: a path, or a name in plugins.dir. Default: hawser- and the name."},
	{"sha256", "The binary's checksum in hexadecimal. Default: the one in the lock file."},
	{"config", "The transport's own settings."},
	{"env", "Variables to add to the plugin's environment."},
	{"keys", "Let the plugin have the certificate's key, to secure its connections. Default: true for hawser-tcp and hawser-rpcfallback, else false."},
}

// section and name are the two halves of a key's path.
func (k configKey) section() string {
	section, _, _ := strings.Cut(k.path, ".")
	return section
}

func (k configKey) name() string {
	_, name, _ := strings.Cut(k.path, ".")
	return name
}

// variable is the environment variable that overrides the key.
func (k configKey) variable() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(k.path, ".", "_"))
}

// fill sets the default if the field is unset.
func (k configKey) fill(c *Config) {
	switch p := k.field(c).(type) {
	case *int:
		if d, ok := k.def.(int); ok && *p == 0 {
			*p = d
		}
	case **int:
		if d, ok := k.def.(int); ok && *p == nil {
			*p = &d
		}
	case **bool:
		if d, ok := k.def.(bool); ok && *p == nil {
			*p = &d
		}
	case *string:
		if d, ok := k.def.(string); ok && *p == "" {
			*p = d
		}
	}
}

// value returns the field without its pointers; nil if it is unset.
func (k configKey) value(c *Config) any {
	switch p := k.field(c).(type) {
	case *int:
		return *p
	case **int:
		if *p != nil {
			return **p
		}
	case **bool:
		if *p != nil {
			return **p
		}
	case *bool:
		return *p
	case *string:
		return *p
	case *[]string:
		return *p
	case *map[string]string:
		return *p
	}
	return nil
}

// checkInt says what is wrong with a value, or nothing.
func (k configKey) checkInt(v int64) string {
	if (k.auto && v == -1) || (v >= k.min && v <= k.max) {
		return ""
	}
	return fmt.Sprintf("must be %s, not %d", k.accepted(), v)
}

// accepted is which numbers the key takes.
func (k configKey) accepted() string {
	also := ""
	if k.auto {
		also = "-1 or "
	}
	return fmt.Sprintf("%s%d to %d", also, k.min, k.max)
}

func (k configKey) checkString(s string) string {
	if len(s) > maxConfigText {
		return fmt.Sprintf("has %d bytes, the limit is %d", len(s), maxConfigText)
	}
	if s == "" || len(k.enum) == 0 {
		return ""
	}
	for _, e := range k.enum {
		if s == e {
			return ""
		}
	}
	return fmt.Sprintf("must be %s, not %q", strings.Join(k.enum, " or "), s) + nearest.Hint(s, k.enum)
}

func findConfigKey(path string) (configKey, bool) {
	for _, k := range configKeys {
		if k.path == path {
			return k, true
		}
	}
	return configKey{}, false
}

// sections lists the top-level keys in the table's order, transports last.
func configSections() []string {
	var out []string
	for _, k := range configKeys {
		if len(out) == 0 || out[len(out)-1] != k.section() {
			out = append(out, k.section())
		}
	}
	return append(out, transportsKey)
}
