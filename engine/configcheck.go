package engine

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hawser-transport/hawser/sdk"
)

// ConfigError is one fault of a configuration. Its code is
// [sdk.InvalidArgument], or [sdk.Unsupported] for what a later version has.
type ConfigError struct {
	// Source is the file, or the environment variable, that holds the value;
	// empty if it was set in Go.
	Source string
	// Line and Column begin with 1; 0 without a file.
	Line, Column int
	// Key is the value's path, such as notification.proto; it may be empty
	// for a file that is not YAML.
	Key     string
	Message string
	Code    sdk.Code
}

// Error returns the place, the key and the message.
func (e *ConfigError) Error() string {
	var b strings.Builder
	b.WriteString(e.Source)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", e.Line, e.Column)
	}
	for _, s := range []string{e.Key, e.Message} {
		if s != "" && b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString(s)
	}
	return b.String()
}

// Unwrap returns the code.
func (e *ConfigError) Unwrap() error { return e.Code }

// ConfigErrors are all faults found, in the order of their places.
type ConfigErrors []*ConfigError

// Error returns one line for each fault.
func (es ConfigErrors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the faults.
func (es ConfigErrors) Unwrap() []error {
	out := make([]error, len(es))
	for i, e := range es {
		out[i] = e
	}
	return out
}

// maxConfigErrors bounds a report: after so many faults the reader has seen
// enough.
const maxConfigErrors = 20

// sort puts them in the order of their places.
func (es ConfigErrors) sort() {
	slices.SortStableFunc(es, func(a, b *ConfigError) int {
		return cmp.Or(strings.Compare(a.Source, b.Source), a.Line-b.Line, a.Column-b.Column)
	})
}

func (es ConfigErrors) asError() error {
	if len(es) == 0 {
		return nil
	}
	return es[:min(len(es), maxConfigErrors)]
}

// configChecker collects faults. A fault names the keys that take part, the one to
// blame first.
type configChecker struct {
	faults []configFault
}

type configFault struct {
	keys []string
	text string
	code sdk.Code
}

func (c *configChecker) say(text string, keys ...string) {
	c.faults = append(c.faults, configFault{keys, text, sdk.InvalidArgument})
}

// Validate reports every value of a filled-in configuration that is out of
// range or inconsistent with another, by the key that it has in the file. Use
// [Config.Effective] for a configuration with unset fields.
func (c Config) Validate() error {
	var es ConfigErrors
	for _, f := range c.faults() {
		es = append(es, &ConfigError{Key: f.keys[0], Message: f.text, Code: f.code})
	}
	return es.asError()
}

func (c Config) faults() []configFault {
	var ck configChecker
	for _, k := range configKeys {
		text := ""
		switch v := k.value(&c).(type) {
		case int:
			text = k.checkInt(int64(v))
		case string:
			text = k.checkString(v)
		case nil:
			text = "is not set"
		}
		if text != "" {
			ck.say(text, k.path)
		}
	}
	if len(ck.faults) > 0 {
		return ck.faults // relations between wrong values are noise
	}
	c.checkRelations(&ck)
	c.checkAddresses(&ck)
	c.checkSecurity(&ck)
	c.checkTransports(&ck)
	return ck.faults
}

func (c Config) checkRelations(ck *configChecker) {
	n, p, h := c.Notification, c.Plugins, c.PeerHealth
	// notLess demands that a value is not less than another.
	notLess := func(key string, v int, than string, w int, why string) {
		if v < w {
			ck.say(fmt.Sprintf("is %d, less than %s (%d)%s", v, than, w, why), key, than)
		}
	}
	notLess("notification.deadline_ms", n.DeadlineMS, "notification.ack_timeout_ms", n.AckTimeoutMS,
		": nothing would ever be resent in time")
	notLess("notification.deadline_ms", n.DeadlineMS, "notification.slot_wait_ms", n.SlotWaitMS, "")
	notLess("outbox.bytes", c.Outbox.Bytes, "notification.max_payload_bytes", n.MaxPayloadBytes, "")
	notLess("outbox.total_bytes", c.Outbox.TotalBytes, "outbox.bytes", c.Outbox.Bytes, "")
	notLess("receive.bytes", c.Receive.Bytes, "notification.max_payload_bytes", n.MaxPayloadBytes, "")
	notLess("peer_health.max_cooldown_ms", h.MaxCooldownMS, "peer_health.cooldown_ms", h.CooldownMS, "")
	notLess("peer_health.max_age_ms", h.MaxAgeMS, "peer_health.max_cooldown_ms", h.MaxCooldownMS, "")
	notLess("path_health.max_cooldown_secs", c.PathHealth.MaxCooldownSecs,
		"path_health.cooldown_secs", c.PathHealth.CooldownSecs, "")
	notLess("plugins.max_restart_backoff_ms", p.MaxRestartBackoffMS,
		"plugins.restart_backoff_ms", p.RestartBackoffMS, "")
	if connect := c.RPC.ConnectTimeout(); c.PathHealth.Cooldown() < connect {
		ck.say(fmt.Sprintf("is %v, less than rpc.connect_timeout_ms (%v): a path would be tried again "+
			"while its last attempt may still be connecting", c.PathHealth.Cooldown(), connect),
			"path_health.cooldown_secs", "rpc.connect_timeout_ms")
	}
}

func (c Config) checkAddresses(ck *configChecker) {
	if text := checkConfigName(c.Node.Name); text != "" {
		ck.say(text, "node.name")
	}
	for _, a := range []struct{ key, address string }{
		{"control.listen", c.Control.Listen}, {"admin.http", c.Admin.HTTP},
	} {
		if a.address == "" {
			continue
		}
		if text := checkConfigAddress(a.address, true); text != "" {
			ck.say(text, a.key)
			continue
		}
		host, _, _ := net.SplitHostPort(a.address)
		switch secured := c.Security.secured() && a.key != "admin.http"; {
		case isLoopback(host) || c.Security.Insecure || secured:
		case a.key == "admin.http":
			ck.say(fmt.Sprintf("%q is not a loopback address, and it has no TLS: only security.insecure permits that", a.address), a.key)
		default:
			ck.say(fmt.Sprintf("%q is not a loopback address: without mutual TLS (security.ca, security.cert and security.key), "+
				"or security.insecure, only loopback addresses can be bound", a.address), a.key)
		}
	}
	if host, _, err := net.SplitHostPort(c.Control.Listen); err == nil && c.Control.Advertise == "" {
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			ck.say(fmt.Sprintf("is not set, and control.listen is %s, which is no address that peers can dial", c.Control.Listen),
				"control.advertise", "control.listen")
		}
	}
	if text := checkAdminSocket(c.Admin.Socket); text != "" {
		ck.say(text, "admin.socket")
	}
	if a := c.Control.Advertise; a != "" {
		if text := checkConfigAddress(a, false); text != "" {
			ck.say(text, "control.advertise")
		}
	}
	if c.Registry.Type == "static" && len(c.Registry.Static) == 0 {
		ck.say("is empty, but registry.type is static", "registry.static", "registry.type")
	}
	if c.Registry.Type != "static" && len(c.Registry.Static) > 0 {
		ck.say("is set, but registry.type is "+c.Registry.Type, "registry.static", "registry.type")
	}
	for _, name := range sortedKeys(c.Registry.Static) {
		key := "registry.static." + name
		if text := checkConfigName(name); text != "" {
			ck.say("the name "+text, key, "registry.static")
		}
		if text := checkConfigAddress(c.Registry.Static[name], false); text != "" {
			ck.say(text, key, "registry.static")
		}
	}
}

