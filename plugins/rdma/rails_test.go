package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/simverbs"
	"github.com/hawser-transport/hawser/plugins/rdma/rdmatransport"
	"github.com/hawser-transport/hawser/sdk"
)

// patient settings let an acknowledgement take 0.54 s, on a machine that is busy.
const patient = `{"endpoint": {"send_timeout": 17}}`

// openOn opens an engine with the rdma transport alone, on a simulated host.
func openOn(t *testing.T, dir string, n int, change ...func(*simverbs.Options)) *engine.Engine {
	t.Helper()
	o, err := simverbs.Load(host(t, dir, n))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(&o)
	}
	p, err := simverbs.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	no := false
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	e, err := engine.Open(ctx, engine.Config{
		Node:         engine.NodeConfig{Name: fmt.Sprintf("h%d", n)},
		Notification: engine.NotificationConfig{RPCFallback: &no},
		Transports: []engine.TransportConfig{{Name: "rdma", Config: json.RawMessage(patient), InProcess: func() sdk.Transport {
			return rdmatransport.New(p)
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return e
}

// A port goes down in the middle of a stream, at either end: the other rail
// carries on, with no path blamed; once it is up again it carries as before.
func TestARailIsLostMidStream(t *testing.T) {
	for n, down := range []string{"h1", "h2"} {
		t.Run(down, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "rdma") // t.TempDir is too long for sockets
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			a, b := openOn(t, dir, 1), openOn(t, dir, 2)
			s := &stream{t: t, from: a, to: b}
			port := simverbs.PortName{Host: down, Device: "sim0", Port: 1}
			rail0, rail1 := "10.77.0.1-10.77.0.2", "10.77.1.1-10.77.1.2"
			s.until(rail0)
			s.send(200)
			if err := simverbs.Control(dir).PortDown(port); err != nil {
				t.Fatal(err)
			}
			s.until(rail1)
			s.send(200)
			if err := simverbs.Control(dir).PortUp(port); err != nil {
				t.Fatal(err)
			}
			s.until(rail0)
			s.send(200)
			s.check()
			if p := a.Stats().Pauses; p != 0 {
				t.Errorf("%d pauses for errors at the sender (case %d)", p, n)
			}
		})
	}
}

// stream is numbered notifications, each of which must arrive once.
type stream struct {
	t        *testing.T
	from, to *engine.Engine
	sent     int
}

// one sends one and returns the path that it took.
func (s *stream) one() string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	d, err := s.from.Notify(ctx, s.to.Self().Address, engine.Notification{Name: fmt.Sprint(s.sent)})
	if err == nil {
		err = d.Wait(ctx)
	}
	if err != nil {
		s.t.Fatalf("notification %d: %v", s.sent, err)
	}
	s.sent++
	return d.Report().Path
}

func (s *stream) send(n int) {
	s.t.Helper()
	for range n {
		s.one()
	}
}

// until sends until they take a path.
func (s *stream) until(path string) {
	s.t.Helper()
	var took string
	for began := time.Now(); time.Since(began) < 20*time.Second; {
		if took = s.one(); took == path {
			return
		}
	}
	s.t.Fatalf("they take %s, want %s; %+v", took, path, s.from.Peers())
}

// check receives them all.
func (s *stream) check() {
	s.t.Helper()
	got := map[string]int{}
	for range s.sent {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		r, err := s.to.Receive(ctx)
		cancel()
		if err != nil {
			s.t.Fatalf("%d of %d arrived: %v", len(got), s.sent, err)
		}
		got[r.Name]++
	}
	if len(got) != s.sent {
		s.t.Errorf("%d different ones of %d arrived", len(got), s.sent)
	}
}
