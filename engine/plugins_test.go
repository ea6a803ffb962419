package engine

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
)

// script writes an executable file that stands for a plugin's binary.
func script(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+content), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func pluginStates(t *testing.T, cfg Config) map[string]PluginState {
	t.Helper()
	list, err := FindPlugins(cfg)
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]PluginState{}
	for _, p := range list {
		states[p.Name] = p.State()
	}
	return states
}

func TestPluginsAgainstTheLock(t *testing.T) {
	t.Setenv(PluginPathVariable, "")
	dir := t.TempDir()
	cfg := Config{Plugins: PluginsConfig{Dir: dir}}
	script(t, dir, "hawser-tcp", "exit 0")
	script(t, dir, "hawser-extra", "exit 0")
	if err := os.WriteFile(filepath.Join(dir, "hawser-notes"), nil, 0o644); err != nil {
		t.Fatal(err) // not executable: no plugin
	}
	want := map[string]PluginState{"tcp": PluginUnlisted, "rpcfallback": PluginMissing, "extra": PluginUnlisted}
	if got := pluginStates(t, cfg); !reflect.DeepEqual(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}

	file, changed, _, err := UpdatePluginLock(cfg)
	if err != nil || file != filepath.Join(dir, "plugins.lock") || !reflect.DeepEqual(changed, []string{"tcp", "extra"}) {
		t.Fatalf("%s %v %v", file, changed, err)
	}
	if _, changed, _, err = UpdatePluginLock(cfg); err != nil || changed != nil {
		t.Errorf("a second update: %v %v", changed, err)
	}
	script(t, dir, "hawser-tcp", "exit 1")
	want["tcp"], want["extra"] = PluginChanged, PluginApproved
	if got := pluginStates(t, cfg); !reflect.DeepEqual(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}

	_, _, err = DescribePlugin(t.Context(), cfg, "tcp")
	if !errors.Is(err, sdk.InvalidArgument) || !strings.Contains(err.Error(), "not the one that was approved") {
		t.Errorf("a changed plugin was run: %v", err)
	}
	faults, warnings, err := LoadedConfig{Config: cfg}.CheckPlugins(t.Context())
	if err != nil || len(faults) != 0 || len(warnings) != 2 {
		t.Errorf("%v %v %v", faults, warnings, err)
	}
	if _, changed, _, err = UpdatePluginLock(cfg, "hawser-tcp"); err != nil || !reflect.DeepEqual(changed, []string{"tcp"}) {
		t.Errorf("%v %v", changed, err)
	}
	if err := os.Remove(filepath.Join(dir, "hawser-extra")); err != nil {
		t.Fatal(err)
	}
	want["tcp"], want["extra"] = PluginApproved, PluginMissing
	if got := pluginStates(t, cfg); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestMissingPluginsNameEveryPlace(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	t.Setenv(PluginPathVariable, two)
	cfg := Config{Plugins: PluginsConfig{Dir: one}}
	_, _, described := DescribePlugin(t.Context(), cfg, "nosuch")
	_, _, _, updated := UpdatePluginLock(cfg, "tcp")
	for _, err := range []error{described, updated} {
		if err == nil || !strings.Contains(err.Error(), one) || !strings.Contains(err.Error(), two) {
			t.Errorf("got %v", err)
		}
	}
	if _, _, _, err := UpdatePluginLock(cfg, "nosuch"); !errors.Is(err, sdk.InvalidArgument) {
		t.Errorf("got %v", err)
	}
}

func TestPluginOfATransportsOwn(t *testing.T) {
	dir := t.TempDir()
	path := script(t, dir, "mine", "exit 3")
	cfg := Config{
		Notification: NotificationConfig{RPCFallback: new(false)},
		Transports: []TransportConfig{
			{Name: "a", Plugin: path, SHA256: strings.Repeat("0", 64)}, {Name: "b", Plugin: path, SHA256: strings.Repeat("0", 64)},
		},
	}
	list, err := FindPlugins(cfg)
	if err != nil || len(list) == 0 {
		t.Fatal(err)
	}
	p := list[0]
	if p.Path != path || p.State() != PluginChanged || !reflect.DeepEqual(p.Transports, []string{"a", "b"}) {
		t.Errorf("got %+v", p)
	}
	// A path is run as it was asked for.
	if _, _, err := DescribePlugin(t.Context(), cfg, path); err == nil || strings.Contains(err.Error(), "approved") {
		t.Errorf("got %v", err)
	}
}

func TestSettingsAgainstThePluginsSchema(t *testing.T) {
	dir := t.TempDir()
	script(t, dir, "hawser-picky", `echo '{"name": "picky", "version": "1", "contract": 1, "features": ["notify"],
		"config_schema": {"type": "object", "additionalProperties": false, "properties": {"port": {"type": "integer"}}}}'`)
	cfg := Config{
		Notification: NotificationConfig{RPCFallback: new(false)}, Plugins: PluginsConfig{Dir: dir},
		Transports: []TransportConfig{{Name: "picky", Config: []byte(`{"port": 1}`)}},
	}
	faults, warnings, err := LoadedConfig{Config: cfg}.CheckPlugins(t.Context())
	if err != nil || faults != nil || warnings != nil {
		t.Fatalf("%v %v %v", faults, warnings, err)
	}
	cfg.Transports[0].Config = []byte(`{"port": "x"}`)
	faults, _, _ = LoadedConfig{Config: cfg}.CheckPlugins(t.Context())
	if len(faults) != 1 || !strings.Contains(faults[0].Error(), "config.port") {
		t.Errorf("got %v", faults)
	}
	path, d, err := DescribePlugin(t.Context(), cfg, "picky")
	if err != nil || path != filepath.Join(dir, "hawser-picky") || d.Name != "picky" {
		t.Errorf("%s %+v %v", path, d, err)
	}
}

func TestDropPlugins(t *testing.T) {
	dir := t.TempDir()
	lock := filepath.Join(dir, "plugins.lock")
	sum := strings.Repeat("0", 64)
	if err := os.WriteFile(lock, []byte("# mine\n"+sum+"  gone\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Plugins: PluginsConfig{Dir: dir, Lock: lock}, Notification: NotificationConfig{RPCFallback: new(false)}}
	_, _, dropped, err := UpdatePluginLock(cfg)
	if b, _ := os.ReadFile(lock); err != nil || !reflect.DeepEqual(dropped, []string{"gone"}) || string(b) != "# mine\n" {
		t.Errorf("got %v, %v: %s", dropped, err, b)
	}
	if err := os.WriteFile(lock, []byte("junk\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := FindPlugins(cfg); err == nil || !strings.Contains(err.Error(), "fix the file or delete it") {
		t.Errorf("got %v", err)
	}
	p := PluginInfo{Name: "a", Path: "/a", SHA256: "1", Approved: "2", Pinned: "transports[0].sha256"}
	if err := p.Fault(); err == nil || !strings.Contains(err.Error(), "change transports[0].sha256") {
		t.Errorf("got %v", err)
	}
}

func TestNumbersInWords(t *testing.T) {
	for value, want := range map[string]string{
		"99999999999999999999": "too large", "1e9": "not 1e9; write all its digits", "30s": "the duration 30s; write milliseconds", "x": "not a string",
	} {
		_, err := ParseConfig([]byte("notification: {deadline_ms: "+value+"}\n"), "f")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", value, err)
		}
	}
}
