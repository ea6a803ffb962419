package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/engine/enginetest"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// The transports, in order of preference.
var transportNames = []string{"fast", "mid", "rpcfallback"}

const maxPayload = 8 << 10

// world is one run: some nodes, their networks, and what happened to them.
type world struct {
	trace
	t       *testing.T
	seed    uint64
	p       profile
	net     *enginetest.Network
	fabrics map[string]*sdktest.Fabric
	nodes   []*node

	mu     sync.Mutex
	faulty bool // faults are on
	taps   []*tap
	fired  map[string]int

	drawn     []string // faults, by harm
	everyLife []*life
	sends     []*sent
	arrivals  []*arrival
}

// node is a place where one engine after another lives.
type node struct {
	w              *world
	i              int
	address, alias string
	lifeRNG        *rand.Rand

	// Guarded by the world's lock.
	cur    *life // nil while nobody lives there
	lives  int
	busy   bool // one change of its life at a time
	absent bool // its reader
	slow   time.Duration
	idle   bool // its senders
}

// life is one engine.
type life struct {
	n      *node
	number int
	e      *engine.Engine
	cfg    engine.Config
	opened time.Time
	read   chan struct{} // closed when Receive says Closed

	proc enginetest.Process

	// Guarded by the world's lock.
	instances []*transport
	frozen    spans // when its process did not run
	events    []engine.Event
	over      bool // it is being closed
	pending   []*sent
}

func (l *life) String() string { return fmt.Sprintf("n%d.%d", l.n.i, l.number) }

// sent is one notification that was taken.
type sent struct {
	name     string
	from     *life
	to       *node
	size     int
	at       time.Time
	deadline time.Time
	d        *engine.Delivery

	// Guarded by the world's lock.
	ended time.Time
	ends  int
}

type arrival struct {
	name  string
	at    *life
	when  time.Time
	stamp engine.Stamp
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, seed: seed, p: newProfile(seed), net: enginetest.NewNetwork(), fired: map[string]int{}, fabrics: map[string]*sdktest.Fabric{}}
	w.start = time.Now()
	for i, name := range transportNames {
		o := sdktest.FabricOptions{Name: name, ArriveTimeout: 2 * time.Second, StallTimeout: w.p.stall}
		switch i {
		case 0:
			o.Paths = []string{"p0", "p1"}
			o.Limits = sdk.Limits{MaxFrame: 2 << 10, InflightFrames: w.p.inflight}
		case 1:
			o.Limits = sdk.Limits{MaxFrame: 4 << 10, InflightFrames: w.p.inflight}
			o.Exclusive = w.p.exclusive
		default:
			o.Limits = sdk.Limits{MaxFrame: maxPayload + 1024}
		}
		w.fabrics[name] = sdktest.NewFabric(o)
	}
	for i := range w.p.nodes {
		n := &node{w: w, i: i, address: fmt.Sprintf("n%d:1", i), alias: fmt.Sprintf("m%d:1", i), lifeRNG: w.rng(100 + uint64(i))}
		w.net.Alias(n.alias, n.address)
		w.nodes = append(w.nodes, n)
	}
	return w
}

// rng returns the generator for one purpose.
func (w *world) rng(purpose uint64) *rand.Rand { return rand.New(rand.NewPCG(w.seed, purpose)) }

// instant is what lies between things that have no order: they happen at times
// of their own, since within one time their order is not repeated.
const instant = 1009 * time.Nanosecond

// latencies gives every direction of every path a latency of its own, so that
// what goes different ways comes at different times. In a calm world a call
// takes long enough to be under way when its caller stops.
func (w *world) latencies() {
	k := time.Duration(0)
	next := func() time.Duration { k++; return 20*time.Microsecond + k*instant }
	for _, a := range w.nodes {
		for _, b := range w.nodes {
			for _, name := range transportNames {
				for _, path := range []string{"p0", "p1"} {
					w.fabrics[name].Delay(a.address, b.address, path, next())
				}
			}
			d := next()
			if w.p.calm {
				d += 150 * time.Millisecond
			}
			w.net.Delay(a.address, b.address, d)
		}
	}
}

