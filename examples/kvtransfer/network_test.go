//go:build linux

package main

import (
	"bufio"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
)

// The two processes find each other by their addresses. Those of loopback stand
// for two machines': nothing but -listen makes a process listen at the second.
func TestTwoMachines(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	decode := example(ctx, "-decode", "-plugins", bin, "-gpu", "off", "-listen", "127.0.0.3")
	var said strings.Builder
	decode.Stderr = &said
	out, err := decode.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := decode.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	address, _ := strings.CutPrefix(lines.Text(), listening)
	if !strings.HasPrefix(address, "127.0.0.3:") {
		t.Errorf("decode is at %q", address)
	}
	text, err := run(t, bin, "off", nil, "-listen", "127.0.0.2", "-peer", address)
	if err != nil || !strings.Contains(text, "prefill-0 has its 32 blocks back\n") {
		t.Errorf("%v\n%s", err, text)
	}
	for lines.Scan() {
		text += lines.Text() + "\n"
	}
	if err := decode.Wait(); err != nil || !strings.Contains(text, "decode-0 read 32 blocks") {
		t.Errorf("decode: %v\n%s%s", err, text, said.String())
	}
}

// What peers dial is at the address that was given: the control plane and the
// transports' streams.
func TestReach(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e, err := open(ctx, "prefill", bin, &place{}, network{listen: "127.0.0.2"})
	if err != nil {
		t.Fatal(err)
	}
	defer shut(e)
	if a := e.Self().Address; !strings.HasPrefix(a, "127.0.0.2:") {
		t.Errorf("the control plane is at %s", a)
	}
	streams := 0
	for _, transport := range e.Transports() {
		for _, at := range transport.Listeners {
			if streams++; !strings.HasPrefix(at, "127.0.0.2:") {
				t.Errorf("%s is at %s", transport.Name, at)
			}
		}
	}
	if streams < 2 {
		t.Errorf("%d streams are listened for, not those of tcp and rpcfallback", streams)
	}
	cfg := engine.Config{Transports: []engine.TransportConfig{{Name: "mnnvl"}, {Name: "tcp"}}}
	network{listen: "::1", insecure: true}.reach(&cfg)
	if len(cfg.Transports) != 3 || cfg.Control.Listen != "[::1]:0" || !cfg.Security.Insecure || string(cfg.Transports[0].Config) != `{"listen":"[::1]:0"}` {
		t.Errorf("%+v", cfg)
	}
}

func TestCannotStart(t *testing.T) {
	out, err := run(t, bin, "off", nil, "-decode", "-listen", "192.0.2.1")
	fails(t, out, err, "security.insecure")
	out, err = run(t, bin, "off", nil, "-listen", "127.0.0.2")
	fails(t, out, err, "go with -decode or -peer")
	if os.Getenv(onGPUs) != "" {
		return // the plugins lie beside this binary, where they are looked for too
	}
	out, err = run(t, t.TempDir(), "off", nil)
	fails(t, out, err, "was not found", "decode did not start: exit status 1\n")
}

// A peer that is not there is told at once, and not by a deadline.
func TestNoPeer(t *testing.T) {
	out, err := run(t, bin, "off", nil, "-peer", "127.0.0.1:1")
	fails(t, out, err, "127.0.0.1:1", "connection refused")
	if strings.Contains(out, "notification") {
		t.Errorf("it has waited for a notification:\n%s", out)
	}
}
