package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is some engines over in-memory transports and an in-memory control
// plane, in fake time.
type world struct {
	t       *testing.T
	network *control.Network
	fast    *sdktest.Fabric // preferred
	slow    *sdktest.Fabric // the RPC fallback
	configs map[string]Config
	queues  map[string][]*Queue
	more    []*Engine // that a metricCase opened
	regions []*Region
	mu      sync.Mutex // of what transports of its own have
	logs    map[string]*lines
}

// run runs f in a synctest bubble with a world.
func run(t *testing.T, f func(*world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			t: t, network: control.NewNetwork(), configs: map[string]Config{},
			fast: sdktest.NewFabric(sdktest.FabricOptions{Name: "fast"}),
			slow: sdktest.NewFabric(sdktest.FabricOptions{Name: rpcFallbackName}),
		}
		f(w)
	})
}

// open opens the engine at an address; the address also names its node.
func (w *world) open(address string) *Engine {
	w.t.Helper()
	cfg := w.configs[address]
	cfg.Node.Name = address
	if cfg.Transports == nil {
		cfg.Transports = []TransportConfig{
			{Name: "fast", InProcess: func() sdk.Transport { return w.fast.New(address) }},
			{Name: rpcFallbackName, InProcess: func() sdk.Transport { return w.slow.New(address) }},
		}
	}
	opts := []Option{withCarrier(w.network.Carrier(address))}
	for _, q := range w.queues[address] {
		opts = append(opts, WithQueue(q))
	}
	if l := w.logs[address]; l != nil {
		opts = append(opts, WithLogger(l.logger()))
	}
	if os.Getenv("HAWSER_TEST_LOG") != "" {
		opts = append(opts, WithLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", address)))
	}
	e, err := Open(context.Background(), cfg, opts...)
	if err != nil {
		w.t.Fatalf("open %s: %v", address, err)
	}
	return e
}

// shut closes engines, which must drain.
func (w *world) shut(es ...*Engine) {
	w.t.Helper()
	for _, e := range es {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := e.Close(ctx); err != nil {
			w.t.Errorf("close %s: %v", e.address, err)
		}
		cancel()
	}
}

// notify sends one notification that must be taken.
func (w *world) notify(e *Engine, peer, name string) *Delivery {
	w.t.Helper()
	d, err := e.Notify(context.Background(), peer, Notification{Name: name, Payload: []byte("payload of " + name)})
	if err != nil {
		w.t.Fatalf("notify %s: %v", peer, err)
	}
	return d
}

func (w *world) wait(d *Delivery) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	return d.Wait(ctx)
}

func (w *world) receive(e *Engine, within time.Duration) (*Received, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return e.Receive(ctx)
}

// expect receives exactly these names, in any order, each once, and nothing
// more for a while.
func (w *world) expect(e *Engine, names ...string) {
	w.t.Helper()
	want := map[string]int{}
	for _, n := range names {
		want[n]++
	}
	for range names {
		r, err := w.receive(e, 5*time.Minute)
		if err != nil {
			w.t.Fatalf("receive: %v; still missing %d of %d", err, len(want), len(names))
		}
		if string(r.Payload) != "payload of "+r.Name {
			w.t.Errorf("payload of %q is %q", r.Name, r.Payload)
		}
		if want[r.Name]--; want[r.Name] == 0 {
			delete(want, r.Name)
		} else if want[r.Name] < 0 {
			w.t.Errorf("%q arrived twice or uncalled for", r.Name)
		}
	}
	if r, err := w.receive(e, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
		w.t.Errorf("received %v, %v more", r, err)
	}
}

func names(prefix string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return list
}

// drain receives everything that arrives within a minute of silence.
func drain(e *Engine) (got []string) {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		r, err := e.Receive(ctx)
		cancel()
		if err != nil {
			return got
		}
		got = append(got, r.Name)
	}
}

// helloFor is a hello that changes nothing.
func (e *Engine) helloFor() control.HelloRequest {
	return control.HelloRequest{From: e.self(), Proto: 2, Session: 1}
}
