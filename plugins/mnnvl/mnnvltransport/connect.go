//go:build linux

package mnnvltransport

import (
	"context"
	"net"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/address"
	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
)

// Connect implements [sdk.Notifier].
func (t *Transport) Connect(ctx context.Context, target sdk.Target, exchange sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	if err := carries(target); err != nil {
		return nil, err
	}
	if err := t.Admit(target, bootstrap.Connecting); err != nil {
		return nil, err
	}
	ctx, stop := t.Life.Until(ctx)
	defer stop()
	addr, j, err := bootstrap.Offering(ctx, target, t.Instance, exchange)
	if err != nil {
		return nil, err
	}
	var conn net.Conn
	err = t.Persist(ctx, addr, func(ctx context.Context) (verdict bootstrap.Verdict, err error) {
		conn, verdict, err = t.dial(ctx, addr, target, j)
		return verdict, err
	})
	if err != nil {
		return nil, err
	}
	e := newEndpoint(t, target, h)
	e.active, e.instance = true, j.Instance
	if err := t.Life.Start(e, func() { e.run(conn) }); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return e, nil
}

// Accept implements [sdk.Notifier].
func (t *Transport) Accept(_ context.Context, target sdk.Target, raw []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
	if err := carries(target); err != nil {
		return nil, nil, err
	}
	return t.Answer(target, raw, func() (*endpoint, func(bootstrap.Token, time.Duration)) {
		e := newEndpoint(t, target, h)
		return e, e.await
	})
}

func carries(target sdk.Target) error {
	if target.Use != sdk.UseMemory {
		return sdk.Errorf(sdk.Unsupported, "mnnvl carries no %v", target.Use)
	}
	return nil
}

// dial makes one connection and asks for a verdict. The connection is the
// caller's only with Welcome.
func (t *Transport) dial(ctx context.Context, addr string, target sdk.Target, j bootstrap.Join) (net.Conn, bootstrap.Verdict, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, 0, err
	}
	keepAlive(raw)
	conn := mtls.Client(raw, t.Keys, protocol, nil)
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	verdict, err := bootstrap.Introduce(ctx, conn, target, j)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil || verdict != bootstrap.Welcome {
		_ = conn.Close()
	}
	return conn, verdict, err
}

// keepAlive notices a machine that is gone, on a connection that is silent.
func keepAlive(conn net.Conn) {
	if c, ok := conn.(*net.TCPConn); ok {
		_ = c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 5})
	}
}

// Paths implements [sdk.Notifier]: there is a path to an instance on the same
// machine, or in the same NVLink fabric.
func (t *Transport) Paths(remote sdk.Attributes) ([]string, error) {
	paths, err := address.Paths(remote)
	if err != nil {
		return nil, err
	}
	for _, d := range t.devices {
		if d.place.meets(remote) {
			return paths, nil
		}
	}
	return nil, sdk.Errorf(sdk.Unsupported, "mnnvl: the peer is on another machine, and no GPU of its is in an NVLink fabric with one of this machine: see `hawser doctor mnnvl` on both")
}
