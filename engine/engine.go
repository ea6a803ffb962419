// Package engine moves notifications between processes over whatever
// transports carry them best right now, and keeps doing so while transports,
// plugins and peers fail. Hosts import this package and nothing else.
//
// An [Engine] owns everything that must outlive a transport: who the peers
// are, what was sent and is not acknowledged, what was received, which way to
// take. Transports are plugin processes that it runs and supervises, so that a
// crash in one never reaches the host.
//
// Guarantees: every notification ends within its deadline, acknowledged (it is
// in the receiving process's queue) or with an error that lists what was tried
// and says whether a copy may still arrive. A receiver gets each notification
// at most once, and exactly once if it was acknowledged. Order is not kept
// across notifications.
package engine

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/freeze"
	"github.com/hawser-transport/hawser/engine/internal/inbox"
	"github.com/hawser-transport/hawser/engine/internal/seam"
	"github.com/hawser-transport/hawser/engine/registry"
	"github.com/hawser-transport/hawser/sdk"
)

// Engine is one process's end of Hawser. Its methods are safe for concurrent
// use.
type Engine struct {
	cfg         Config // with defaults
	log         *slog.Logger
	incarnation Incarnation
	started     time.Time
	longest     time.Duration // that a notification may take
	address     string        // what peers are told

	control  control.Carrier
	registry registry.Registry
	freeze   *freeze.Detector
	random   func() uint64
	queue    *inbox.Queue[Received]
	queues   []*Queue // by prefix, the longest first
	outbox   *budget
	stats    counters
	watch    *watch
	hub      hub

	ctx    context.Context // ends when everything has to stop
	cancel context.CancelFunc
	tasks  sync.WaitGroup // goroutines of the engine's own
	// deliveries counts those that have not ended.
	deliveries pending

	security   security
	transports transports
	directory  directory
	memory     memory
	transfers  pending // that have not ended

	generations generations

	surface surface // what can be seen from outside

	closing atomic.Bool
	closed  chan struct{} // Close has finished
}

// Option changes how Open makes an engine.
type Option func(*seam.Options)

// WithLogger makes the engine, and its plugins, log to l. Default: nowhere.
func WithLogger(l *slog.Logger) Option { return func(o *seam.Options) { o.Log = l } }

// withCarrier replaces the control plane's carrier.
func withCarrier(c control.Carrier) Option { return func(o *seam.Options) { o.Carrier = c } }

// Open starts an engine: it binds the control plane's address and starts the
// configured transports. It returns once each transport is up or has failed to
// start; a transport that failed is logged and tried again, and does not fail
// Open, but a configuration that cannot work does.
func Open(ctx context.Context, cfg Config, opts ...Option) (*Engine, error) {
	ctx = orBackground(ctx)
	var o seam.Options
	for i, opt := range opts {
		if opt == nil {
			return nil, sdk.Errorf(sdk.InvalidArgument, "open: option %d is nil", i+1)
		}
		opt(&o)
	}
	cfg, err := cfg.Effective()
	if err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Incarnation.Epoch() == 0 {
		o.Incarnation = newIncarnation()
	}
	if o.Longest == 0 {
		o.Longest = maxDeadline
	}
	if o.Random == nil {
		o.Random = random
	}
	e := &Engine{
		cfg: cfg, log: o.Log, incarnation: o.Incarnation, started: time.Now(), longest: o.Longest,
		control: o.Carrier, freeze: &freeze.Detector{Hold: o.Hold}, random: o.Random, closed: make(chan struct{}),
		outbox: newBudget(cfg.Outbox.TotalBytes),
	}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.queue = inbox.NewQueue[Received](cfg.Receive.Frames, cfg.Receive.Bytes, e.roomReturned)
	if err := e.divide(o.Queues); err != nil {
		return nil, err
	}
	e.directory.init()
	e.memory.init(e)
	e.watch = newWatch(e)
	e.freeze.OnThaw = e.watch.thawed
	if err := e.surface.open(e, o); err != nil {
		return nil, err
	}
	opened := false
	defer func() {
		if !opened {
			e.surface.close()
		}
	}()
	if e.registry, err = newRegistry(cfg.Registry); err != nil {
		return nil, err
	}
	if err := e.security.open(e); err != nil {
		return nil, err
	}
	if e.control == nil {
		e.control = newControlCarrier(cfg, e.security.ring, e.log)
	}
	if err := e.transports.prepare(e); err != nil {
		_ = e.control.Close(ctx)
		return nil, err
	}
	// The queue and all handlers exist before the first peer or transport can
	// reach them.
	h := &answers{e, make(chan struct{})}
	listening, err := e.control.Listen(h)
	if err != nil {
		_ = e.control.Close(ctx)
		return nil, err
	}
	if e.address = cfg.Control.Advertise; e.address == "" {
		e.address = listening
	}
	close(h.open)
	if err := e.registry.Register(ctx, registry.Self{Name: cfg.Node.Name, Address: e.address, Incarnation: e.incarnation}); err != nil {
		_ = e.control.Close(ctx)
		return nil, err
	}
	e.tasks.Go(func() { e.freeze.Run(e.ctx) })
	e.tasks.Go(e.sweep)
	if e.security.ring != nil {
		e.tasks.Go(e.security.watch)
	}
	e.tasks.Go(func() { e.watch.run(e.ctx) })
	e.surface.serve(e)
	if err := e.transports.start(ctx); err != nil {
		_ = e.Close(ctx)
		return nil, err
	}
	opened = true
	e.surface.started.Store(true)
	return e, nil
}

