package sdktest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// witness is the suite's handler: it records what a transport reports about
// one endpoint, and every breach of the contract.
type witness struct {
	r    *rig
	name string
	ep   sdk.Endpoint // set once Connect or Accept has returned
	busy atomic.Int32

	mu      sync.Mutex
	changed chan struct{}

	// Set by setup, before the traffic that they are for.
	gate        chan struct{} // Received waits until it is closed
	onReceived  func(frames [][]byte)
	onCompleted func(cs []sdk.Completion)

	// memory: it is of an endpoint for memory, so nothing is received.
	memory bool

	// mayHold: it is an engine's handler towards a peer at protocol 0 or 1.
	mayHold bool
	kept    [][]byte // offered while the gate was closed
	resume  func()

	nextID   uint64
	sent     [][]byte                  // by id-1: what was taken
	open     map[uint64]int            // without an outcome: size
	openSize int                       // of open, in bytes
	outcomes map[uint64]sdk.Completion // by id
	received [][]byte
	calls    int
	inside   int // calls of Received that have begun
	ended    int
	err      error
	absent   bool
	faults   []string
}

// witness makes the handler of an endpoint at from towards to.
func (r *rig) witness(at, to *peer) *witness {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &witness{
		r: r, name: fmt.Sprintf("endpoint %d %s-%s", len(r.witnesses), at.name, to.name),
		changed: make(chan struct{}), nextID: 1, mayHold: r.holds,
		open: map[uint64]int{}, outcomes: map[uint64]sdk.Completion{},
	}
	r.witnesses = append(r.witnesses, w)
	return w
}

func (w *witness) attach(ep sdk.Endpoint) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ep = ep
}

// setup changes how the handler behaves.
func (w *witness) setup(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// makeAbsent: the endpoint does not exist, and the handler is never called.
func (w *witness) makeAbsent() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.absent = true
	if w.calls > 0 {
		w.faultLocked("the handler was called although there is no endpoint")
	}
}

func (w *witness) faultLocked(format string, args ...any) {
	if len(w.faults) < 10 {
		w.faults = append(w.faults, fmt.Sprintf(format, args...))
	}
	w.changeLocked()
}

func (w *witness) changeLocked() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// enter begins a call of a method; the result ends it.
func (w *witness) enter(method string) func() {
	alone := w.busy.Add(1) == 1
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	if !alone {
		w.faultLocked("%s was called while another method ran", method)
	}
	if w.ended > 0 {
		w.faultLocked("%s was called after Ended", method)
	}
	if w.absent {
		w.faultLocked("%s was called although there is no endpoint", method)
	}
	return func() { w.busy.Add(-1) }
}

// Completed implements [sdk.Handler].
func (w *witness) Completed(cs []sdk.Completion) {
	defer w.enter("Completed")()
	runtime.Gosched()
	w.mu.Lock()
	for _, c := range cs {
		w.completeLocked(c)
	}
	w.changeLocked()
	react := w.onCompleted
	w.mu.Unlock()
	if react != nil {
		react(cs)
	}
	clear(cs)
}

func (w *witness) completeLocked(c sdk.Completion) {
	size, ok := w.open[c.ID]
	switch old, had := w.outcomes[c.ID]; {
	case had:
		w.faultLocked("frame %d completed twice: %v and %v", c.ID, old.Outcome, c.Outcome)
		return
	case !ok:
		w.faultLocked("frame %d completed, but was never taken", c.ID)
		return
	case !c.Outcome.Valid():
		w.faultLocked("frame %d has outcome %d", c.ID, c.Outcome)
	case c.Outcome == sdk.Done && c.Code != 0:
		w.faultLocked("frame %d is done with code %v", c.ID, c.Code)
	case c.Outcome != sdk.Done && !c.Code.Valid():
		w.faultLocked("frame %d is %v without a code", c.ID, c.Outcome)
	}
	delete(w.open, c.ID)
	w.openSize -= size
	w.outcomes[c.ID] = c
}

