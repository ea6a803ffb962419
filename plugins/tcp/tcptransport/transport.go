package tcptransport

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/address"
	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/sdk"
)

// Name is the transport's name on the wire.
const Name = "tcp"

const version = "0.1.0"

// Transport is the tcp transport. It implements [sdk.Notifier], [sdk.Prober]
// and [sdk.Drainer].
type Transport struct {
	base        time.Time
	chunks      chunks
	generations bootstrap.Generations

	// Set by Configure, which comes before everything else.
	log      *slog.Logger
	settings settings
	instance uint64
	addr     string
	pending  *bootstrap.Pending[*endpoint]
	doors    *doors

	// ctx ends when the transport closes; tasks are all its goroutines.
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu        sync.Mutex
	state     state
	endpoints map[*endpoint]struct{}
}

type state uint8

const (
	unconfigured state = iota
	open
	draining
	closed
)

// New makes a transport.
func New() sdk.Transport {
	t := &Transport{base: time.Now(), endpoints: make(map[*endpoint]struct{})}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// Describe implements [sdk.Transport].
func (t *Transport) Describe() sdk.Description {
	return sdk.Description{
		Name: Name, Version: version, Contract: sdk.ContractVersion,
		Features:     []sdk.Feature{sdk.FeatureNotify, sdk.FeatureProbe, sdk.FeatureDrain},
		Limits:       sdk.Limits{MaxFrame: maxFrame, InflightFrames: maxInflight, InflightBytes: 4 << 20},
		ConfigSchema: json.RawMessage(schema),
		SharedDevice: true,
		Listeners:    []sdk.ListenerSpec{{Name: listenerName, Key: listenerName, Default: defaultListen}},
	}
}

// Configure implements [sdk.Transport].
func (t *Transport) Configure(ctx context.Context, cfg sdk.Config) (sdk.Setup, error) {
	s, err := parseSettings(cfg.Settings)
	if err != nil {
		return sdk.Setup{}, err
	}
	ln, err := address.Open(ctx, cfg, listenerName, s.Listen)
	if err != nil {
		return sdk.Setup{}, err
	}
	addr, err := address.Published(ln.Addr(), s.Advertise)
	if err != nil {
		_ = ln.Close()
		return sdk.Setup{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state != unconfigured {
		_ = ln.Close()
		return sdk.Setup{}, sdk.Errorf(sdk.InvalidArgument, "the transport is configured or closed already")
	}
	t.log, t.settings, t.instance, t.addr = cfg.Log, s, cfg.Instance, addr
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	t.pending = bootstrap.NewPending[*endpoint](cfg.Instance)
	t.doors = newDoors(t, ln)
	t.state = open
	t.tasks.Go(t.doors.serve)
	return sdk.Setup{
		Attributes: sdk.Attributes{address.Attribute: addr},
		Paths:      []sdk.LocalPath{{Name: addr, Detail: "listening on " + ln.Addr().String()}},
	}, nil
}

// Drain implements [sdk.Drainer]. Endpoints whose peer has not arrived end
// now: its connection would reach another instance, if any.
func (t *Transport) Drain(context.Context) error {
	t.mu.Lock()
	if t.state == open {
		t.state = draining
	}
	doors := t.doors
	t.mu.Unlock()
	if doors == nil {
		return errUnready
	}
	doors.close()
	for _, e := range t.pending.All() {
		e.out.end(sdk.Errorf(sdk.Unavailable, "draining before %s has connected", e.peer))
	}
	return nil
}

// Close implements [sdk.Transport].
func (t *Transport) Close(ctx context.Context) error {
	t.mu.Lock()
	t.state = closed
	doors := t.doors
	endpoints := make([]*endpoint, 0, len(t.endpoints))
	for e := range t.endpoints {
		endpoints = append(endpoints, e)
	}
	t.mu.Unlock()

	t.cancel()
	if doors != nil {
		doors.close()
	}
	for _, e := range endpoints {
		e.Close()
	}
	gone := make(chan struct{})
	go func() {
		t.tasks.Wait()
		close(gone)
	}()
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return sdk.Errorf(sdk.DeadlineExceeded, "tcp: a handler has not returned: %w", ctx.Err())
	}
}

// ready says whether new endpoints may be made.
func (t *Transport) ready() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.readyLocked()
}

func (t *Transport) readyLocked() error {
	switch t.state {
	case open:
		return nil
	case draining:
		return errDraining
	case closed:
		return errShut
	default:
		return errUnready
	}
}

// start makes an endpoint one of the transport's and runs it.
func (t *Transport) start(e *endpoint, run func()) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.readyLocked(); err != nil {
		return err
	}
	t.endpoints[e] = struct{}{}
	t.tasks.Go(run)
	return nil
}

func (t *Transport) forget(e *endpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.endpoints, e)
}

// untilClose returns a context that also ends when the transport closes.
func (t *Transport) untilClose(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(t.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}
