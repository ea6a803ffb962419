//go:build linux

package scenarios

import (
	"context"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/plugins/tcp/tcptransport"
	"github.com/hawser-transport/hawser/sdk"
)

// otherContract is tcp, built with another version of the contract.
type otherContract struct{ sdk.Transport }

func (o otherContract) Describe() sdk.Description {
	d := o.Transport.Describe()
	d.Contract = 99
	return d
}

func serveOtherContract() { sdk.Serve(otherContract{tcptransport.New()}) }

// Scenario 57: a bad binary costs its transport; the error says which file,
// what is wrong with it and what to do; traffic flows over the next one.
func TestScenario57BadBinaries(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	truth, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	tcp := filepath.Join(bin, "hawser-tcp")
	wrong := hex.EncodeToString(make([]byte, 32))
	lock := file("plugins.lock", wrong+"  tcp\n", 0o600)
	receiver := open(t, config("receiver"))
	sent := map[string]int{}

	for _, c := range []struct {
		name, plugin, lock, role string
		code                     engine.Code
		want                     []string // what, why, what to do
	}{
		{name: "wrong checksum in plugins.lock", plugin: tcp, lock: lock, code: engine.InvalidArgument,
			want: []string{tcp, wrong, "not the one that was approved", "hawser plugin verify --update"}},
		{name: "not executable", plugin: file("plain", "#!/bin/sh\n", 0o600), code: engine.InvalidArgument,
			want: []string{"plain", "not executable", "chmod +x"}},
		{name: "exec format error", plugin: file("hawser-text", "just text", 0o700), code: engine.InvalidArgument,
			want: []string{"hawser-text", "not a program for this machine", "exec format error"}},
		{name: "no plugin", plugin: file("hawser-x", string(truth), 0o700), code: engine.PluginExited,
			want: []string{"hawser-x", "status 0", "is it a Hawser plugin?"}},
		{name: "wrong contract version", plugin: exe, role: "contract", code: engine.InvalidArgument,
			want: []string{exe, "contract version 99, this host has 1", "install"}},
		{name: "not there", plugin: filepath.Join(dir, "nothing"), code: engine.InvalidArgument,
			want: []string{"nothing", "no plugin binary at"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := config("sender")
			cfg.Plugins.Lock = c.lock
			bad := engine.TransportConfig{Name: "tcp", Plugin: c.plugin}
			if c.role != "" {
				bad.Env = map[string]string{roleVariable: c.role}
			}
			cfg.Transports = []engine.TransportConfig{bad, {Name: "rpcfallback"}}
			sender := open(t, cfg)
			s := sender.transport(t, "tcp")
			if s.State == "up" || s.LastError == nil {
				t.Fatalf("the bad binary runs: %+v", s)
			}
			t.Log(s.LastError)
			if !errors.Is(s.LastError, c.code) {
				t.Errorf("code %v, want %v", sdk.CodeOf(s.LastError), c.code)
			}
			for _, want := range c.want {
				if !strings.Contains(s.LastError.Error(), want) {
					t.Errorf("no %q in: %v", want, s.LastError)
				}
			}
			for _, r := range sender.send(t, receiver.address(), c.name, 50) {
				if r.Transport != "rpcfallback" {
					t.Fatalf("went over %q", r.Transport)
				}
			}
			sent[c.name] = 50
		})
	}
	receiver.inbox.expect(t, sent)
}

// Nothing but bad binaries: Open fails and names each.
func TestScenario57NothingButBadBinaries(t *testing.T) {
	cfg := config("alone")
	cfg.Transports = nil
	cfg.Plugins.Dir = t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := engine.Open(ctx, cfg)
	if !errors.Is(err, engine.Unavailable) || !strings.Contains(err.Error(), "hawser-tcp") || !strings.Contains(err.Error(), "hawser-rpcfallback") {
		t.Errorf("got %v", err)
	}
}