// orBackground has a nil context mean [context.Background].
func orBackground(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}

// ready checks what a method was called with: a nil context means
// [context.Background].
func (e *Engine) ready(ctx context.Context, what string) (context.Context, error) {
	if e == nil || e.closed == nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "%s: the engine was not made by Open", what)
	}
	return orBackground(ctx), nil
}

// fits refuses a notification that is larger than the configuration allows.
func (e *Engine) fits(peer string, n *Notification) error {
	size := len(n.Name) + len(n.Payload)
	if limit := e.cfg.Notification.MaxPayloadBytes; size > limit {
		e.stats.tooLarge.Add(1)
		return sdk.Errorf(sdk.TooLarge, "notification to %s: name and payload are %d bytes, over notification.max_payload_bytes = %d", peer, size, limit)
	}
	return nil
}

// contextEnded is the error of what was to be sent when its context ended before
// the engine had it. It matches the context's error.
func contextEnded(ctx context.Context, what string) error {
	return ended(ctx, what+": its deadline was over before it was sent", what+": cancelled before it was sent")
}

// ended is the error of what its context ended: one text is for a deadline, the
// other for a cancellation.
func ended(ctx context.Context, late, cancelled string) error {
	code, text, err := NotSent, cancelled, ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		code, text = DeadlineExceeded, late
	}
	if cause := context.Cause(ctx); !errors.Is(cause, err) {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return sdk.Errorf(code, "%s: %w", text, err)
}

// random is what nobody can guess.
func random() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

func (e *Engine) randomNonzero() uint64 {
	for {
		if v := e.random(); v != 0 {
			return v
		}
	}
}

// spread returns d give or take half of it, so that many do not try at once.
func (e *Engine) spread(d time.Duration) time.Duration {
	return d/2 + time.Duration(e.random()%uint64(d))
}

func newIncarnation() (i Incarnation) {
	for i.Epoch() == 0 {
		_, _ = rand.Read(i[:]) // never fails
	}
	return i
}

// Self is this engine as its peers see it.
func (e *Engine) Self() Node {
	return Node{Name: e.cfg.Node.Name, Address: e.address, Incarnation: e.incarnation}
}

func (e *Engine) self() control.Node {
	return control.Node{Name: e.cfg.Node.Name, Address: e.address, Incarnation: e.incarnation, Started: e.started}
}

