//go:build linux

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/engine/admin"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// moving opens an engine whose transport moves memory.
func moving(t *testing.T, fabric *sdktest.Fabric, name, socket string) *engine.Engine {
	t.Helper()
	e, err := engine.Open(t.Context(), engine.Config{
		Node: engine.NodeConfig{Name: name}, Admin: engine.AdminConfig{Socket: socket},
		Notification: engine.NotificationConfig{RPCFallback: new(false)},
		Transports:   []engine.TransportConfig{{Name: "memory", InProcess: func() sdk.Transport { return fabric.New(name) }}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = e.Close(ctx)
	})
	return e
}

// An operator sees a peer's region in use, and gives it back.
func TestMappings(t *testing.T) {
	dir, err := os.MkdirTemp("", "hw-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	fabric := sdktest.NewFabric(sdktest.FabricOptions{Moves: true})
	a, b := moving(t, fabric, "a", socket), moving(t, fabric, "b", "")
	peer := b.Self().Address

	run(t, "mappings", "list", "--socket", socket).check(t, 0, "no mappings")
	run(t, "mappings", "retire", peer, "--socket", socket).check(t, 1, peer)
	run(t, "mappings", "retire").check(t, 1)
	run(t, "mappings", "list", "--socket", filepath.Join(dir, "none")).check(t, 3, "no node listens on")

	mine, err := a.AllocateHost(4096, engine.RegionOptions{Private: true})
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := b.AllocateHost(8192, engine.RegionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	g, err := a.OpenSegment(t.Context(), peer)
	if err != nil {
		t.Fatal(err)
	}
	x, err := a.Submit(t.Context(), []engine.Op{{Kind: engine.Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 4096}}, engine.SubmitOptions{})
	if err == nil {
		err = x.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}

	region := theirs.Capability().Short()
	run(t, "mappings", "list", "--socket", socket).check(t, 0, "consumer", peer, b.Self().Incarnation.String()[:8], region, "8192", "idle", "memory")
	var list []admin.Mapping
	said := run(t, "mappings", "list", "--socket", socket, "-o", "json")
	if err := json.Unmarshal([]byte(said.out), &list); err != nil || len(list) != 1 || list[0].Capability != region || list[0].State != "idle" {
		t.Errorf("%v: %+v", err, list)
	}
	run(t, "peers", "--socket", socket).check(t, 0, "SEGMENT OF", "memory/")

	run(t, "mappings", "retire", "nobody:1", "--socket", socket).check(t, 1, "nobody:1")
	run(t, "mappings", "retire", b.Self().Incarnation.String()[:8], "--socket", socket).check(t, 0, "1 mappings retired")
	for limit := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) { // the transport is told meanwhile
		said := run(t, "mappings", "list", "--socket", socket)
		if said.out == "no mappings\n" {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("still there:\n%s", said.out)
		}
	}
	run(t, "mappings", "retire", peer, "--socket", socket, "-o", "json").check(t, 0, `"mappings": 0`, `"unresolved": 0`)
	_ = g.Close()
}

func TestMappingsForPeople(t *testing.T) {
	now := time.Now()
	var out bytes.Buffer
	printMappings(&out, []admin.Mapping{
		{Side: "provider", Peer: "b:1", Incarnation: "0123456789abcdef", Capability: "cafe0123", Address: 0x7f00, Length: 512, State: "held", Heard: now.Add(-90 * time.Second)},
		{Side: "consumer", Peer: "c:1\x1b[2J", Incarnation: "fedcba9876543210", Capability: "beef0123", State: "unresolved", Leases: 3},
	}, now)
	lines := strings.Split(out.String(), "\n")
	for i, want := range [][]string{
		{"AS", "REGION", "LEASES"},
		{"provider", "b:1", "01234567 ", "cafe0123", "0x7f00", "512", "held", "1m30s ago"},
		{"consumer", "fedcba98 ", "beef0123", "unresolved", " 3 "},
	} {
		for _, w := range want {
			if !strings.Contains(lines[i], w) {
				t.Errorf("%q is missing in %q", w, lines[i])
			}
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("a peer's words reach the terminal: %q", out.String())
	}

	out.Reset()
	printRetired(&out, "b:1", admin.Retired{})
	printRetired(&out, "b:1", admin.Retired{Unresolved: 3})
	if out.String() != "b:1: 0 mappings retired\nb:1: 0 mappings retired\n3 ops to it are unresolved: their memory here stays in use until it answers or is known to be dead, or this engine is closed\n" {
		t.Errorf("%s", &out)
	}

	out.Reset()
	printSegments(&out, []admin.Peer{{Name: "x"}})
	if out.Len() > 0 {
		t.Errorf("nobody has read a segment: %s", &out)
	}
	printSegments(&out, []admin.Peer{{Name: "b", Address: "b:1", Segment: &admin.Segment{Version: 3, Latest: 5, Buffers: 7, Opens: 1, Ops: 9, Endpoints: []string{"tcp/main", "tcp/main"}}}})
	for _, want := range []string{"SEGMENT OF", "b:1", "3 (latest 5)", "tcp/main, tcp/main"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, &out)
		}
	}
}
