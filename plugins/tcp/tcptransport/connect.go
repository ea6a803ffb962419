package tcptransport

import (
	"context"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/sdk"
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
	conn, err := t.Join(ctx, addr, protocol, target, j)
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
	conn, err := t.Join(ctx, addr, protocol, target, bootstrap.Join{Kind: bootstrap.Probe})
	if err != nil {
		return err
	}
	_ = conn.Close()
	return nil
}