// Notify hands a notification to the outbox towards a peer, named as the
// registry knows it, and returns as soon as it is held there; the [Delivery]
// tells how it ends. Its deadline is ctx's, else notification.deadline_ms from
// now, at most 600 s. If the outbox is full Notify waits for
// notification.slot_wait_ms and fails with [Backpressure]. An error means that
// nothing was sent.
func (e *Engine) Notify(ctx context.Context, peer string, n Notification) (*Delivery, error) {
	ctx, err := e.ready(ctx, "notify")
	if err != nil {
		return nil, err
	}
	if err := e.fits(peer, &n); err != nil {
		return nil, err
	}
	now := time.Now()
	if ctx.Err() != nil {
		return nil, contextEnded(ctx, "notification to "+peer)
	}
	deadline := e.deadline(ctx, now)
	address, err := e.resolve(ctx, peer)
	if err != nil {
		if ctx.Err() != nil {
			return nil, contextEnded(ctx, "notification to "+peer)
		}
		return nil, err
	}
	d := &Delivery{peer: peer, tally: &e.stats.tally, born: now.Sub(e.started)}
	d.entry.Frame, d.entry.Deadline, d.entry.Owner = encode(n), deadline, d
	if err := e.admit(ctx, d, func() (bool, error) { return e.tryAdmit(address, d) }); err != nil {
		return nil, err
	}
	return d, nil
}

// resolve turns a peer's name into an address. Under p2p a name that is known
// as an address already needs no second look.
func (e *Engine) resolve(ctx context.Context, peer string) (string, error) {
	if e.cfg.Registry.Type == "p2p" && e.directory.has(peer) {
		return peer, nil
	}
	return e.registry.Resolve(ctx, peer)
}

// maxDeadline is the longest that a notification may take, outside tests.
const maxDeadline = 600 * time.Second

func (e *Engine) deadline(ctx context.Context, now time.Time) time.Time {
	at, ok := ctx.Deadline()
	if !ok {
		return now.Add(e.cfg.Notification.Deadline())
	}
	if latest := now.Add(e.longest); at.After(latest) {
		at = latest
	}
	return at
}

// Receive returns the next notification that no other queue takes (see
// [NewQueue]), waiting for one until ctx ends. Once
// the engine is closed it returns what is left, then [Closed].
func (e *Engine) Receive(ctx context.Context) (*Received, error) {
	ctx, err := e.ready(ctx, "receive")
	if err != nil {
		return nil, err
	}
	r, err := e.queue.Get(ctx)
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// Close stops taking new work, waits for pending transfers and notifications to
// end until ctx does, says goodbye to peers, fails what is left and stops the
// transports. Memory that was exported is withdrawn, and those who use it are
// waited for until ctx ends, or they do not answer: an error with code [Busy]
// names who still does; see [Region.Close]. It is idempotent; every call returns
// when the first has finished.
func (e *Engine) Close(ctx context.Context) error {
	ctx, err := e.ready(ctx, "close")
	if err != nil {
		return err
	}
	if !e.closing.CompareAndSwap(false, true) {
		<-e.closed
		return nil
	}
	defer close(e.closed)
	e.outbox.wake()
	if !e.transfers.wait(ctx) { // they may have notifications to send
		err = sdk.Errorf(sdk.DeadlineExceeded, "close: not every transfer had ended: %w", context.Cause(ctx))
	}
	if !e.deliveries.wait(ctx) {
		err = errors.Join(err, sdk.Errorf(sdk.DeadlineExceeded, "close: not every notification had ended: %w", context.Cause(ctx)))
	}
	err = errors.Join(err, e.memory.recall(ctx))
	owed := e.farewell(ctx)
	cause := sdk.Errorf(sdk.Closed, "the engine was closed")
	for _, a := range e.directory.all() {
		a.die(cause)
	}
	e.queue.Close()
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	err = errors.Join(err, e.transports.stop(stop))
	e.lateFarewell(ctx, owed)
	err = errors.Join(err, e.control.Close(stop), e.registry.Close())
	e.cancel()
	e.memory.close()
	e.surface.close()
	e.tasks.Wait()
	e.watch.end()
	e.hub.close()
	return err
}

// stopTimeout is what stopping the transports may take after ctx.
const stopTimeout = 5 * time.Second

// sweepEvery is how often silent sessions are looked for.
const sweepEvery = 30 * time.Second

// silence is after how long without a word a sender's session ends: twice the
// longest deadline, so that nothing of it can still be under way.
const silence = 2 * maxDeadline

func (e *Engine) silence() time.Duration { return 2 * e.longest }

// sweep ends the sessions of silent senders.
func (e *Engine) sweep() {
	tick := time.NewTicker(min(sweepEvery, e.longest/4))
	defer tick.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-tick.C:
		}
		e.freeze.Awake()
		now := time.Now()
		for _, a := range e.directory.all() {
			a.sweep(now)
		}
		e.memory.sweep(now)
	}
}