// secured reports whether mutual TLS is on.
func (c SecurityConfig) secured() bool { return c.CA != "" && c.Cert != "" && c.Key != "" }

func (c Config) checkSecurity(ck *configChecker) {
	s := c.Security
	files := []struct{ key, file string }{
		{"security.ca", s.CA}, {"security.cert", s.Cert}, {"security.key", s.Key},
	}
	var set, unset []string
	for _, f := range files {
		if f.file != "" {
			set = append(set, f.key)
		} else {
			unset = append(unset, f.key)
		}
	}
	if len(set) > 0 && len(unset) > 0 {
		ck.say("is missing: mutual TLS needs security.ca, security.cert and security.key", append(unset[:1:1], set...)...)
	}
	if len(set) == 0 && len(s.Allow) > 0 {
		ck.say("admits nobody without security.ca, security.cert and security.key: nothing else tells who a peer is", "security.allow")
	}
	if len(set) > 0 && s.Insecure {
		ck.say("contradicts "+set[0]+": either there is TLS, or there is none", "security.insecure", set[0])
	}
	for i, name := range s.Allow {
		if text := checkConfigName(name); text != "" {
			ck.say(text, fmt.Sprintf("security.allow[%d]", i), "security.allow")
		}
	}
	if len(s.Allow) > maxConfigAllow {
		ck.say(fmt.Sprintf("has %d names, the limit is %d", len(s.Allow), maxConfigAllow), "security.allow")
	}
}

