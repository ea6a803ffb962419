// Package rigtest is what the transports' own tests share: two
// instances joined in one process, and a handler that records. Only tests
// import it.
package rigtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// Patience bounds every wait of a test; nothing that works takes it.
const Patience = 20 * time.Second

// Node is one configured instance.
type Node struct {
	sdk.Transport
	Inc      sdk.Incarnation
	Instance uint64
	Setup    sdk.Setup
}

// Notifier is the node's transport.
func (n *Node) Notifier() sdk.Notifier { return n.Transport.(sdk.Notifier) }

// Start configures a transport and closes it when the test ends.
func Start(t testing.TB, tr sdk.Transport, cfg sdk.Config) *Node {
	t.Helper()
	n := &Node{Transport: tr, Instance: cfg.Instance}
	binary.LittleEndian.PutUint64(n.Inc[:], rand.Uint64())
	n.Inc[15] = 1
	cfg.Incarnation = n.Inc
	if cfg.Settings == nil {
		cfg.Settings = json.RawMessage("{}")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	setup, err := tr.Configure(Context(t), cfg)
	if err != nil {
		t.Fatalf("Configure: %v", err)
	}
	n.Setup = setup
	t.Cleanup(func() {
		if err := tr.Close(Context(t)); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return n
}

// Context ends when nothing that works would still be waiting.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// Target names b as a sees it, over the best path.
func Target(a, b *Node, generation uint64) sdk.Target {
	t := sdk.Target{
		Local: a.Inc, Peer: b.Inc, PeerName: "peer",
		Remote: b.Setup.Attributes, Generation: generation,
	}
	if paths, err := a.Notifier().Paths(t.Remote); err == nil && len(paths) > 0 {
		t.Path = paths[0]
	}
	return t
}

// Connect makes an endpoint from a to b with the two handlers.
func Connect(t testing.TB, a, b *Node, generation uint64, ha, hb sdk.Handler) (sdk.Endpoint, sdk.Endpoint) {
	t.Helper()
	return ConnectOver(t, a, b, Target(a, b, generation), ha, hb)
}

// ConnectOver makes one over the target's path.
func ConnectOver(t testing.TB, a, b *Node, target sdk.Target, ha, hb sdk.Handler) (sdk.Endpoint, sdk.Endpoint) {
	t.Helper()
	var passive sdk.Endpoint
	active, err := a.Notifier().Connect(Context(t), target, func(ctx context.Context, offer []byte) ([]byte, error) {
		back := Target(b, a, target.Generation)
		back.Path, back.Use, back.Lane = target.Path, target.Use, target.Lane
		e, answer, err := b.Notifier().Accept(ctx, back, offer, hb)
		passive = e
		return answer, err
	}, ha)
	if err != nil {
		t.Fatalf("Connect: %v", err)
	}
	return active, passive
}

// Recorder is a handler that checks the contract and lets a test wait.
type Recorder struct {
	t testing.TB
	// OnReceived, if set before traffic, runs in Received.
	OnReceived func(frames [][]byte)
	// Drop says that frames are counted, not kept.
	Drop bool

	mu        sync.Mutex
	changed   sync.Cond
	running   bool
	calls     int
	frames    [][]byte
	received  int
	bytes     int
	outcomes  map[uint64]sdk.Completion
	done      int
	ended     int
	endReason error
}

// NewRecorder makes a handler.
func NewRecorder(t testing.TB) *Recorder {
	r := &Recorder{t: t, outcomes: make(map[uint64]sdk.Completion)}
	r.changed.L = &r.mu
	return r
}

func (r *Recorder) enter() func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running {
		r.t.Error("two handler calls at a time")
	}
	if r.ended > 0 {
		r.t.Error("a handler call after Ended")
	}
	r.running = true
	r.calls++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.running = false
		r.changed.Broadcast()
	}
}

// Completed implements sdk.Handler.
func (r *Recorder) Completed(cs []sdk.Completion) {
	defer r.enter()()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range cs {
		if _, twice := r.outcomes[c.ID]; twice {
			r.t.Errorf("frame %d completed twice", c.ID)
		}
		r.outcomes[c.ID] = c
		if c.Outcome == sdk.Done {
			r.done++
		}
	}
}

// Received implements sdk.Handler.
func (r *Recorder) Received(frames [][]byte) {
	defer r.enter()()
	if r.OnReceived != nil {
		r.OnReceived(frames)
	}
	r.Take(frames)
}

// Take writes down frames that came. A handler that had kept some may call it
// whenever it likes.
func (r *Recorder) Take(frames [][]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.received += len(frames)
	for _, f := range frames {
		r.bytes += len(f)
		if !r.Drop {
			r.frames = append(r.frames, bytes.Clone(f))
		}
	}
}

// Ended implements sdk.Handler.
func (r *Recorder) Ended(err error) {
	defer r.enter()()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended++
	r.endReason = err
}

// wait returns when cond holds, which runs under the lock. It loses its patience
// with a handler that nobody calls, not with a machine that is slow.
func (r *Recorder) wait(what string, cond func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(Patience) // before it is told to look
	late := time.AfterFunc(Patience, r.changed.Broadcast)
	defer late.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	for !cond() {
		if calls != r.calls {
			calls, deadline = r.calls, time.Now().Add(Patience)
			late.Reset(Patience)
		} else if time.Now().After(deadline) {
			r.t.Fatalf("waited in vain for %s: received %d, done %d, ended %d (%v)", what, r.received, r.done, r.ended, r.endReason)
		}
		r.changed.Wait()
	}
}

// WaitReceived waits for n frames in all and returns those kept.
func (r *Recorder) WaitReceived(n int) [][]byte {
	r.t.Helper()
	r.wait("frames", func() bool { return r.received >= n })
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.frames
}

// WaitDone waits for n frames that are Done.
func (r *Recorder) WaitDone(n int) {
	r.t.Helper()
	r.wait("receipts", func() bool { return r.done >= n || r.ended > 0 && r.done < n && r.fail(n) })
}

func (r *Recorder) fail(n int) bool {
	r.t.Fatalf("ended with %d of %d done: %v", r.done, n, r.endReason)
	return true
}

// WaitOutcome waits for a frame's outcome, which must be this one.
func (r *Recorder) WaitOutcome(id uint64, want sdk.Completion) {
	r.t.Helper()
	r.wait("an outcome", func() bool { _, ok := r.outcomes[id]; return ok || r.ended > 0 })
	if got, _ := r.Outcome(id); got != want {
		r.t.Errorf("frame %d: %+v, want %+v", id, got, want)
	}
}

// WaitEnded waits for the end and returns its reason.
func (r *Recorder) WaitEnded() error {
	r.t.Helper()
	r.wait("the end", func() bool { return r.ended > 0 })
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.endReason
}

// HasEnded reports whether it has.
func (r *Recorder) HasEnded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended > 0
}

