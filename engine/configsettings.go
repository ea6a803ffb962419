package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/hawser-transport/hawser/engine/internal/nearest"
	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
)

// CheckPlugins runs the plugin of each configured transport with --describe
// and checks the transport's settings. Faults are settings that a plugin does
// not accept, each at its place; warnings are plugins that could not be asked:
// missing, changed, broken. Either would cost its transport.
func (l LoadedConfig) CheckPlugins(ctx context.Context) (faults ConfigErrors, warnings []error, err error) {
	cfg, err := l.Config.Effective()
	if err != nil {
		return nil, nil, err
	}
	found, err := FindPlugins(cfg)
	if err != nil {
		return nil, nil, err
	}
	for i, t := range cfg.Transports {
		at := slices.IndexFunc(found, func(p PluginInfo) bool { return slices.Contains(p.Transports, t.Name) })
		if at < 0 {
			continue // in process
		}
		d, err := describePlugin(ctx, found[at])
		if err != nil {
			warnings = append(warnings, err)
			continue
		}
		for _, f := range settingsFaults(cfg, t, d) {
			faults = append(faults, l.placed(fmt.Sprintf("%s[%d]", transportsKey, i), f))
		}
	}
	faults.sort()
	return faults, warnings, nil
}

// settingsFault is a fault of the setting at a path that begins with config.
type settingsFault struct{ path, text string }

// placed finds a fault's place: that of the setting, or of what holds it.
func (l LoadedConfig) placed(transport string, f settingsFault) *ConfigError {
	key := transport + "." + f.path
	e := &ConfigError{Key: key, Message: f.text, Code: sdk.InvalidArgument}
	for {
		if o, ok := l.origins[key]; ok {
			e.Source, e.Line, e.Column = o.source, o.line, o.column
			return e
		}
		i := strings.LastIndexAny(key, ".")
		if i < 0 {
			return e
		}
		key = key[:i]
	}
}

var (
	// unknownSettings is how the schema's validator names unknown keys.
	unknownSettings = regexp.MustCompile(`^additional propert(?:y|ies) ('.*') not allowed$`)
	quotedSetting   = regexp.MustCompile(`'([^']*)'`)
)

// settingsFaults takes the host's report of settings apart, and finds
// addresses that the engine would not let the transport bind.
func settingsFaults(cfg Config, t TransportConfig, d PluginDescription) (list []settingsFault) {
	var schema struct{ Properties map[string]json.RawMessage }
	_ = json.Unmarshal(d.ConfigSchema, &schema) // without one nothing is near
	if err := pluginhost.CheckSettings(t.Name, d.ConfigSchema, t.Config); err != nil {
		text := strings.TrimPrefix(err.Error(), "transport "+t.Name+": ")
		for _, one := range strings.Split(strings.ReplaceAll(text, "; config", "\x00config"), "\x00") {
			path, what, ok := strings.Cut(one, ": ")
			if !ok || strings.Contains(path, " ") {
				path, what = "config", one
			}
			unknown := unknownSettings.FindStringSubmatch(what)
			if unknown == nil {
				list = append(list, settingsFault{path, what})
				continue
			}
			var known []string
			if path == "config" {
				known = sortedKeys(schema.Properties)
			}
			for _, q := range quotedSetting.FindAllStringSubmatch(unknown[1], -1) {
				list = append(list, settingsFault{path + "." + q[1], "unknown key" + nearest.Hint(q[1], known)})
			}
		}
	}
	if cfg.Security.Insecure || cfg.Security.secured() && t.Keys != nil && *t.Keys {
		return list
	}
	var settings map[string]any
	_ = json.Unmarshal(t.Config, &settings) // reported above
	keys := []string{"listen"}
	for _, l := range d.Listeners {
		keys = append(keys, l.Key)
	}
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		address, _ := settings[key].(string)
		if host, _, err := net.SplitHostPort(address); err == nil && !isLoopback(host) {
			list = append(list, settingsFault{"config." + key, fmt.Sprintf("%q is not a loopback address: without mutual TLS "+
				"(security.ca, security.cert and security.key, and keys for this transport), or security.insecure, only loopback addresses can be bound", address)})
		}
	}
	return list
}
