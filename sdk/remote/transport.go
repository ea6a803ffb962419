package remote

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/internal/bounds"
	"github.com/hawser-transport/hawser/sdk/internal/link"
	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

// drainGrace is how long a link may still deliver what a dead plugin has
// written, once Abort was called.
const drainGrace = time.Second

// Transport is one plugin process, as the sdk.Transport that runs in it. Its
// order of use: Open, Configure, the abilities, Close. It ends by itself with
// its link: then every endpoint has ended, Done is closed and Err says why.
type Transport struct {
	label string
	rpc   pb.PluginClient
	log   *slog.Logger

	// ctx ends when the plugin can no longer be used; every call hangs on it.
	ctx    context.Context
	cancel context.CancelFunc
	// done is closed once the link has ended and every endpoint with it.
	done chan struct{}

	// Set by Open, constant afterwards.
	desc    sdk.Description
	limits  sdk.Limits
	options []grpc.CallOption
	windows bool // the plugin keeps to windows

	// pathsChanged is that of Configure.
	pathsChanged atomic.Pointer[func()]

	dropped atomic.Uint64
	pings   pings
	// tags counts files of regions, filing has a token for each on its way.
	tags   atomic.Uint64
	filing chan struct{}
	// senders are goroutines that wait for room on the link.
	senders sync.WaitGroup

	mu struct {
		sync.Mutex
		opened    bool
		closing   bool
		link      *hostLink // nil until Open has opened it
		reason    reason
		last      uint64 // the last endpoint id drawn
		endpoints map[uint64]*endpoint
		down      bool // the link has ended: nobody may wait for room any more
		drained   bool // everything has ended; nothing may be added
	}
}

var (
	_ sdk.Transport = (*Transport)(nil)
	_ sdk.Notifier  = (*Transport)(nil)
	_ sdk.Mover     = (*Transport)(nil)
	_ sdk.Prober    = (*Transport)(nil)
	_ sdk.Drainer   = (*Transport)(nil)
	_ sdk.Keyed     = (*Transport)(nil)
)

