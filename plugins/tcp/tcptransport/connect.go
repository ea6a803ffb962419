package tcptransport

import (
	"context"
	"net"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
)

// Connect implements [sdk.Notifier].
func (t *Transport) Connect(ctx context.Context, target sdk.Target, exchange sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	if err := t.Admit(target, bootstrap.Connecting); err != nil {
		return nil, err
	}
	ctx, stop := t.Life.Until(ctx)
	defer stop()
	addr, j, err := bootstrap.Offering(ctx, target, t.Instance, exchange)
	if err != nil {
		return nil, err
	}
	conn, err := t.join(ctx, addr, target, j)
	if err != nil {
		return nil, err
	}
	e, run := t.active(target, conn, h)
	if err := t.Life.Start(e, run); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return e, nil
}

// Accept implements [sdk.Notifier].
func (t *Transport) Accept(_ context.Context, target sdk.Target, raw []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
	return t.Answer(target, raw, func() (end, func(bootstrap.Token, time.Duration)) { return t.passive(target, h) })
}

// Probe implements [sdk.Prober].
func (t *Transport) Probe(ctx context.Context, target sdk.Target) error {
	addr, err := t.Probed(target)
	if err != nil {
		return err
	}
	ctx, stop := t.Life.Until(ctx)
	defer stop()
	conn, err := t.join(ctx, addr, target, bootstrap.Join{Kind: bootstrap.Probe})
	if err != nil {
		return err
	}
	_ = conn.Close()
	return nil
}

// join dials and presents the message until it is welcome.
func (t *Transport) join(ctx context.Context, addr string, target sdk.Target, j bootstrap.Join) (conn net.Conn, err error) {
	err = t.Persist(ctx, addr, func(ctx context.Context) (verdict bootstrap.Verdict, err error) {
		conn, verdict, err = t.dial(ctx, addr, target, j)
		return verdict, err
	})
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// dial makes one connection and asks for a verdict. The connection is the
// caller's only with Welcome.
func (t *Transport) dial(ctx context.Context, addr string, target sdk.Target, j bootstrap.Join) (net.Conn, bootstrap.Verdict, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, 0, err
	}
	conn := mtls.Client(raw, t.Keys, protocol, nil)
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