// source is chance as an engine has it.
func (w *world) source(of string) func() uint64 {
	var mu sync.Mutex
	r := w.rng(hash("engine", of))
	return func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		return r.Uint64()
	}
}

func hash(of ...string) uint64 {
	h := fnv.New64a()
	for _, s := range of {
		_, _ = h.Write([]byte(s + "\x00"))
	}
	return h.Sum64()
}

// config is what a node's engine runs with.
func (n *node) config(l *life) engine.Config {
	w, p := n.w, n.w.p
	names := map[string]string{}
	for _, m := range w.nodes {
		names[fmt.Sprintf("n%d", m.i)], names[fmt.Sprintf("m%d", m.i)] = m.address, m.alias
	}
	cfg := engine.Config{
		Node: engine.NodeConfig{Name: fmt.Sprintf("n%d", n.i)},
		Notification: engine.NotificationConfig{
			SlotWaitMS: p.slotWait, AckTimeoutMS: p.ackTimeout, DeadlineMS: p.deadline, MaxPayloadBytes: maxPayload,
		},
		Outbox:     engine.OutboxConfig{Bytes: p.outbox, TotalBytes: 4 * p.outbox},
		Receive:    engine.ReceiveConfig{Frames: p.queue, Bytes: p.queueBytes},
		RPC:        engine.RPCConfig{RequestTimeoutMS: 2000, BootstrapTimeoutMS: 2000, ConnectTimeoutMS: 1000, ProbeTimeoutMS: 500},
		PeerHealth: engine.PeerHealthConfig{CooldownMS: 1000, MaxCooldownMS: 2000, MaxAgeMS: int(p.maxAge / time.Millisecond)},
		PathHealth: engine.PathHealthConfig{CooldownSecs: 1, MaxCooldownSecs: 2},
		Plugins:    engine.PluginsConfig{CrashBudget: 1000, MaxRestartBackoffMS: 1000, DrainTimeoutMS: 3000, StopTimeoutMS: 500, AbandonAfterMS: 500},
		Registry:   engine.RegistryConfig{Type: "static", Static: names},
	}
	for _, name := range transportNames {
		cfg.Transports = append(cfg.Transports, engine.TransportConfig{Name: name, InProcess: func() sdk.Transport { return w.newTransport(l, name) }})
	}
	return cfg
}

func (w *world) newTransport(l *life, name string) sdk.Transport {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := &transport{w: w, l: l, name: name}
	t.rng = w.rng(hash(l.String(), name, fmt.Sprint(len(l.instances))))
	t.FaultyTransport = sdktest.Faulty(w.fabrics[name].New(l.n.address), t.rng.Uint64())
	if w.faulty {
		t.Set(w.p.base)
	}
	l.instances = append(l.instances, t)
	return t
}

// open begins a node's next life.
func (n *node) open() {
	w := n.w
	w.mu.Lock()
	n.lives++
	l := &life{n: n, number: n.lives, opened: time.Now(), read: make(chan struct{})}
	w.mu.Unlock()
	l.cfg = n.config(l)
	var id engine.Incarnation
	for id.Epoch() == 0 {
		binary.LittleEndian.PutUint64(id[:], n.lifeRNG.Uint64())
		binary.LittleEndian.PutUint64(id[8:], n.lifeRNG.Uint64())
	}
	opts := []engine.Option{w.net.At(n.address), enginetest.Incarnation(id), enginetest.LongestDeadline(w.p.longest), l.proc.In(), enginetest.Random(w.source(l.String()))}
	if os.Getenv("SIM_LOG") != "" {
		opts = append(opts, engine.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("life", l.String())))
	}
	e, err := engine.Open(context.Background(), l.cfg, opts...)
	if err != nil {
		// Every transport was hit while it started.
		w.add("", "%s did not open: %v", l, err)
		return
	}
	l.e = e
	w.add("", "%s opened, incarnation %s", l, id.Short())
	go l.listen()
	go l.receive(w.rng(uint64(1000 + 100*n.i + l.number)))
	w.mu.Lock()
	n.cur = l
	w.everyLife = append(w.everyLife, l)
	w.mu.Unlock()
}