func newTransport(exited context.Context, label string, conn *grpc.ClientConn) *Transport {
	t := &Transport{
		label: label, rpc: pb.NewPluginClient(conn), log: slog.New(slog.DiscardHandler),
		done: make(chan struct{}), filing: make(chan struct{}, bounds.RegionFiles/2),
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.options = []grpc.CallOption{grpc.MaxCallRecvMsgSize(openMessage), grpc.MaxCallSendMsgSize(openMessage)}
	t.pings.waiting = map[uint64]chan struct{}{}
	t.mu.endpoints = map[uint64]*endpoint{}
	context.AfterFunc(exited, func() {
		t.abort(reason{rank: rankExited, err: sdk.Errorf(sdk.PluginExited, "plugin %s: its process has exited", label)})
	})
	return t
}

// Open asks the plugin what it is and opens the link. socket is the host's end
// of the socket that the plugin inherited, or nil; the transport owns it from
// now on, whatever Open returns. Whoever opens must use or close the result
// ([Transport.Close] or [Transport.Abort]). Open is called once, and its
// default deadline is 10 s.
func (t *Transport) Open(ctx context.Context, socket *net.UnixConn, log *slog.Logger) error {
	if log != nil {
		t.log = log
	}
	err := t.open(ctx, socket)
	if err != nil {
		if socket != nil {
			_ = socket.Close()
		}
		t.fail(reason{rank: rankViolation, err: err})
	}
	return err
}

func (t *Transport) open(ctx context.Context, socket *net.UnixConn) error {
	t.mu.Lock()
	again := t.mu.opened
	t.mu.opened = true
	t.mu.Unlock()
	if again {
		return sdk.Errorf(sdk.InvalidArgument, "plugin %s: Open was called twice", t.label)
	}
	ctx, cancel := t.callContext(ctx, openTimeout)
	defer cancel()
	resp, err := t.rpc.Describe(ctx, &pb.DescribeRequest{}, t.options...)
	if err != nil {
		return t.callError(ctx, "describe", err)
	}
	if v := resp.GetContract(); v != sdk.ContractVersion {
		// Not a broken promise: it is another contract that the plugin keeps.
		return sdk.Errorf(sdk.InvalidArgument, "plugin %s: contract version %d, this host has %d: install the plugin built for this version",
			t.label, v, sdk.ContractVersion)
	}
	if t.desc, err = descriptionFromPB(resp); err != nil {
		return t.invalid("describe", err)
	}
	t.limits = t.desc.Limits
	size := bounds.MaxMessage(t.limits.MaxFrame)
	t.options = []grpc.CallOption{grpc.MaxCallRecvMsgSize(size), grpc.MaxCallSendMsgSize(size)}
	if err := t.openLink(ctx, socket); err != nil {
		return err
	}
	// Over gRPC nothing has proved yet that the plugin serves its end.
	return t.ping(ctx)
}

// Describe returns what the plugin said to Open; before, it is zero.
func (t *Transport) Describe() sdk.Description { return t.desc }

// CarriesFiles reports whether listeners can be handed to the plugin. If not,
// it opens its own, and the address must be free.
func (t *Transport) CarriesFiles() bool {
	l := t.link()
	return l != nil && l.carrier.CarriesFiles()
}

// Configure hands over the configuration. Listeners are sent over the link
// first; they are closed here in every case, since the plugin works with
// descriptors of its own. Its default deadline is 30 s.
func (t *Transport) Configure(ctx context.Context, cfg sdk.Config) (sdk.Setup, error) {
	defer func() {
		for _, l := range cfg.Listeners {
			_ = l.Close()
		}
	}()
	l, err := t.ready("configure")
	if err != nil {
		return sdk.Setup{}, err
	}
	if err := bounds.CheckSettings(cfg.Settings); err != nil {
		return sdk.Setup{}, sdk.Errorf(sdk.TooLarge, "plugin %s: configure: %w", t.label, err)
	}
	if !t.desc.Has(sdk.FeatureKeys) {
		cfg.Keys = nil // they are for those who asked
	}
	if err := checkKeys(cfg.Keys); err != nil {
		return sdk.Setup{}, sdk.Errorf(sdk.TooLarge, "plugin %s: configure: %w", t.label, err)
	}
	if cfg.PathsChanged != nil {
		t.pathsChanged.Store(&cfg.PathsChanged)
	}
	names, err := t.sendListeners(l.carrier, cfg.Listeners)
	if err != nil {
		return sdk.Setup{}, err
	}
	ctx, cancel := t.callContext(ctx, callTimeout)
	defer cancel()
	resp, err := t.rpc.Configure(ctx, configToPB(cfg, names), t.options...)
	if err := t.callResult(ctx, "configure", err, resp.GetError()); err != nil {
		return sdk.Setup{}, err
	}
	setup, err := setupFromPB(resp)
	if err != nil {
		return sdk.Setup{}, t.invalid("configure", err)
	}
	return setup, nil
}

// tellPaths passes on that paths have changed, unless the transport is being
// closed.
func (t *Transport) tellPaths() {
	t.mu.Lock()
	closing := t.mu.closing
	t.mu.Unlock()
	if f := t.pathsChanged.Load(); f != nil && !closing {
		(*f)()
	}
}

// sendListeners puts the listeners' descriptors on the link and returns their
// names in the same order.
func (t *Transport) sendListeners(c link.Carrier, listeners map[string]net.Listener) ([]string, error) {
	if len(listeners) == 0 {
		return nil, nil
	}
	if !c.CarriesFiles() {
		t.log.Warn("the link carries no descriptors: the plugin must open its listeners itself", "plugin", t.label)
		return nil, nil
	}
	if len(listeners) > bounds.Listeners {
		return nil, sdk.Errorf(sdk.InvalidArgument, "plugin %s: %d listeners, the limit is %d", t.label, len(listeners), bounds.Listeners)
	}
	var names []string
	var files []*os.File
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	for name := range listeners {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		l, ok := listeners[name].(interface{ File() (*os.File, error) })
		if !ok {
			return nil, sdk.Errorf(sdk.InvalidArgument, "plugin %s: listener %q has no descriptor", t.label, name)
		}
		f, err := l.File()
		if err != nil {
			return nil, sdk.Errorf(sdk.InvalidArgument, "plugin %s: listener %q: %w", t.label, name, err)
		}
		files = append(files, f)
	}
	if _, err := c.Send([]link.Record{{Type: link.Files, Files: files}}, 0); err != nil {
		return nil, t.sendError("handing over listeners", err)
	}
	return names, nil
}

// Close ends the plugin's transport: its endpoints end, then the link. It
// returns nil if the plugin confirmed, and keeps the contract in every case:
// after it, no Handler is called any more. Its default deadline is 10 s. The
// process, if it is well, exits by itself.
func (t *Transport) Close(ctx context.Context) error {
	t.mu.Lock()
	first := !t.mu.closing
	t.mu.closing = true
	t.mu.Unlock()
	var err error
	switch {
	case !first:
		t.awaitEnd(ctx)
	case t.link() != nil:
		err = t.closePlugin(ctx)
	}
	t.fail(reason{rank: rankClosed, err: sdk.Errorf(sdk.Closed, "plugin %s: closed", t.label)})
	<-t.done
	return err
}

// awaitEnd gives another caller's Close its time.
func (t *Transport) awaitEnd(ctx context.Context) {
	ctx, cancel := t.callContext(ctx, closeTimeout)
	defer cancel()
	select {
	case <-t.done:
	case <-ctx.Done():
	}
}

// closePlugin returns when the plugin has closed and everything that it sent
// before was handled.
func (t *Transport) closePlugin(ctx context.Context) error {
	ctx, cancel := t.callContext(ctx, closeTimeout)
	defer cancel()
	resp, err := t.rpc.Close(ctx, &pb.CloseRequest{}, t.options...)
	if err := t.callResult(ctx, "close", err, resp.GetError()); err != nil {
		return err
	}
	return t.ping(ctx)
}

// Abort says that the plugin's process is gone, or given up, and why: err ends
// up in the endpoints' ends and in Err. What the plugin had written before is
// still delivered. Abort does not wait; Done tells.
func (t *Transport) Abort(err error) {
	if err == nil {
		err = errors.New("given up by its host")
	}
	t.abort(reason{rank: rankAborted, err: sdk.Errorf(sdk.PluginExited, "plugin %s: %w", t.label, err)})
}

// Done is closed when the link has ended and every endpoint has got its end.
func (t *Transport) Done() <-chan struct{} { return t.done }

// Err says why the transport has ended, or nil while it has not. A violation
// of the contract by the plugin outranks what followed from it.
func (t *Transport) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.reason.err
}

