package sdktest

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// FrameFaults are probabilities, from 0 to 1, for each frame of a direction.
type FrameFaults struct {
	// Drop loses the frame.
	Drop float64
	// Double carries it twice.
	Double float64
	// Delay holds it, and what comes after it, for up to MaxDelay.
	Delay float64
	// Reorder holds it alone for up to MaxDelay, so that others overtake it.
	Reorder float64
}

// Faults say what a faulty transport does wrong. The zero value: nothing.
type Faults struct {
	// Send is for frames that this side sends, Receive for those it receives.
	Send, Receive FrameFaults
	// Ops is for ops of endpoints for memory, in place of Send. A dropped one
	// has no outcome, or that of DropIsUnknown: it is never reported as Done.
	// None is carried twice.
	Ops FrameFaults
	// DropIsUnknown makes a frame that Send drops complete as Unknown.
	// Otherwise it is reported as Done.
	DropIsUnknown bool
	// NotPosted is the probability that a frame is refused after it was
	// taken: it is not carried and completes as NotPosted.
	NotPosted float64
	// Unknown is the probability that a frame completes as Unknown; half of
	// these are carried.
	Unknown float64
	// MaxDelay bounds each delay. Default 20 ms.
	MaxDelay time.Duration
	// CrashAfter and HangAfter count down frames, sent and received, from
	// the call of Set; then comes Crash or Hang. 0: never.
	CrashAfter, HangAfter int
}

// FrameCounts count the faults of one direction.
type FrameCounts struct {
	Dropped, Doubled, Delayed uint64
	// Reordered counts frames that another one has overtaken.
	Reordered uint64
}

// FaultCounts tell which faults fired.
type FaultCounts struct {
	Send, Receive, Ops FrameCounts
	NotPosted, Unknown uint64
	Hangs, Crashes     uint64
}

// FaultyTransport is a transport with faults. It implements all abilities, and
// describes those that the wrapped one describes. Apart from its faults it
// keeps the contract: a frame that was taken has one outcome, an endpoint has
// one end.
//
// To pluginhost it looks like a process: Done and Err tell of a crash, Health
// does not answer while it hangs, Progress counts frames.
type FaultyTransport struct {
	inner sdk.Transport
	seed  uint64

	mu       sync.Mutex
	faults   Faults
	counts   FaultCounts
	progress uint64
	serial   uint64
	ends     map[*faultyEnd]struct{}
	closed   bool
	hung     bool
	resumed  chan struct{} // closed by Resume, Crash and Close
	crashed  chan struct{}
	onCrash  func()
	closing  sync.WaitGroup // of the inner transport, after a crash
}

// Faulty wraps a transport. With the same seed and the same traffic over an
// endpoint it makes the same choices.
func Faulty(t sdk.Transport, seed uint64) *FaultyTransport {
	return &FaultyTransport{
		inner: t, seed: seed, ends: map[*faultyEnd]struct{}{},
		resumed: make(chan struct{}), crashed: make(chan struct{}),
	}
}

// Set replaces the faults, at any time.
func (f *FaultyTransport) Set(faults Faults) {
	if faults.MaxDelay == 0 {
		faults.MaxDelay = 20 * time.Millisecond
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = faults
}

// Seed replaces the seed, for endpoints that are yet to be made.
func (f *FaultyTransport) Seed(seed uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seed = seed
}

// OnCrash sets what Crash calls at its end: os.Exit, in a plugin's process.
func (f *FaultyTransport) OnCrash(exit func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.onCrash = exit
}

// Counts returns the faults that fired so far.
func (f *FaultyTransport) Counts() FaultCounts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts
}

// Hang stops everything, without an end: Send takes frames until there is no
// room, nothing is carried or reported, and calls block until their context
// ends. Close works, as a kill would.
func (f *FaultyTransport) Hang() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hangLocked()
}

func (f *FaultyTransport) hangLocked() {
	if f.hung || f.closed || f.deadLocked() {
		return
	}
	f.hung = true
	f.resumed = make(chan struct{})
	f.counts.Hangs++
}

// Resume undoes Hang.
func (f *FaultyTransport) Resume() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resumeLocked()
}

func (f *FaultyTransport) resumeLocked() {
	if !f.hung {
		return
	}
	f.hung = false
	close(f.resumed)
	for e := range f.ends {
		e.signal()
	}
}

// Crash ends all endpoints with PluginExited; every later call fails with it.
// The wrapped transport is closed.
func (f *FaultyTransport) Crash() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashLocked()
}

func (f *FaultyTransport) crashLocked() {
	if f.closed || f.deadLocked() {
		return
	}
	close(f.crashed)
	f.counts.Crashes++
	f.resumeLocked()
	for e := range f.ends {
		e.signal()
	}
	exit := f.onCrash
	f.closing.Go(func() {
		if exit != nil {
			exit()
		}
		f.inner.Close(context.Background()) //nolint:errcheck // it is to be gone
	})
}

func (f *FaultyTransport) deadLocked() bool {
	select {
	case <-f.crashed:
		return true
	default:
		return false
	}
}

var errCrashed = sdk.Errorf(sdk.PluginExited, "the faulty transport crashed, as it was told")

// Done is closed by Crash.
func (f *FaultyTransport) Done() <-chan struct{} { return f.crashed }

// Err says why Done is closed.
func (f *FaultyTransport) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.deadLocked() {
		return errCrashed
	}
	return nil
}

// Health returns nil unless the transport hangs or has crashed.
func (f *FaultyTransport) Health(ctx context.Context) error { return f.answer(ctx) }

// Progress counts frames that were carried, both ways.
func (f *FaultyTransport) Progress() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.progress
}

