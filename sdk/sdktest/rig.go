package sdktest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// grace is how long a case waits for something that must not happen.
const grace = 30 * time.Millisecond

// maxOffer bounds what an exchange carries.
const maxOffer = 64 << 10

// rig is what one case works with.
type rig struct {
	testing.TB
	h      Harness
	desc   sdk.Description
	limits sdk.Limits
	move   sdk.MoveLimits
	a, b   *peer

	holds bool // handlers made from now on may hold

	mu         sync.Mutex
	peers      []*peer
	witnesses  []*witness
	generation uint64
	instance   uint64
	bases      uint64 // of regions
	fills      int    // of regions
	ca         *Authority
}

// peer is one instance of the transport under test.
type peer struct {
	name      string
	tr        sdk.Transport
	no        sdk.Notifier
	mo        sdk.Mover
	inc       sdk.Incarnation
	cfg       sdk.Config
	setup     sdk.Setup
	listeners map[string]net.Listener // the engine's: instances get copies
	closed    bool
	changed   chan struct{} // a token: paths have changed
	// keys, if keysSet, are in place of those that the harness asks for.
	keys    *sdk.Keys
	keysSet bool
}

// make asks the harness for a fresh instance.
func (r *rig) make(name string) *peer {
	r.Helper()
	p := &peer{name: name, tr: r.h.New(r), listeners: map[string]net.Listener{}, changed: make(chan struct{}, 1)}
	if p.tr == nil {
		r.Fatal("Harness.New returned nil")
	}
	p.no, _ = p.tr.(sdk.Notifier)
	p.mo, _ = p.tr.(sdk.Mover)
	for k := range p.inc {
		p.inc[k] = name[0] + byte(k)
	}
	r.mu.Lock()
	r.peers = append(r.peers, p)
	r.mu.Unlock()
	return p
}

// configure configures an instance on loopback listeners.
func (r *rig) configure(p *peer) {
	r.Helper()
	for _, spec := range r.desc.Listeners {
		if p.listeners[spec.Name] == nil {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				r.Fatalf("listen: %v", err)
			}
			p.listeners[spec.Name] = l
		}
	}
	p.cfg = r.config(p, r.h.Settings)
	p.cfg.Keys = r.keysFor(p)
	p.cfg.Listeners = r.lend(p)
	var err error
	if p.setup, err = p.tr.Configure(r.ctx(), p.cfg); err != nil {
		r.Fatalf("Configure of %s: %v", p.name, err)
	}
}

// keysFor returns what an instance is given.
func (r *rig) keysFor(p *peer) *sdk.Keys {
	r.Helper()
	if !p.keysSet && r.h.Secure && r.desc.Has(sdk.FeatureKeys) {
		k := r.authority().Issue(p.name, nil)
		p.keys, p.keysSet = &k, true
	}
	return p.keys
}

func (r *rig) config(p *peer, settings json.RawMessage) sdk.Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.instance++
	return sdk.Config{
		Instance: r.instance, Incarnation: p.inc, Settings: settings,
		Log: slog.New(slog.DiscardHandler), PathsChanged: p.pathsChanged,
	}
}

func (p *peer) pathsChanged() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// lend copies a peer's listeners, as the engine does for each instance.
func (r *rig) lend(p *peer) map[string]net.Listener {
	r.Helper()
	lent := map[string]net.Listener{}
	for name, l := range p.listeners {
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			r.Fatalf("listener: %v", err)
		}
		lent[name], err = net.FileListener(f)
		f.Close() //nolint:errcheck // the copy lives
		if err != nil {
			r.Fatalf("listener: %v", err)
		}
	}
	return lent
}

// successor makes and configures another instance with p's identity and
// listeners.
func (r *rig) successor(p *peer) *peer {
	r.Helper()
	q := r.make(p.name)
	q.listeners = p.listeners
	r.configure(q)
	return q
}