// Received implements [sdk.Handler].
func (w *witness) Received(frames [][]byte) {
	defer w.enter("Received")()
	runtime.Gosched()
	w.mu.Lock()
	if w.memory {
		w.faultLocked("%d frames were received on an endpoint for memory", len(frames))
	}
	w.inside++
	w.changeLocked()
	gate, react := w.gate, w.onReceived
	w.mu.Unlock()
	if gate != nil {
		<-gate
	}
	if react != nil {
		react(frames)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, f := range frames {
		w.received = append(w.received, bytes.Clone(f))
		for k := range f {
			f[k] = 0xDD // ours until we return
		}
		frames[i] = nil
	}
	w.changeLocked()
}

// MayHold implements [sdk.Offerer].
func (w *witness) MayHold() bool { return w.mayHold }

// Dropped implements [sdk.Offerer].
func (w *witness) Dropped(frames int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faultLocked("%d frames were dropped", frames)
}

// Offer implements [sdk.Offerer]: the endpoint is held while there is a gate.
func (w *witness) Offer(frames [][]byte, resume func()) bool {
	w.mu.Lock()
	gate, kept := w.gate, len(w.kept)
	if gate == nil && kept == 0 {
		w.mu.Unlock()
		w.Received(frames)
		return false
	}
	defer w.mu.Unlock()
	for _, f := range frames {
		w.kept = append(w.kept, bytes.Clone(f))
	}
	w.resume = resume
	w.inside++
	w.changeLocked()
	if kept == 0 {
		go w.release(gate)
	}
	return true
}

func (w *witness) release(gate chan struct{}) {
	<-gate
	w.mu.Lock()
	w.received = append(w.received, w.kept...)
	w.kept, w.gate = nil, nil
	resume := w.resume
	w.changeLocked()
	w.mu.Unlock()
	resume()
}

// Ended implements [sdk.Handler].
func (w *witness) Ended(err error) {
	defer w.enter("Ended")()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended++
	w.err = err
	if err == nil || sdk.CodeOf(err) == 0 {
		w.faultLocked("Ended came without a code: %v", err)
	}
	w.changeLocked()
}

// verify reports all breaches, once the transport is closed.
func (w *witness) verify() {
	w.r.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.faults {
		w.r.Errorf("%s: %s", w.name, f)
	}
	if w.ep != nil && w.ended != 1 {
		w.r.Errorf("%s: Ended was called %d times", w.name, w.ended)
	}
	w.faults = nil
}

// reserve waits until a frame of this size is within the limits that Describe
// published, and returns its id.
func (w *witness) reserve(data []byte) uint64 {
	w.r.Helper()
	lim := w.r.limits
	w.wait("room", func() bool {
		return w.ended > 0 || len(w.open) < lim.InflightFrames &&
			(len(w.open) == 0 || w.openSize+len(data) <= lim.InflightBytes)
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	id := w.nextID
	w.nextID++
	w.open[id] = len(data)
	w.openSize += len(data)
	w.sent = append(w.sent, bytes.Clone(data))
	return id
}

// unreserve takes back a frame that was not taken.
func (w *witness) unreserve(id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	size, ok := w.open[id]
	if !ok {
		w.faultLocked("frame %d was not taken, but completed", id)
		return
	}
	delete(w.open, id)
	w.openSize -= size
	w.nextID--
	w.sent = w.sent[:len(w.sent)-1]
}

// try offers one frame, and scribbles over it afterwards.
func (w *witness) try(data []byte, more bool) error {
	w.r.Helper()
	id := w.reserve(data)
	buf := bytes.Clone(data)
	frames := []sdk.Frame{{ID: id, Data: buf}}
	n, err := w.ep.Send(frames, more)
	for k := range buf {
		buf[k] = 0xCC
	}
	frames[0] = sdk.Frame{ID: ^uint64(0)}
	switch {
	case n == 1 && err == nil:
		return nil
	case n == 0 && err != nil:
		w.unreserve(id)
		if c := sdk.CodeOf(err); c != sdk.Backpressure && c != sdk.TooLarge && c != sdk.Closed {
			w.r.Errorf("%s: Send failed with %v (%v), which is none of its codes", w.name, c, err)
		}
		return err
	}
	w.r.Fatalf("%s: Send of one frame returned %d, %v", w.name, n, err)
	return err
}

// send offers one frame until it is taken.
func (w *witness) send(data []byte) {
	w.r.Helper()
	if err := w.push(data); err != nil {
		w.r.Fatalf("%s: Send: %v", w.name, err)
	}
}

// push offers one frame until it is taken or refused for good.
func (w *witness) push(data []byte) error {
	w.r.Helper()
	deadline := time.Now().Add(w.r.h.Timeout)
	for {
		err := w.try(data, false)
		if sdk.CodeOf(err) != sdk.Backpressure {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no room for %v: %w", w.r.h.Timeout, err)
		}
		w.pause()
	}
}

// pause waits for news, or a little.
func (w *witness) pause() {
	w.mu.Lock()
	changed := w.changed
	w.mu.Unlock()
	timer := time.NewTimer(5 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	}
}

// wait returns once cond holds, which is called under the lock.
func (w *witness) wait(what string, cond func() bool) {
	w.r.Helper()
	timer := time.NewTimer(w.r.h.Timeout)
	defer timer.Stop()
	for {
		w.mu.Lock()
		ok, changed := cond(), w.changed
		w.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			w.mu.Lock()
			defer w.mu.Unlock()
			w.r.Fatalf("%s: waited %v for %s: sent %d, without outcome %d, received %d, ended %d (%v), faults %q",
				w.name, w.r.h.Timeout, what, len(w.sent), len(w.open), len(w.received), w.ended, w.err, w.faults)
		}
	}
}

// settle waits until everything that w sent is done and has reached peer, and
// compares.
func (w *witness) settle(peer *witness) {
	w.r.Helper()
	w.wait("completions", func() bool { return len(w.open) == 0 || w.ended > 0 })
	w.mu.Lock()
	sent := slices.Clone(w.sent)
	if w.ended > 0 {
		w.r.Errorf("%s ended: %v", w.name, w.err)
	}
	for id, c := range w.outcomes {
		if c.Outcome != sdk.Done {
			w.r.Errorf("%s: frame %d is %v (%v) without a fault", w.name, id, c.Outcome, c.Code)
		}
	}
	w.mu.Unlock()
	peer.expect(sent)
}

// expect waits for as many frames and compares them.
func (w *witness) expect(want [][]byte) {
	w.r.Helper()
	w.wait(fmt.Sprintf("%d frames", len(want)), func() bool { return len(w.received) >= len(want) || w.ended > 0 })
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.received) != len(want) {
		w.r.Fatalf("%s received %d frames of %d", w.name, len(w.received), len(want))
	}
	got := overtaken(w.received)
	for i, sent := range overtaken(want) {
		if !bytes.Equal(got[i], sent) {
			w.r.Fatalf("%s: frame %d arrived as %s, sent as %s", w.name, i+1, brief(got[i]), brief(sent))
		}
	}
}

// overtaken puts large frames behind the others, which may overtake them.
func overtaken(frames [][]byte) [][]byte {
	frames = slices.Clone(frames)
	slices.SortStableFunc(frames, func(a, b []byte) int {
		return cmp.Compare(min(1, len(a)/(sdk.OvertakenFrame+1)), min(1, len(b)/(sdk.OvertakenFrame+1)))
	})
	return frames
}

func brief(b []byte) string {
	if len(b) > 16 {
		return fmt.Sprintf("%d bytes %x...", len(b), b[:16])
	}
	return fmt.Sprintf("%d bytes %x", len(b), b)
}

// waitEnded waits for the end and returns its error.
func (w *witness) waitEnded() error {
	w.r.Helper()
	w.wait("Ended", func() bool { return w.ended > 0 })
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// done counts frames with that outcome.
func (w *witness) done() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, c := range w.outcomes {
		if c.Outcome == sdk.Done {
			n++
		}
	}
	return n
}

// wantEnd fails unless the end has the code.
func (w *witness) wantEnd(code sdk.Code) {
	w.r.Helper()
	if err := w.waitEnded(); !errors.Is(err, code) {
		w.r.Errorf("%s ended with %v, want %v", w.name, err, code)
	}
}
