package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// hawser is the command beside the plugin's binary, with a configuration that
// runs the plugin.
type hawser struct {
	t               *testing.T
	command, config string
}

func newHawser(t *testing.T, env string) *hawser {
	t.Helper()
	dir := filepath.Dir(build(t))
	h := &hawser{t, filepath.Join(dir, "hawser"), filepath.Join(dir, "hawser.yaml")}
	if out, err := exec.Command("go", "build", "-o", h.command, "../../cmd/hawser").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	config := "notification: {rpc_fallback: false}\nplugins: {dir: " + dir + "}\ntransports: [{name: rdma, env: {" + env + "}}]\n"
	if err := os.WriteFile(h.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return h
}

// run wants an exit code and a text in the output.
func (h *hawser) run(code int, text string, env []string, args ...string) {
	h.t.Helper()
	cmd := exec.Command(h.command, append(args, "--config", h.config)...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	got := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		h.t.Fatal(err)
	}
	if got != code || !strings.Contains(out.String(), text) {
		h.t.Errorf("%v: exit code %d, want %d and %q:\n%s", args, got, code, text, &out)
	}
	if strings.Contains(out.String(), "simulated") {
		h.t.Errorf("%v: a device was looked for:\n%s", args, &out)
	}
}

// Comparing the binary's checksum and asking what it can do needs no device, nor
// what a simulation would need.
func TestVerifyNeedsNoDevice(t *testing.T) {
	h := newHawser(t, simulation+": /nothing/there.json")
	h.run(2, "rdma: not in the lock", nil, "plugin", "verify")
	h.run(0, "written to", nil, "plugin", "verify", "--update")
	h.run(0, "rdma: approved", nil, "plugin", "verify")
	h.run(0, "rdma 0.1.0", nil, "plugin", "describe", "rdma")
	// The variable is the plugin's, and a shell's does not reach it.
	h.run(1, "transport's env", []string{simulation + "=/nothing/there.json"}, "plugin", "verify")
	binary := filepath.Join(filepath.Dir(h.config), "hawser-rdma")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\n"), 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	h.run(2, "rdma: changed", nil, "plugin", "verify")
}