// Progress grows when the plugin has sent something over the link, or read what
// it had kept waiting. If it does, the plugin is alive, whatever Health says.
func (t *Transport) Progress() uint64 {
	t.mu.Lock()
	l := t.mu.link
	t.mu.Unlock()
	if l == nil {
		return 0
	}
	return l.carrier.Moved()
}

// Dropped counts records that were well formed but meant nothing: of unknown
// or ended endpoints, second outcomes, outcomes of frames never sent.
func (t *Transport) Dropped() uint64 { return t.dropped.Load() }

// reason is why a transport ended. Of several the highest rank stays.
type reason struct {
	rank int
	err  error
}

const (
	rankNone = iota
	rankExited
	rankAborted
	rankClosed
	rankViolation
)

func (t *Transport) setReason(r reason) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.drained && r.rank == rankClosed {
		return // it had ended before
	}
	if r.rank > t.mu.reason.rank {
		t.mu.reason = r
	}
}

// fail ends the transport now.
func (t *Transport) fail(r reason) {
	t.setReason(r)
	t.cancel()
	t.mu.Lock()
	l := t.mu.link
	if l == nil && !t.mu.drained {
		// There is no reader to do it.
		t.mu.drained = true
		close(t.done)
	}
	t.mu.Unlock()
	if l != nil {
		_ = l.carrier.Close()
	}
}

// abort ends the transport once what the plugin left on the link was read.
func (t *Transport) abort(r reason) {
	l := t.link()
	if l == nil {
		t.fail(r)
		return
	}
	t.setReason(r)
	t.cancel()
	if l.socket != nil {
		// Reading goes on up to the end of what is there. A child of the
		// plugin that still holds the other end cannot delay it.
		_ = l.socket.CloseRead()
	}
	go func() {
		grace := time.NewTimer(drainGrace)
		defer grace.Stop()
		select {
		case <-t.done:
		case <-grace.C:
			_ = l.carrier.Close()
		}
	}()
}

func (t *Transport) link() *hostLink {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.link
}