// answer blocks while the transport hangs.
func (f *FaultyTransport) answer(ctx context.Context) error {
	for {
		f.mu.Lock()
		hung, resumed, dead := f.hung, f.resumed, f.deadLocked()
		f.mu.Unlock()
		switch {
		case dead:
			return errCrashed
		case !hung:
			return nil
		}
		select {
		case <-resumed:
		case <-ctx.Done():
			return sdk.Errorf(sdk.DeadlineExceeded, "the faulty transport hangs, as it was told: %w", ctx.Err())
		}
	}
}

// Describe implements [sdk.Transport].
func (f *FaultyTransport) Describe() sdk.Description { return f.inner.Describe() }

// Configure implements [sdk.Transport].
func (f *FaultyTransport) Configure(ctx context.Context, cfg sdk.Config) (sdk.Setup, error) {
	if err := f.answer(ctx); err != nil {
		return sdk.Setup{}, err
	}
	return f.inner.Configure(ctx, cfg)
}

// Close implements [sdk.Transport].
func (f *FaultyTransport) Close(ctx context.Context) error {
	f.mu.Lock()
	f.closed = true
	f.resumeLocked()
	dead := f.deadLocked()
	var ends []*faultyEnd
	for e := range f.ends {
		ends = append(ends, e)
	}
	f.mu.Unlock()
	var err error
	if dead {
		f.closing.Wait()
	} else {
		err = f.inner.Close(ctx)
	}
	for _, e := range ends {
		e.signal()
		select {
		case <-e.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

// Paths implements [sdk.Notifier].
func (f *FaultyTransport) Paths(remote sdk.Attributes) ([]string, error) {
	n, err := f.notifier()
	if err != nil {
		return nil, err
	}
	return n.Paths(remote)
}

func (f *FaultyTransport) notifier() (sdk.Notifier, error) {
	if n, ok := f.inner.(sdk.Notifier); ok {
		return n, nil
	}
	return nil, sdk.Errorf(sdk.Unsupported, "the wrapped transport carries no frames")
}

// Connect implements [sdk.Notifier].
func (f *FaultyTransport) Connect(ctx context.Context, t sdk.Target, exchange sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	n, err := f.notifier()
	if err == nil {
		err = f.answer(ctx)
	}
	if err != nil {
		return nil, err
	}
	e := f.newEnd(t.Use, h)
	inner, err := n.Connect(ctx, t, exchange, e)
	if err := e.start(inner, err); err != nil {
		return nil, err
	}
	return e, nil
}

// Accept implements [sdk.Notifier].
func (f *FaultyTransport) Accept(ctx context.Context, t sdk.Target, offer []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
	n, err := f.notifier()
	if err == nil {
		err = f.answer(ctx)
	}
	if err != nil {
		return nil, nil, err
	}
	e := f.newEnd(t.Use, h)
	inner, answer, err := n.Accept(ctx, t, offer, e)
	if err := e.start(inner, err); err != nil {
		return nil, nil, err
	}
	return e, answer, nil
}

// Probe implements [sdk.Prober].
func (f *FaultyTransport) Probe(ctx context.Context, t sdk.Target) error {
	if err := f.answer(ctx); err != nil {
		return err
	}
	if p, ok := f.inner.(sdk.Prober); ok {
		return p.Probe(ctx, t)
	}
	return sdk.Errorf(sdk.Unsupported, "the wrapped transport does not probe")
}

// Drain implements [sdk.Drainer].
func (f *FaultyTransport) Drain(ctx context.Context) error {
	if err := f.answer(ctx); err != nil {
		return err
	}
	if d, ok := f.inner.(sdk.Drainer); ok {
		return d.Drain(ctx)
	}
	return sdk.Errorf(sdk.Unsupported, "the wrapped transport does not drain")
}

// SetKeys implements [sdk.Keyed].
func (f *FaultyTransport) SetKeys(ctx context.Context, k sdk.Keys) error {
	if err := f.answer(ctx); err != nil {
		return err
	}
	if t, ok := f.inner.(sdk.Keyed); ok {
		return t.SetKeys(ctx, k)
	}
	return sdk.Errorf(sdk.Unsupported, "the wrapped transport has no keys")
}

// carryLocked counts a frame and what it sets off.
func (f *FaultyTransport) carryLocked() {
	f.progress++
	if n := &f.faults.CrashAfter; *n > 0 {
		if *n--; *n == 0 {
			f.crashLocked()
		}
	}
	if n := &f.faults.HangAfter; *n > 0 {
		if *n--; *n == 0 {
			f.hangLocked()
		}
	}
}

func (f *FaultyTransport) newEnd(use sdk.Use, h sdk.Handler) *faultyEnd {
	d := f.inner.Describe()
	lim, counts := d.Limits.WithDefaults(), &f.counts.Send
	if use == sdk.UseMemory {
		move := d.Move.WithDefaults()
		lim = sdk.Limits{MaxFrame: sdk.MaxOpFrame, InflightFrames: move.Inflight, InflightBytes: move.InflightBytes}
		counts = &f.counts.Ops
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.serial++
	return &faultyEnd{
		f: f, h: h, use: use, limits: lim,
		sendWake: make(chan struct{}, 1), callWake: make(chan struct{}, 1),
		done: make(chan struct{}), gone: make(chan struct{}),
		room: make(chan struct{}),
		out:  shuffle{rng: rand.New(rand.NewPCG(f.seed, f.serial*2)), counts: counts},
		in:   shuffle{rng: rand.New(rand.NewPCG(f.seed, f.serial*2+1)), counts: &f.counts.Receive},
		sent: map[uint64]*faultyFrame{},
	}
}
