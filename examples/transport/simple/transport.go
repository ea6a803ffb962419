// Package simple is the example transport: one TCP connection per endpoint.
//
// On a connection the connecting side first sends the 16 bytes of its token,
// and the accepting side answers with one zero byte. After that both sides
// send records: one byte of type and four of a number, big endian. "F" is a
// frame: the number is its length, and its bytes follow. "R" is a receipt: the
// number is how many more frames have been taken. TCP keeps the order, so a
// receipt need not name its frames.
//
// It has no encryption: use it on loopback only.
package simple

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

const (
	path        = "tcp"           // the one way to a peer
	attrAddress = "address"       // where peers find us
	patience    = 1 * time.Second // for a peer to arrive, and to greet
	maxFrame    = 64 << 10
	maxInflight = 1024    // frames of one endpoint without a receipt
	maxBytes    = 4 << 20 // the same, in bytes
)

// Transport is an instance. Its methods may be called concurrently, so all of
// its state is behind one lock, which is never held across I/O.
type Transport struct {
	cfg      sdk.Config
	listener net.Listener
	life     context.Context // ends with Close
	end      context.CancelFunc
	running  sync.WaitGroup // every goroutine of ours: Close waits for them

	mu      sync.Mutex
	closed  bool
	ends    map[*endpoint]struct{}
	waiting map[token]*endpoint        // accepted; their peers are on the way
	newest  map[sdk.Incarnation]uint64 // generation by peer
}

// token proves that a connection belongs to an offer. It is not guessable.
type token [16]byte

// offer is what travels to the peer's transport over the engines' control
// plane, before there is any connection of ours. Format it as you like.
type offer struct {
	Token       token
	Local, Peer sdk.Incarnation
	Generation  uint64
}

// New makes an instance. It must not open or start anything: Configure does.
func New() *Transport {
	t := &Transport{ends: map[*endpoint]struct{}{}, waiting: map[token]*endpoint{}, newest: map[sdk.Incarnation]uint64{}}
	t.life, t.end = context.WithCancel(context.Background())
	return t
}

// Describe implements [sdk.Transport]. The listener is opened by the engine,
// so that the address survives a crash of this process.
func (t *Transport) Describe() sdk.Description {
	return sdk.Description{
		Name:     "example",
		Version:  "1.0.0",
		Contract: sdk.ContractVersion,
		Features: []sdk.Feature{sdk.FeatureNotify},
		Limits:   sdk.Limits{MaxFrame: maxFrame, InflightFrames: maxInflight, InflightBytes: maxBytes},
		ConfigSchema: json.RawMessage(`{
			"type": "object", "additionalProperties": false,
			"properties": {"listen": {"type": "string", "description": "host:port to listen on"}}}`),
		Listeners: []sdk.ListenerSpec{{Name: "main", Key: "listen", Default: "127.0.0.1:0"}},
	}
}

// Configure implements [sdk.Transport].
func (t *Transport) Configure(ctx context.Context, cfg sdk.Config) (sdk.Setup, error) {
	settings := struct {
		Listen string `json:"listen"`
	}{Listen: "127.0.0.1:0"}
	strict := json.NewDecoder(bytes.NewReader(cfg.Settings))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&settings); err != nil {
		return sdk.Setup{}, sdk.Errorf(sdk.InvalidArgument, "settings: %w", err)
	}
	l := cfg.Listeners["main"]
	if l == nil { // the engine cannot hand sockets to us here
		var err error
		if l, err = new(net.ListenConfig).Listen(ctx, "tcp", settings.Listen); err != nil {
			return sdk.Setup{}, sdk.Errorf(sdk.Unavailable, "cannot listen on %s: %w", settings.Listen, err)
		}
	}
	t.cfg, t.listener = cfg, l
	t.running.Go(t.welcome)
	address := l.Addr().String()
	return sdk.Setup{
		Attributes: sdk.Attributes{attrAddress: address},
		Paths:      []sdk.LocalPath{{Name: path, Detail: address}},
	}, nil
}

// Close implements [sdk.Transport]. Every goroutine of ours ends by itself
// once its socket is closed, and the last thing that an endpoint's does is to
// call Ended. So after the wait no handler is called any more.
func (t *Transport) Close(ctx context.Context) error {
	t.mu.Lock()
	t.closed = true
	for e := range t.ends {
		e.close(sdk.Errorf(sdk.Closed, "the transport was closed"))
	}
	t.mu.Unlock()
	t.end()
	if t.listener != nil {
		_ = t.listener.Close() // the second call of Close makes this fail
	}
	done := make(chan struct{})
	go func() { t.running.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Paths implements [sdk.Notifier]. What a peer published may be anything.
func (t *Transport) Paths(remote sdk.Attributes) ([]string, error) {
	if _, _, err := net.SplitHostPort(remote[attrAddress]); err != nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "the peer's address: %w", err)
	}
	return []string{path}, nil
}

