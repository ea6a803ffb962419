package control

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hawser-transport/hawser/sdk"
)

// Options configures [NewGRPC].
type Options struct {
	// Listen is the address to listen on, host:port. Default: 127.0.0.1:0.
	Listen string
	Timeouts
}

// credentials are what both directions use. Mutual TLS belongs here and
// nowhere else; until it is here, Listen binds loopback addresses only.
func (o Options) credentials() (client, server credentials.TransportCredentials) {
	return insecure.NewCredentials(), insecure.NewCredentials()
}

// NewGRPC returns the control plane over gRPC on TCP.
func NewGRPC(o Options) Carrier {
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
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
	return sdk.Errorf(sdk.InvalidArgument, "listen on %s: not a loopback address; others need security.ca, "+
		"security.cert and security.key, which this version does not support yet", address)
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
	if err := LoopbackOnly(c.options.Listen); err != nil {
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
	if err := LoopbackOnly(l.Addr().String()); err != nil {
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
	// maxMessageBytes holds the largest valid message, 32 transports with
	// 16 KiB of attributes each.
	maxMessageBytes = 1 << 20
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
