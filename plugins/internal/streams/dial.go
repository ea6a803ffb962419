package streams

import (
	"context"
	"net"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
)

// Join dials the doors of a target and presents the message until it is welcome.
func (b *Base[E]) Join(ctx context.Context, addr, protocol string, target sdk.Target, j bootstrap.Join) (conn net.Conn, err error) {
	err = b.Persist(ctx, addr, func(ctx context.Context) (verdict bootstrap.Verdict, err error) {
		conn, verdict, err = b.dial(ctx, addr, protocol, target, j)
		return verdict, err
	})
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// dial makes one connection and asks for a verdict. The connection is the
// caller's only with Welcome.
func (b *Base[E]) dial(ctx context.Context, addr, protocol string, target sdk.Target, j bootstrap.Join) (net.Conn, bootstrap.Verdict, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, 0, err
	}
	conn := mtls.Client(raw, b.Keys, protocol, nil)
	// A context that ends makes the handshake fail at once.
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
