package rdmatransport

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/simverbs"
	"github.com/hawser-transport/hawser/sdk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fabric is a simulated network with hosts of two devices each.
type fabric struct {
	*simverbs.Controller
	dir   string
	hosts atomic.Int32
}

func newFabric(t testing.TB) *fabric {
	t.Helper()
	dir, err := os.MkdirTemp("", "rdma") // t.TempDir is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return &fabric{Controller: simverbs.Control(dir), dir: dir}
}

// options describe the next host: rails 0 and 1, each a device of one port.
func (f *fabric) options() simverbs.Options {
	n := f.hosts.Add(1)
	o := simverbs.Options{Dir: f.dir, Host: fmt.Sprintf("h%d", n)}
	for rail := range 2 {
		v4 := netip.AddrFrom16(netip.AddrFrom4([4]byte{10, 77, byte(rail), byte(n)}).As16())
		o.Devices = append(o.Devices, simverbs.Device{
			Name: fmt.Sprintf("sim%d", rail), NUMA: rail,
			Ports: []simverbs.Port{{
				Netdev: fmt.Sprintf("eth%d", rail),
				GIDs: []verbs.GID{
					{Index: 0, Addr: linkLocal(rail, n), Type: verbs.GIDRoCEv1},
					{Index: 1, Addr: linkLocal(rail, n), Type: verbs.GIDRoCEv2},
					{Index: 2, Addr: v4, Type: verbs.GIDRoCEv1},
					{Index: 3, Addr: v4, Type: verbs.GIDRoCEv2},
				},
			}},
		})
	}
	return o
}

// lose takes a rail from a host, or gives it back.
func (f *fabric) lose(t testing.TB, host string, rail int, lost bool) {
	t.Helper()
	change := f.PortUp
	if lost {
		change = f.PortDown
	}
	if err := change(simverbs.PortName{Host: host, Device: fmt.Sprintf("sim%d", rail), Port: 1}); err != nil {
		t.Fatal(err)
	}
}

func linkLocal(rail int, host int32) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 14: byte(rail), 15: byte(host)})
}

// simulated is a transport on a host of its own, which ends with it.
type simulated struct {
	*Transport
	t        testing.TB
	provider *simverbs.Provider
	host     string
	dirty    bool // faults were injected that leave something behind
	settings string
}

// patient keeps a machine that is short of processors from looking like a dead
// peer.
const patient = `{"endpoint": {"send_timeout": 17}}`

// Configure uses the settings of the test where the caller has none.
func (s *simulated) Configure(ctx context.Context, cfg sdk.Config) (sdk.Setup, error) {
	if s.settings != "" {
		cfg.Settings = json.RawMessage(s.settings)
	}
	return s.Transport.Configure(ctx, cfg)
}

func (f *fabric) transport(t testing.TB, o simverbs.Options) *simulated {
	t.Helper()
	p, err := simverbs.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return &simulated{Transport: New(p), t: t, provider: p, host: o.Host}
}

// Close also checks that nothing is left of what the transport made, and that
// it did nothing in a wrong order.
func (s *simulated) Close(ctx context.Context) error {
	err := s.Transport.Close(ctx)
	if err == nil && !s.dirty {
		if a := s.provider.Accounts(); !a.IsClean() {
			s.t.Errorf("%s after Close: %+v", s.host, a)
		}
	}
	if err == nil {
		_ = s.provider.Close()
	}
	return err
}

// node is a configured instance on a host of its own.
type node struct {
	*rigtest.Node
	*simulated
}

func (f *fabric) node(t testing.TB, settings string) *node {
	t.Helper()
	return f.nodeOf(t, f.options(), settings)
}

func (f *fabric) nodeOf(t testing.TB, o simverbs.Options, settings string) *node {
	t.Helper()
	s := f.transport(t, o)
	s.settings = settings
	cfg := sdk.Config{Instance: 1}
	if testing.Verbose() {
		cfg.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return &node{rigtest.Start(t, s, cfg), s}
}

// Configure and Close are the simulated transport's.
func (n *node) Configure(ctx context.Context, cfg sdk.Config) (sdk.Setup, error) {
	return n.simulated.Configure(ctx, cfg)
}

func (n *node) Close(ctx context.Context) error { return n.simulated.Close(ctx) }

// device returns the transport's device.
func (n *node) device(name string) *device {
	for _, d := range n.devices {
		if d.name == name {
			return d
		}
	}
	return nil
}

// side is one end of a connection.
type side struct {
	*rigtest.Recorder
	*rigtest.Sender
	e *endpoint
}

// join connects two nodes over the best path.
func join(t testing.TB, a, b *node, generation uint64) (x, y *side) {
	t.Helper()
	return joinOver(t, a, b, rigtest.Target(a.Node, b.Node, generation))
}

func joinOver(t testing.TB, a, b *node, target sdk.Target) (x, y *side) {
	t.Helper()
	return joinWith(t, a, b, target, nil)
}

// joinWith has the passive end's frames go to received first.
func joinWith(t testing.TB, a, b *node, target sdk.Target, received func([][]byte)) (x, y *side) {
	t.Helper()
	ra, rb := rigtest.NewRecorder(t), rigtest.NewRecorder(t)
	rb.OnReceived = received
	ea, eb := rigtest.ConnectOver(t, a.Node, b.Node, target, ra, rb)
	return newSide(ea, ra), newSide(eb, rb)
}

func newSide(e sdk.Endpoint, r *rigtest.Recorder) *side {
	return &side{r, &rigtest.Sender{Endpoint: e, Recorder: r}, e.(*endpoint)}
}

// talk sends frames both ways and waits for them.
func talk(t testing.TB, x, y *side, n int) {
	t.Helper()
	for range n {
		for _, s := range []*side{x, y} {
			if err := s.Send([]byte("hello")); err != nil {
				t.Fatalf("Send: %v", err)
			}
		}
	}
	x.WaitDone(x.Sent())
	y.WaitDone(y.Sent())
}

// Close ends the endpoint.
func (s *side) Close() { s.e.Close() }