// ctx ends with the harness's timeout.
func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), r.h.Timeout)
	r.Cleanup(cancel)
	return ctx
}

// within fails the case if f takes longer than the timeout.
func (r *rig) within(what string, f func()) {
	r.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	timer := time.NewTimer(r.h.Timeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		r.Fatalf("%s did not return within %v", what, r.h.Timeout)
	}
}

// close closes an instance.
func (r *rig) close(p *peer) {
	r.Helper()
	p.closed = true
	r.within("Close of "+p.name, func() {
		if err := p.tr.Close(r.ctx()); err != nil {
			r.Errorf("Close of %s: %v", p.name, err)
		}
	})
}

// finish closes everything, and checks what must hold after every case.
func (r *rig) finish(before map[string]bool) {
	r.Helper()
	for _, p := range r.peers {
		if !p.closed {
			r.close(p)
		}
	}
	for _, w := range r.witnesses {
		w.verify()
	}
	for _, p := range r.peers {
		for _, l := range p.listeners {
			l.Close() //nolint:errcheck // may be closed: successors share it
		}
	}
	if !r.h.External && !r.h.bubble && !r.Failed() {
		r.checkLeaks(before)
	}
}

// target names to as from sees it, with a new generation.
func (r *rig) target(from, to *peer) sdk.Target {
	r.Helper()
	paths, err := from.no.Paths(to.setup.Attributes)
	if err != nil || len(paths) == 0 {
		r.Fatalf("Paths from %s to %s: %q, %v", from.name, to.name, paths, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.generation++
	return sdk.Target{
		Local: from.inc, Peer: to.inc, PeerName: to.name, Path: paths[0],
		Remote: to.setup.Attributes, Generation: r.generation,
	}
}

// attempt is one Connect and what hangs on it. The functions are optional.
type attempt struct {
	r        *rig
	from, to *peer
	target   sdk.Target
	// instead replaces the exchange: Accept is not called.
	instead func(ctx context.Context) ([]byte, error)
	// offered changes what Accept gets.
	offered func(offer []byte, t *sdk.Target) []byte
	// accepted runs after a successful Accept, before the answer arrives.
	accepted func(w *witness)
	// answered changes what Connect gets.
	answered func(answer []byte, err error) ([]byte, error)

	a, b      *witness // b is nil unless Accept succeeded
	exchanges int
	offer     []byte
	answer    []byte
	acceptErr error
}

func (r *rig) attempt(from, to *peer) *attempt {
	r.Helper()
	return &attempt{r: r, from: from, to: to, target: r.target(from, to)}
}

// run calls Connect.
func (at *attempt) run(ctx context.Context) error {
	r := at.r
	r.Helper()
	at.a = r.witness(at.from, at.to)
	at.a.setup(func() { at.a.memory = at.target.Use == sdk.UseMemory })
	var err error
	r.within("Connect", func() {
		var ep sdk.Endpoint
		ep, err = at.from.no.Connect(ctx, at.target, at.exchange, at.a)
		switch {
		case err != nil:
			at.a.makeAbsent()
		case ep == nil:
			r.Error("Connect returned neither an endpoint nor an error")
		default:
			at.a.attach(ep)
		}
	})
	return err
}

func (at *attempt) exchange(ctx context.Context, offer []byte) ([]byte, error) {
	r := at.r
	r.mu.Lock()
	at.exchanges++
	again := at.exchanges > 1
	r.mu.Unlock()
	if again {
		r.Error("Connect called exchange more than once")
	}
	if len(offer) > maxOffer {
		r.Errorf("an offer of %d bytes is over 64 KiB", len(offer))
	}
	at.offer = bytes.Clone(offer)
	if at.instead != nil {
		return at.instead(ctx)
	}
	t := at.target
	t.Local, t.Peer, t.PeerName, t.Remote = at.to.inc, at.from.inc, at.from.name, at.from.setup.Attributes
	if at.offered != nil {
		offer = at.offered(at.offer, &t)
	}
	at.b, at.answer, at.acceptErr = r.accept(at.to, at.from, t, offer)
	if at.b != nil && at.accepted != nil {
		at.accepted(at.b)
	}
	answer, err := bytes.Clone(at.answer), at.acceptErr
	if at.answered != nil {
		answer, err = at.answered(answer, err)
	}
	return answer, err
}

// accept calls Accept; the witness is nil if it failed.
func (r *rig) accept(at, from *peer, t sdk.Target, offer []byte) (*witness, []byte, error) {
	w := r.witness(at, from)
	w.setup(func() { w.memory = t.Use == sdk.UseMemory })
	handed := bytes.Clone(offer)
	ep, answer, err := at.no.Accept(r.ctx(), t, handed, w)
	for k := range handed {
		handed[k] = 0xEE // it is ours again
	}
	if err == nil && ep == nil {
		err = fmt.Errorf("accept returned neither an endpoint nor an error")
		r.Error(err)
	}
	if err != nil {
		w.makeAbsent()
		return nil, nil, err
	}
	w.attach(ep)
	if len(answer) > maxOffer {
		r.Errorf("an answer of %d bytes is over 64 KiB", len(answer))
	}
	return w, bytes.Clone(answer), nil
}

// connect makes an endpoint, or fails the case.
func (r *rig) connect(from, to *peer) (a, b *witness) {
	r.Helper()
	return r.mustRun(r.attempt(from, to))
}

func (r *rig) mustRun(at *attempt) (a, b *witness) {
	r.Helper()
	if err := at.run(r.ctx()); err != nil {
		r.Fatalf("Connect from %s to %s: %v", at.from.name, at.to.name, err)
	}
	if at.b == nil {
		r.Fatalf("Connect from %s to %s succeeded without the peer's Accept", at.from.name, at.to.name)
	}
	return at.a, at.b
}

// works fails the case unless a new endpoint carries frames.
func (r *rig) works() {
	r.Helper()
	a, b := r.connect(r.a, r.b)
	r.talk(a, b, 3)
	a.ep.Close()
	b.waitEnded()
}

// talk sends n frames each way and waits for all of them.
func (r *rig) talk(a, b *witness, n int) {
	r.Helper()
	for k := range n {
		a.send(payload(k, 1+k%200))
		b.send(payload(1000+k, 1+k%200))
	}
	a.settle(b)
	b.settle(a)
}

// snapshot names the goroutines that run now.
func snapshot() map[string]bool {
	seen := map[string]bool{}
	for _, g := range stacks() {
		seen[goroutineName(g)] = true
	}
	return seen
}

func stacks() []string {
	buf := make([]byte, 1<<16)
	for {
		if n := runtime.Stack(buf, true); n < len(buf) {
			return strings.Split(string(buf[:n]), "\n\n")
		}
		buf = make([]byte, 2*len(buf))
	}
}

// goroutineName cuts "goroutine 12" out of "goroutine 12 [running]:...".
func goroutineName(stack string) string {
	name, _, _ := strings.Cut(stack, " [")
	return name
}

// checkLeaks waits until no goroutine is left that was not there before.
func (r *rig) checkLeaks(before map[string]bool) {
	r.Helper()
	deadline := time.Now().Add(r.h.Timeout)
	for {
		var left []string
		for i, g := range stacks() {
			if i > 0 && !before[goroutineName(g)] { // the first one is ours
				left = append(left, g)
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			r.Errorf("%d goroutines are left after Close:\n%s", len(left), strings.Join(left, "\n\n"))
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// openFiles counts this process's file descriptors, or returns -1.
func openFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(entries)
}

// payload is a frame's content, different for each seed.
func payload(seed, size int) []byte {
	b := make([]byte, size)
	x := uint32(seed)*2654435761 + 12345
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return b
}