// Connect implements [sdk.Notifier]: tell the peer our token, dial, show the
// token, wait for the welcome.
func (t *Transport) Connect(ctx context.Context, target sdk.Target, exchange sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	if _, err := t.Paths(target.Remote); err != nil || target.Path != path {
		return nil, sdk.Errorf(sdk.InvalidArgument, "no path %q to %v", target.Path, target.Remote)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.life, cancel)() // Close ends it, too

	o := offer{Local: target.Local, Peer: target.Peer, Generation: target.Generation}
	rand.Read(o.Token[:]) //nolint:errcheck // never fails
	msg, err := json.Marshal(o)
	if err != nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "offer: %w", err)
	}
	// The answer is empty, since the address is among the attributes.
	if _, err := exchange(ctx, msg); err != nil {
		return nil, err // its code says what the peer said: keep it
	}
	conn, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", target.Remote[attrAddress])
	if err != nil {
		return nil, sdk.Errorf(sdk.Unavailable, "dial: %w", err)
	}
	// From here on the context ends our I/O by closing the connection.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err = conn.Write(o.Token[:]); err == nil {
		_, err = io.ReadFull(conn, make([]byte, 1))
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, sdk.Errorf(sdk.Unavailable, "no welcome from %s: %w", target.PeerName, err)
	}
	_ = conn.SetDeadline(time.Time{})

	e := newEndpoint(t, h)
	e.arrived <- conn
	if err := t.start(e, nil); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return e, nil
}

// Accept implements [sdk.Notifier]. It returns before the peer has dialled;
// until then the endpoint holds what is sent.
func (t *Transport) Accept(_ context.Context, target sdk.Target, msg []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
	var o offer
	if err := json.Unmarshal(msg, &o); err != nil {
		return nil, nil, sdk.Errorf(sdk.InvalidArgument, "not an offer: %w", err)
	}
	if o.Local != target.Peer || o.Peer != target.Local || o.Generation != target.Generation {
		return nil, nil, sdk.Errorf(sdk.Refused, "the offer is not for this target")
	}
	e := newEndpoint(t, h)
	err := t.start(e, func() error {
		if target.Generation <= t.newest[target.Peer] || t.waiting[o.Token] != nil {
			return sdk.Errorf(sdk.Refused, "generation %d is not new", target.Generation)
		}
		if len(t.newest) >= 4096 {
			clear(t.newest) // bounded; the engine checks generations as well
		}
		t.newest[target.Peer] = target.Generation
		t.waiting[o.Token] = e
		e.token = o.Token
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return e, nil, nil
}

// start lets an endpoint run, unless the transport is closed or check fails.
func (t *Transport) start(e *endpoint, check func() error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return sdk.Errorf(sdk.Closed, "the transport was closed")
	}
	if check != nil {
		if err := check(); err != nil {
			return err
		}
	}
	t.ends[e] = struct{}{}
	t.running.Go(e.run)
	return nil
}

// welcome serves the listener.
func (t *Transport) welcome() {
	greeting := make(chan struct{}, 64) // strangers cannot hold more of us
	for {
		conn, err := t.listener.Accept()
		if err != nil {
			if t.life.Err() != nil {
				return
			}
			t.cfg.Log.Warn("accept", "error", err)
			time.Sleep(10 * time.Millisecond) // out of descriptors, perhaps
			continue
		}
		greeting <- struct{}{}
		t.running.Go(func() {
			t.greet(conn)
			<-greeting
		})
	}
}

// greet hands a connection to the endpoint that waits for it.
func (t *Transport) greet(conn net.Conn) {
	defer context.AfterFunc(t.life, func() { _ = conn.Close() })()
	var shown token
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, err := io.ReadFull(conn, shown[:])
	t.mu.Lock()
	e := t.waiting[shown]
	delete(t.waiting, shown)
	t.mu.Unlock()
	if err == nil && e != nil {
		_, err = conn.Write([]byte{0})
	}
	if err != nil || e == nil {
		_ = conn.Close()
		return
	}
	_ = conn.SetDeadline(time.Time{})
	e.arrive(conn)
}
