package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Setting is one value of an effective configuration.
type Setting struct {
	Key   string `json:"key"`
	Value any    `json:"value"`
	// Origin is "default", a place in the file, or a variable's name.
	Origin string `json:"origin"`
}

// Settings returns every value that an engine would run with, defaults
// included, and where it comes from. The values of variables for plugins are
// left out, since they may be secrets.
func (l LoadedConfig) Settings() []Setting {
	c := l.Config.withDefaults()
	var out []Setting
	for _, k := range configKeys {
		out = append(out, Setting{k.path, k.value(&c), l.origin(k.path)})
	}
	for i, t := range c.Transports {
		at := fmt.Sprintf("%s[%d]", transportsKey, i)
		add := func(name string, v any) {
			out = append(out, Setting{at + "." + name, v, l.origin(at + "." + name)})
		}
		add("name", t.Name)
		if t.InProcess == nil {
			add("plugin", t.Plugin)
			add("sha256", t.SHA256)
		}
		add("config", t.Config)
		hidden := map[string]string{}
		for name := range t.Env {
			hidden[name] = "(hidden)"
		}
		add("env", hidden)
		add("keys", *t.Keys)
	}
	return out
}

func (l LoadedConfig) origin(key string) string {
	o, ok := l.origins[key]
	switch {
	case !ok:
		return "default"
	case o.line > 0:
		return fmt.Sprintf("%s:%d", o.source, o.line)
	default:
		return o.source
	}
}

// Show returns the effective configuration as YAML, each value with its
// origin.
func (l LoadedConfig) Show() []byte {
	var b bytes.Buffer
	section := ""
	for _, s := range l.Settings() {
		at, name := s.Key[:strings.LastIndexByte(s.Key, '.')], s.Key[strings.LastIndexByte(s.Key, '.')+1:]
		lead := "  "
		if strings.HasPrefix(at, transportsKey) {
			lead = "    "
			if name == "name" {
				lead = "  - "
			}
			at = transportsKey
		}
		if at != section {
			section = at
			fmt.Fprintf(&b, "%s:\n", section)
		}
		fmt.Fprintf(&b, "%s%s: %s  # %s\n", lead, name, showValue(s.Value), s.Origin)
	}
	return b.Bytes()
}

// flow writes a value as JSON, which is YAML.
func showValue(v any) string {
	switch w := v.(type) {
	case []string:
		if w == nil {
			v = []string{}
		}
	case map[string]string:
		if w == nil {
			v = map[string]string{}
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return `"?"`
	}
	return strings.TrimSpace(b.String())
}
