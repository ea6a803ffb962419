package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/simverbs"
	"github.com/hawser-transport/hawser/plugins/rdma/rdmatransport"
	"github.com/hawser-transport/hawser/plugins/tcp/tcptransport"
	"github.com/hawser-transport/hawser/sdk"
)

// On a machine without an RDMA device the engine says so, does not start the
// transport again and again, and carries over tcp at once.
func TestWithoutADeviceTheNextTransportCarries(t *testing.T) {
	dir, err := os.MkdirTemp("", "rdma") // t.TempDir is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var nodes []*engine.Engine
	for _, name := range []string{"h1", "h2"} {
		p, err := simverbs.New(simverbs.Options{Dir: filepath.Join(dir), Host: name})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		no := false
		e, err := engine.Open(ctx, engine.Config{
			Node:         engine.NodeConfig{Name: name},
			Notification: engine.NotificationConfig{RPCFallback: &no},
			Plugins:      engine.PluginsConfig{RestartBackoffMS: 1, MaxRestartBackoffMS: 1},
			Transports: []engine.TransportConfig{
				{Name: "rdma", InProcess: func() sdk.Transport { return rdmatransport.New(p) }},
				{Name: "tcp", InProcess: func() sdk.Transport { return tcptransport.New() }},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close(ctx) })
		nodes = append(nodes, e)
	}
	began := time.Now()
	d, err := nodes[0].Notify(ctx, nodes[1].Self().Address, engine.Notification{Name: "x"})
	if err == nil {
		err = d.Wait(ctx)
	}
	if err != nil || d.Report().Transport != "tcp" || time.Since(began) > 5*time.Second {
		t.Errorf("%v over %s after %s", err, d.Report().Transport, time.Since(began))
	}
	for _, e := range nodes {
		s := e.Transports()[0]
		if s.Name != "rdma" || s.State != "unsupported" || s.Restarts != 0 || s.LastError == nil || !strings.Contains(s.LastError.Error(), "no RDMA device: "+"an RDMA device with its driver is needed") {
			t.Errorf("%+v", s)
		}
	}
}
