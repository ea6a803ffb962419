package rdmatransport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/rail"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/simverbs"
	"github.com/hawser-transport/hawser/sdk"
)

var (
	testTarget = sdk.Target{Local: sdk.Incarnation{1}, Peer: sdk.Incarnation{2}, Generation: 5}
	testPath   = rail.Path{Remote: rail.Port{GID: netip.MustParseAddr("::ffff:10.77.0.2")}}
)

func testMessage() message {
	return message{
		LocalNICPath: "host@sim0/1", LocalGID: testPath.Remote.GID, NotifyQPNum: 17, From: testTarget.Peer.String(),
		To: testTarget.Local.String(), Generation: 5, Instance: 3, MTU: 4096, SendLimit: 32,
	}
}

func TestMessageRoundTrip(t *testing.T) {
	m := testMessage()
	m.QPNum = []uint32{}
	got, err := parse("offer", m.marshal(), testTarget, testPath)
	if err != nil || fmt.Sprint(got) != fmt.Sprint(m) {
		t.Errorf("%+v, %v", got, err)
	}
}

// The names are those of the system that the transport comes from; unknown
// ones are ignored, absent ones say the default.
func TestMessageNames(t *testing.T) {
	raw := fmt.Sprintf(`{"local_nic_path": "a@mlx5_0", "peer_nic_path": "b@mlx5_0", "qp_num": [1, 2], "local_lid": 7,
		"local_gid": "::ffff:10.77.0.2", "notify_qp_num": 99, "from": %q, "to": %q, "generation": 5, "send_limit": 4,
		"something_new": {"deep": [1]}}`, testTarget.Peer, testTarget.Local)
	m, err := parse("offer", []byte(raw), testTarget, testPath)
	if err != nil || m.NotifyQPNum != 99 || m.LocalLID != 7 || m.NotifyProto != 0 || m.PSN != 0 || m.MTU != 0 {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestHostileMessages(t *testing.T) {
	for name, change := range map[string]func(*message){
		"another generation":      func(m *message) { m.Generation = 4 },
		"another incarnation":     func(m *message) { m.From = testTarget.Local.String() },
		"to another incarnation":  func(m *message) { m.To = "" },
		"another port":            func(m *message) { m.LocalGID = netip.MustParseAddr("::ffff:10.77.0.9") },
		"no GID":                  func(m *message) { m.LocalGID = netip.Addr{} },
		"a short GID":             func(m *message) { m.LocalGID = netip.MustParseAddr("10.77.0.2") },
		"no queue pair":           func(m *message) { m.NotifyQPNum = 0 },
		"a queue pair of 25 bits": func(m *message) { m.NotifyQPNum = 1 << 24 },
		"a PSN of 25 bits":        func(m *message) { m.PSN = 1 << 24 },
		"an MTU that is none":     func(m *message) { m.MTU = 1500 },
		"no send limit":           func(m *message) { m.SendLimit = 0 },
		"a negative send limit":   func(m *message) { m.SendLimit = -1 },
		"a vast send limit":       func(m *message) { m.SendLimit = 1 << 30 },
		"a refusal":               func(m *message) { m.ReplyMsg = "no" },
	} {
		m := testMessage()
		change(&m)
		if _, err := parse("offer", m.marshal(), testTarget, testPath); !errors.Is(err, sdk.Refused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, raw := range []string{"", "null", "[]", `"x"`, "{", strings.Repeat("{", 70000), `{"generation": -1}`, `{"notify_qp_num": 4294967296}`} {
		if _, err := parse("offer", []byte(raw), testTarget, testPath); !errors.Is(err, sdk.Refused) {
			t.Errorf("%.20q: %v", raw, err)
		}
	}
}

// Those for memory name their one queue pair elsewhere, so that neither is taken
// for the other.
func TestMessagesForMemory(t *testing.T) {
	target := testTarget
	target.Use = sdk.UseMemory
	good := testMessage()
	good.QPNum, good.NotifyQPNum, good.SendLimit, good.ReadLimit = []uint32{17}, 0, 0, 16
	m, err := parse("offer", good.marshal(), target, testPath)
	if err != nil || m.number() != 17 {
		t.Errorf("%+v, %v", m, err)
	}
	for name, change := range map[string]func(*message){
		"no queue pair":           func(m *message) { m.QPNum = []uint32{} },
		"two queue pairs":         func(m *message) { m.QPNum = []uint32{17, 18} },
		"queue pair 0":            func(m *message) { m.QPNum = []uint32{0} },
		"a queue pair of 25 bits": func(m *message) { m.QPNum = []uint32{1 << 24} },
		"one for frames, too":     func(m *message) { m.NotifyQPNum = 17 },
		"no reads":                func(m *message) { m.ReadLimit = 0 },
		"negative reads":          func(m *message) { m.ReadLimit = -1 },
		"many reads":              func(m *message) { m.ReadLimit = 129 },
		"another generation":      func(m *message) { m.Generation = 4 },
	} {
		m := good
		change(&m)
		if _, err := parse("offer", m.marshal(), target, testPath); !errors.Is(err, sdk.Refused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := parse("offer", good.marshal(), testTarget, testPath); !errors.Is(err, sdk.Refused) {
		t.Errorf("for memory, and taken for frames: %v", err)
	}
	if _, err := parse("offer", testMessage().marshal(), target, testPath); !errors.Is(err, sdk.Refused) {
		t.Errorf("for frames, and taken for memory: %v", err)
	}
}

func FuzzMessage(f *testing.F) {
	f.Add(testMessage().marshal())
	f.Add([]byte(`{"generation": 5, "local_gid": "fe80::1%x"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := parse("offer", raw, testTarget, testPath)
		if err != nil {
			if !errors.Is(err, sdk.Refused) {
				t.Errorf("not a refusal: %v", err)
			}
			return
		}
		if again, err := parse("offer", m.marshal(), testTarget, testPath); err != nil || again.NotifyQPNum != m.NotifyQPNum {
			t.Errorf("%+v does not survive: %v", m, err)
		}
	})
}

// A late answer of generation 1 configured generation 2's queue pair.
func TestLateAnswerOfAnOlderGeneration(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, patient), f.node(t, patient)
	answer := func(generation uint64) (raw []byte) {
		target := rigtest.Target(a.Node, b.Node, generation)
		_, err := a.Connect(rigtest.Context(t), target, func(ctx context.Context, offer []byte) ([]byte, error) {
			back := rigtest.Target(b.Node, a.Node, generation)
			e, answer, err := b.Accept(ctx, back, offer, discard{})
			must(t, err)
			e.Close()
			raw = answer
			return nil, sdk.Errorf(sdk.Unavailable, "late")
		}, discard{})
		if err == nil {
			t.Fatal("connected without an answer")
		}
		return raw
	}
	late := answer(1)
	_, err := a.Connect(rigtest.Context(t), rigtest.Target(a.Node, b.Node, 2), func(context.Context, []byte) ([]byte, error) { return late, nil }, discard{})
	if !errors.Is(err, sdk.Refused) {
		t.Errorf("a late answer: %v", err)
	}
	if _, err := a.Connect(rigtest.Context(t), rigtest.Target(a.Node, b.Node, 1), nil, discard{}); !errors.Is(err, sdk.Refused) {
		t.Errorf("an older generation: %v", err)
	}
	x, y := join(t, a, b, 3)
	talk(t, x, y, 3)
}

// Both sides connect at once: both endpoints work, and the engine keeps one.
func TestSimultaneousConnects(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, patient), f.node(t, patient)
	var wg sync.WaitGroup
	for _, way := range [][2]*node{{a, b}, {b, a}} {
		wg.Go(func() {
			x, y := join(t, way[0], way[1], 7)
			talk(t, x, y, 20)
		})
	}
	wg.Wait()
}

func TestMTUIsTheSmallerSides(t *testing.T) {
	f := newFabric(t)
	o := f.options()
	o.Devices[0].Ports[0].MTU = 1024
	a, b := f.nodeOf(t, o, patient), f.node(t, patient)
	for i, way := range [][2]*node{{a, b}, {b, a}} { // the simulation refuses what does not agree
		x, y := join(t, way[0], way[1], uint64(i+1))
		must(t, x.Send(make([]byte, maxFrame)))
		must(t, y.Send(make([]byte, maxFrame)))
		x.WaitDone(1)
		y.WaitDone(1)
	}
}

// A dead path is reported in the time that timeout and retries imply.
func TestDeadPath(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, "{}"), f.node(t, "{}")
	x, _ := join(t, a, b, 1)
	must(t, f.Cut(simverbs.PortName{Host: a.host, Device: "sim0", Port: 1}, simverbs.PortName{Host: b.host, Device: "sim0", Port: 1}))
	began := time.Now()
	must(t, x.Send([]byte("gone")))
	x.WaitEnded()
	implied := 8 * (4096 * time.Nanosecond << 14)
	if took := time.Since(began); took < implied/2 {
		t.Errorf("reported after %s, which is before the %s that timeout and retries imply", took, implied)
	} else {
		t.Logf("reported after %s, timeout and retries imply %s", took, implied)
	}
}

// Rail 0 flaps: its endpoints end and its paths go, and both come back.
func TestPortFlap(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, patient), f.node(t, patient)
	paths := func() []string {
		names, err := a.Paths(b.Setup.Attributes)
		must(t, err)
		return names
	}
	if got := paths(); len(got) != 4 || got[0] != "10.77.0.1-10.77.0.2" || got[1] != "10.77.1.1-10.77.1.2" {
		t.Fatalf("paths %q", got)
	}
	x, _ := join(t, a, b, 1)
	down := simverbs.PortName{Host: a.host, Device: "sim0", Port: 1}
	must(t, f.PortDown(down))
	if err := x.WaitEnded(); !errors.Is(err, sdk.Unavailable) {
		t.Errorf("ended with %v", err)
	}
	until(t, "rail 0's paths to go", func() bool { return len(paths()) == 2 })
	if got := paths(); got[0] != "10.77.1.1-10.77.1.2" {
		t.Errorf("paths %q", got)
	}
	_, err := a.Connect(rigtest.Context(t), sdk.Target{
		Local: a.Inc, Peer: b.Inc, Path: "10.77.0.1-10.77.0.2", Remote: b.Setup.Attributes, Generation: 2,
	}, nil, discard{})
	if !errors.Is(err, sdk.Unavailable) {
		t.Errorf("Connect over a port that is down: %v", err)
	}
	u, v := join(t, a, b, 3)
	if u.e.d.name != "sim1" {
		t.Errorf("connected over %s", u.e.d.name)
	}
	talk(t, u, v, 5)
	must(t, f.PortUp(down))
	until(t, "rail 0's paths to come back", func() bool { return len(paths()) == 4 })
	x, y := join(t, a, b, 4)
	if x.e.d.name != "sim0" {
		t.Errorf("connected over %s", x.e.d.name)
	}
	talk(t, x, y, 5)
}

// A device that is lost ends its endpoints, and the other one carries on.
func TestDeviceLost(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, patient), f.node(t, patient)
	a.dirty = true // a lost device keeps its accounts
	x, _ := join(t, a, b, 1)
	must(t, f.LoseDevice(a.host, "sim0"))
	if err := x.WaitEnded(); !errors.Is(err, sdk.Unavailable) {
		t.Errorf("ended with %v", err)
	}
	u, v := join(t, a, b, 2)
	if u.e.d.name != "sim1" {
		t.Errorf("connected over %s", u.e.d.name)
	}
	talk(t, u, v, 5)
}

// The first device of the list need not be an RDMA device that works.
func TestTheFirstDeviceDoesNotWork(t *testing.T) {
	f := newFabric(t)
	o := f.options()
	o.Devices[0].OpenError = syscall.EACCES
	a, b := f.node(t, patient), f.nodeOf(t, o, patient)
	for i, way := range [][2]*node{{a, b}, {b, a}} {
		x, y := join(t, way[0], way[1], uint64(i+1))
		talk(t, x, y, 3)
	}
}

// What is missing is said with what to do.
func TestConfigureSaysWhatIsMissing(t *testing.T) {
	for name, c := range map[string]struct {
		settings string
		change   func(*simverbs.Options)
		inject   *simverbs.Injection
		want     []string
	}{
		"no library":         {"{}", func(o *simverbs.Options) { o.Missing = "libibverbs.so.1" }, nil, []string{"libibverbs.so.1"}},
		"no device":          {"{}", func(o *simverbs.Options) { o.Devices = nil }, nil, []string{"no RDMA device", "/sys/class/infiniband"}},
		"another device":     {`{"devices": ["mlx5_9"]}`, nil, nil, []string{"mlx5_9", "sim0", "sim1"}},
		"no permission":      {`{"devices": ["sim0"]}`, func(o *simverbs.Options) { o.Devices[0].OpenError = syscall.EACCES }, nil, []string{"sim0", "/dev/infiniband/uverbs", "group rdma"}},
		"no locked memory":   {`{"devices": ["sim0"]}`, nil, &simverbs.Injection{Call: "ibv_reg_mr", Errno: syscall.ENOMEM}, []string{"sim0", "memlock", "ulimit -l"}},
		"no GID":             {`{"devices": ["sim0"]}`, func(o *simverbs.Options) { o.Devices[0].Ports[0].GIDs = nil }, nil, []string{"sim0/1", "no GID", "address"}},
		"no such GID":        {`{"devices": ["sim0"], "gids": {"sim0/1": 9}}`, nil, nil, []string{"sim0/1", "index 9"}},
		"no such GID's text": {`{"devices": ["sim0"], "gids": {"sim0": "10.1.2.3"}}`, nil, nil, []string{"sim0/1", "10.1.2.3"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			o := f.options()
			if c.change != nil {
				c.change(&o)
			}
			s := f.transport(t, o)
			defer s.Close(context.Background()) //nolint:errcheck // test
			if c.inject != nil {
				s.provider.Inject(*c.inject)
			}
			_, err := s.Configure(rigtest.Context(t), sdk.Config{Instance: 1, Settings: json.RawMessage(c.settings)})
			if !errors.Is(err, sdk.Unsupported) {
				t.Fatalf("Configure: %v", err)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not name %q", err, want)
				}
			}
		})
	}
}

// Locked memory for fewer buffers than asked for is enough.
func TestFewerReceiveBuffers(t *testing.T) {
	f := newFabric(t)
	a, b := f.node(t, patient), f.node(t, patient)
	a.provider.Inject(simverbs.Injection{Call: "ibv_reg_mr", Errno: syscall.ENOMEM})
	x, y := join(t, a, b, 1)
	if n := a.device("sim0").receives.n; n != 128 {
		t.Errorf("%d receive buffers", n)
	}
	talk(t, x, y, 200)
}

func TestRNRRetryIsPinned(t *testing.T) {
	_, err := parseSettings(json.RawMessage(`{"endpoint": {"rnr_retry": 6}}`))
	if !errors.Is(err, sdk.InvalidArgument) || !strings.Contains(err.Error(), "flow control") {
		t.Errorf("%v", err)
	}
}

func TestGIDOverride(t *testing.T) {
	f := newFabric(t)
	n := f.node(t, `{"gids": {"sim0": "10.77.0.1", "sim1/1": 1}}`)
	ports, err := rail.Parse(n.Setup.Attributes[attrPorts])
	must(t, err)
	if ports[0].GID.Unmap().String() != "10.77.0.1" || ports[0].Type != rail.TypeName(verbs.GIDRoCEv2) || !ports[1].GID.IsLinkLocalUnicast() {
		t.Errorf("ports %+v", ports)
	}
}