// lives are all lives there were.
func (w *world) lives() []*life {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.everyLife)
}

// receive reads until the engine is closed, as fast as the node's reader does.
func (l *life) receive(r *rand.Rand) {
	w, n := l.n.w, l.n
	defer close(l.read)
	for {
		l.proc.Awake()
		w.mu.Lock()
		absent, slow := n.absent && !l.over, n.slow
		if l.over {
			slow = 0
		}
		w.mu.Unlock()
		if absent {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		if slow > 0 {
			time.Sleep(time.Duration(r.Int64N(int64(slow))))
		}
		wait := 50*time.Millisecond + time.Duration(r.Int64N(int64(time.Second)))
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		begun := time.Now()
		got, err := l.e.Receive(ctx)
		cancel()
		l.proc.Awake()
		if late := time.Since(l.due(begun.Add(wait))); late > slack {
			w.broken("", "%s: Receive of %v was %v late", l, wait, late)
		}
		switch {
		case err == nil:
			w.add(got.Name, "received by %s over %s seq %d", l, got.Transport, got.Stamp.Seq)
			if string(got.Payload) != payload(got.Name, len(got.Payload)) {
				w.broken(got.Name, "damaged: %q", got.Payload)
			}
			w.mu.Lock()
			w.arrivals = append(w.arrivals, &arrival{got.Name, l, time.Now(), got.Stamp})
			w.mu.Unlock()
		case errors.Is(err, engine.Closed):
			return
		case !errors.Is(err, context.DeadlineExceeded):
			w.broken("", "%s: Receive: %v", l, err)
		}
	}
}

// payload is what a notification of this name and size carries.
func payload(name string, size int) string {
	b := make([]byte, size)
	for i := range b {
		b[i] = name[i%len(name)] ^ byte(i)
	}
	return string(b)
}

// close ends a life with a goodbye, after draining for as long as given.
func (l *life) close(drain time.Duration) {
	w := l.n.w
	w.mu.Lock()
	l.n.cur, l.over = nil, true
	w.mu.Unlock()
	w.add("", "%s closes, drains %v", l, drain)
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	begun := time.Now()
	err := l.e.Close(ctx)
	took := time.Since(begun)
	w.add("", "%s closed after %v: %v", l, took, err)
	if took > drain+closeBound {
		w.broken("", "%s: Close took %v with %v to drain", l, took, drain)
	}
	<-l.read
}

// crash ends a life without a word.
func (l *life) crash() {
	w := l.n.w
	w.mu.Lock()
	l.n.cur, l.over = nil, true
	instances := l.instances
	w.mu.Unlock()
	w.add("", "%s crashes", l)
	for _, f := range w.fabrics {
		f.Kill(l.n.address)
	}
	w.net.Vanish(l.n.address)
	for _, t := range instances {
		t.Crash()
	}
	w.thaw(l)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	begun := time.Now()
	_ = l.e.Close(ctx)
	if took := time.Since(begun); took > closeBound {
		w.broken("", "%s: Close without a drain took %v", l, took)
	}
	<-l.read
}

const (
	// slack is what anything may take longer than its bound: timers are set
	// to the next millisecond.
	slack = 10 * time.Millisecond
	// closeBound is what Close may take beside its context: a goodbye, and
	// the transports' stop.
	closeBound = 6*time.Second + slack
)

// send notifies once, and watches how that ends. It returns the notification,
// or nil if it was not taken.
func (w *world) send(l *life, to *node, name, peer string, size int, within time.Duration) *sent {
	l.proc.Awake()
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	now := time.Now()
	deadline := now.Add(time.Duration(w.p.deadline) * time.Millisecond)
	if within > 0 {
		deadline = now.Add(within)
		ctx, cancel = context.WithDeadline(ctx, deadline)
	}
	defer cancel()
	n := engine.Notification{Name: name, Payload: []byte(payload(name, size))}
	w.add(name, "notify %s to %s, %d bytes, within %v", l, peer, size, deadline.Sub(now))
	over := w.p.outbox <= 16<<10 && l.overBound(to)
	d, err := l.e.Notify(ctx, peer, n)
	l.proc.Awake()
	if late := time.Since(l.due(now.Add(time.Duration(w.p.slotWait) * time.Millisecond))); late > slack {
		w.broken(name, "Notify was %v late", late)
	}
	if err != nil {
		w.add(name, "not taken: %v", err)
		w.count("not taken")
		if errors.Is(err, engine.Backpressure) {
			w.count("backpressure")
		}
		w.mu.Lock()
		w.sends = append(w.sends, &sent{name: name, from: l, to: to})
		w.mu.Unlock()
		return nil
	}
	if latest := time.Now().Add(w.p.longest); deadline.After(latest) {
		deadline = latest
	}
	if over && time.Now().Equal(now) && l.overBound(to) {
		w.broken(name, "%s took it into an outbox that is over its bound", l)
	}
	s := &sent{name: name, from: l, to: to, at: now, size: frameBytes + entryBytes + len(name) + size, deadline: deadline, d: d}
	w.mu.Lock()
	w.sends = append(w.sends, s)
	l.boundedLocked(s)
	w.mu.Unlock()
	go func() {
		<-d.Done()
		r := d.Report()
		w.mu.Lock()
		s.ended = time.Now()
		s.ends++
		w.mu.Unlock()
		w.add(name, "%v seq %d copies %d over %s/%s: %v", r.End, r.Seq, r.Copies, r.Transport, r.Path, d.Err())
	}()
	return s
}

// overBound reports whether what there is of outboxes towards the node is over
// its bound, with what it took over from the peer's earlier life or from another
// name of it. It may be for a while, but takes nothing new then. Until hello is
// answered each name has an outbox of its own, with a bound of its own.
func (l *life) overBound(to *node) (over bool) {
	for _, p := range l.e.Peers() {
		if p.Address != to.address && p.Address != to.alias {
			continue
		}
		if p.OutboxBytes <= l.n.w.p.outbox || p.Pending <= 1 {
			return false
		}
		over = true
	}
	return over
}

// boundedLocked checks what the outboxes hold together, whatever they took over.
func (l *life) boundedLocked(s *sent) {
	kept := l.pending[:0]
	sum := 0
	for _, q := range append(l.pending, s) {
		if q.d.Ended() == engine.Pending {
			kept = append(kept, q)
			sum += q.size
		}
	}
	l.pending = kept
	if limit := 4 * l.n.w.p.outbox; sum > limit && len(kept) > 1 {
		l.n.w.broken(s.name, "%s holds %d bytes, over outbox.total_bytes = %d", l, sum, limit)
	}
}

func (w *world) count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fired[what]++
}