// maxConfigAllow is what a transport can be told.
const maxConfigAllow = 4096

func (c Config) checkTransports(ck *configChecker) {
	if len(c.Transports) == 0 {
		ck.say("is empty and notification.rpc_fallback is false: nothing could be sent",
			transportsKey, "notification.rpc_fallback")
	}
	if len(c.Transports) > maxConfigTransports {
		ck.say(fmt.Sprintf("has %d entries, the limit is %d", len(c.Transports), maxConfigTransports), transportsKey)
		return
	}
	seen := map[string]int{}
	for i, t := range c.Transports {
		at := fmt.Sprintf("%s[%d]", transportsKey, i)
		say := func(key, text string) { ck.say(text, at+"."+key, at) }
		if text := checkConfigTransport(t.Name); text != "" {
			say("name", text)
		} else if first, ok := seen[t.Name]; ok {
			say("name", fmt.Sprintf("%q is already %s[%d]", t.Name, transportsKey, first))
		}
		seen[t.Name] = i
		if t.SHA256 != "" {
			if b, err := hex.DecodeString(t.SHA256); err != nil || len(b) != 32 {
				say("sha256", "must be 64 hexadecimal digits")
			}
		}
		if strings.IndexByte(t.Plugin, 0) >= 0 || len(t.Plugin) > maxConfigText {
			say("plugin", "is not a path")
		}
		if text := checkSettings(t.Config); text != "" {
			say("config", text)
		}
		for _, name := range sortedKeys(t.Env) {
			if name == "" || strings.ContainsAny(name, "=\x00") || strings.IndexByte(t.Env[name], 0) >= 0 {
				say("env", fmt.Sprintf("%q cannot be an environment variable", name))
			}
		}
	}
}

// maxConfigTransports is what the control plane can announce.
const maxConfigTransports = 32

func checkSettings(raw json.RawMessage) string {
	if trimmed := bytes.TrimSpace(raw); !json.Valid(raw) || len(trimmed) == 0 || trimmed[0] != '{' {
		return "must be a JSON object"
	}
	return ""
}

func checkConfigTransport(name string) string {
	ok := len(name) >= 1 && len(name) <= 32
	for _, b := range []byte(name) {
		ok = ok && (b >= 'a' && b <= 'z' || b >= '0' && b <= '9' || b == '-')
	}
	if ok {
		return ""
	}
	return fmt.Sprintf("must be 1 to 32 of [a-z0-9-], not %q", name)
}

func checkConfigName(name string) string {
	if len(name) < 1 || len(name) > 256 || !utf8.ValidString(name) || strings.ContainsFunc(name, controlRune) {
		return fmt.Sprintf("must be 1 to 256 bytes of UTF-8 without control characters, not %q", name)
	}
	return ""
}

func controlRune(r rune) bool { return r < ' ' || r == 0x7f }

// checkAddress wants host:port. Port 0 means a free one, which only makes
// sense for listening.
func checkConfigAddress(address string, listen bool) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || strings.ContainsFunc(host, controlRune) {
		return fmt.Sprintf("must be host:port, not %q", address)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if errors.Is(err, strconv.ErrRange) || err == nil && n == 0 && !listen {
		least := 1
		if listen {
			least = 0
		}
		return fmt.Sprintf("%q: the port must be %d to 65535, not %s", address, least, port)
	}
	if err != nil {
		return fmt.Sprintf("%q does not end in a port number", address)
	}
	return ""
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
