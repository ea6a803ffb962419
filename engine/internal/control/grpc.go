package control

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
)

// Options configures [NewGRPC].
type Options struct {
	// Listen is the address to listen on, host:port. Default: 127.0.0.1:0.
	Listen string
	// Keys secure every connection with mutual TLS. Nil means none.
	Keys *mtls.Keyring
	// Insecure permits other than loopback addresses without keys.
	Insecure bool
	// Log is told whom the server refused, and who connected. Default: none.
	Log *slog.Logger
	Timeouts
}

// protocol is what TLS connections are negotiated for.
const protocol = "h2"

// credentialsBelow are gRPC's, for both directions: none of its own, since TLS is
// below it, in the client's dialer and the server's listener.
func credentialsBelow() credentials.TransportCredentials { return insecure.NewCredentials() }

// secure puts a listener's connections under TLS, if there are keys.
func (o Options) secure(l net.Listener) net.Listener {
	var refused atomic.Uint64
	return mtls.Listener(l, o.Keys, protocol, func(conn net.Conn, err error) {
		if err == nil {
			o.Log.Debug("control connection", "from", conn.RemoteAddr().String(), "certificate", mtls.PeerNames(conn))
			return
		}
		// One line for each power of two: a scanner must not fill the log.
		if n := refused.Add(1); n&(n-1) == 0 {
			o.Log.Warn("control connection refused", "from", conn.RemoteAddr().String(), "error", err, "so far", n)
		}
	})
}

// dial makes a client's connection. told is given what TLS says against it, at
// either end.
func (o Options) dial(ctx context.Context, address string, told func(error)) (net.Conn, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	conn := mtls.Client(raw, o.Keys, protocol, told)
	if err := mtls.Handshake(ctx, conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	if names := mtls.PeerNames(conn); names != nil {
		o.Log.Debug("control connection", "to", address, "certificate", names)
	}
	return conn, nil
}

// mayListen says whether an address may be listened at.
func (o Options) mayListen(address string) error {
	if o.Keys != nil || o.Insecure {
		_, _, err := net.SplitHostPort(address)
		if err != nil {
			return sdk.Errorf(sdk.InvalidArgument, "listen on %q: the address is not host:port", address)
		}
		return nil
	}
	return LoopbackOnly(address)
}

// NewGRPC returns the control plane over gRPC on TCP.
func NewGRPC(o Options) Carrier {
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Timeouts = o.Timeouts.withDefaults()
	c := &grpcCarrier{options: o}
	c.mu.clients = map[*grpcClient]struct{}{}
	return c
}

type grpcCarrier struct {
	options Options
	address string

	mu struct {
		sync.Mutex
		server  *grpcServer
		clients map[*grpcClient]struct{}
		closed  bool
	}
}

// LoopbackOnly returns nil if an address, host:port, is a loopback one, and
// otherwise an error that says what would permit it.
func LoopbackOnly(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return sdk.Errorf(sdk.InvalidArgument, "listen on %q: the address is not host:port", address)
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return sdk.Errorf(sdk.InvalidArgument, "listen on %s: not a loopback address; without mutual TLS others cannot be reached safely: "+
		"configure security.ca, security.cert and security.key, or say security.insecure", address)
}

// Listen implements [Carrier].
func (c *grpcCarrier) Listen(h Handler) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.mu.closed:
		return "", sdk.Errorf(sdk.Closed, "listen on %s: the control plane is closed", c.options.Listen)
	case c.mu.server != nil:
		return "", sdk.Errorf(sdk.InvalidArgument, "listen on %s: already listening", c.options.Listen)
	}
	if err := c.options.mayListen(c.options.Listen); err != nil {
		return "", err
	}
	l, err := net.Listen("tcp", c.options.Listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return "", addressInUse(c.options.Listen, err)
	}
	if err != nil {
		return "", sdk.Errorf(sdk.Unavailable, "the control plane cannot listen: %w", err)
	}
	// A name such as localhost may mean anything; what was bound counts.
	if err := c.options.mayListen(l.Addr().String()); err != nil {
		_ = l.Close()
		return "", err
	}
	c.mu.server = serveGRPC(l, h, c.options)
	c.address = l.Addr().String()
	return c.address, nil
}

// Dial implements [Carrier].
func (c *grpcCarrier) Dial(address string) Client {
	ctx, cancel := context.WithCancel(context.Background())
	client := &grpcClient{carrier: c, address: address, ctx: ctx, cancel: cancel}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		cancel()
	} else {
		c.mu.clients[client] = struct{}{}
	}
	return client
}

func (c *grpcCarrier) forget(client *grpcClient) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mu.clients, client)
}

// Close implements [Carrier].
func (c *grpcCarrier) Close(ctx context.Context) error {
	c.mu.Lock()
	c.mu.closed = true
	server := c.mu.server
	var clients []*grpcClient
	for client := range c.mu.clients {
		clients = append(clients, client)
	}
	c.mu.Unlock()
	for _, client := range clients {
		_ = client.Close()
	}
	if server == nil {
		return nil
	}
	return server.close(ctx)
}

const (
	// maxMessageBytes holds the largest valid message: a descriptor, or 32
	// transports with 16 KiB of attributes each.
	maxMessageBytes = MaxDescriptor + 1<<10
	maxHeaderBytes  = 32 << 10
	// maxConnections is above the number of sessions that an engine holds.
	// Connections over it are closed at once.
	maxConnections = 20_000
	// maxStreams leaves room for others beside a peer that uses all of its
	// own.
	maxStreams = maxCalls / 4
	// maxServeTime bounds a call whose caller sets a longer deadline.
	maxServeTime = 10 * time.Minute
	// bufferBytes keeps an idle connection at a few kilobytes.
	bufferBytes = 4 << 10
)

var (
	_ Carrier = (*grpcCarrier)(nil)
	_ Client  = (*grpcClient)(nil)
)