// traffic sends from a node, whoever lives there, until stop.
func (n *node) traffic(r *rand.Rand, stop <-chan struct{}) {
	w := n.w
	var burst int
	for k := 0; ; k++ {
		gap := time.Duration(r.ExpFloat64()*float64(w.p.gap)) | 1
		if burst > 0 {
			burst--
			gap = time.Duration(1 + r.IntN(1000))
		} else if r.IntN(20) == 0 {
			burst = r.IntN(w.p.burst)
		}
		select {
		case <-time.After(gap):
		case <-stop:
			return
		}
		to := w.nodes[r.IntN(len(w.nodes))]
		if to == n && r.IntN(8) > 0 {
			to = w.nodes[(n.i+1)%len(w.nodes)]
		}
		peer := fmt.Sprintf("n%d", to.i)
		if w.p.twoNames && r.IntN(3) == 0 {
			w.count("two names")
			peer = fmt.Sprintf("m%d", to.i)
		}
		size := 1 + r.IntN(200)
		switch r.IntN(40) {
		case 0:
			size = 3 << 10
		case 1:
			size = 1 + r.IntN(maxPayload-64)
		}
		var within time.Duration
		if r.IntN(3) == 0 {
			within = time.Duration(r.Float64() * r.Float64() * 1.3 * float64(w.p.longest))
			within = max(within, time.Millisecond)
		}
		w.mu.Lock()
		l, idle := n.cur, n.idle
		w.mu.Unlock()
		if l == nil || idle {
			continue
		}
		w.send(l, to, fmt.Sprintf("n%d.%d-%d", n.i, l.number, k), peer, size, within)
	}
}