// Counts returns how many frames were received, and how many have each
// outcome.
func (r *Recorder) Counts() (received, done, notPosted int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.outcomes {
		if c.Outcome == sdk.NotPosted {
			notPosted++
		}
	}
	return r.received, r.done, notPosted
}

// Ends is how often Ended was called.
func (r *Recorder) Ends() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended
}

// Outcome returns a frame's, if it has one.
func (r *Recorder) Outcome(id uint64) (sdk.Completion, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.outcomes[id]
	return c, ok
}

// Sender numbers the frames of an endpoint.
type Sender struct {
	Endpoint sdk.Endpoint
	Recorder *Recorder
	next     uint64
	frame    [1]sdk.Frame
}

// Try sends one frame once.
func (s *Sender) Try(data []byte) error {
	s.frame[0] = sdk.Frame{ID: s.next + 1, Data: data}
	n, err := s.Endpoint.Send(s.frame[:], false)
	if n == 1 {
		s.next++
	}
	return err
}

// Send sends one frame as soon as there is room, and says whether it could.
func (s *Sender) Send(data []byte) error {
	for {
		s.Recorder.mu.Lock()
		before := s.Recorder.done
		s.Recorder.mu.Unlock()
		err := s.Try(data)
		if sdk.CodeOf(err) != sdk.Backpressure {
			return err
		}
		r := s.Recorder
		r.wait("room", func() bool { return r.done > before || r.ended > 0 })
	}
}

// Sent is how many frames were taken.
func (s *Sender) Sent() int { return int(s.next) }
