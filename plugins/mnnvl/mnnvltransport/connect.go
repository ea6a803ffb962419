//go:build linux

package mnnvltransport

import (
	"context"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/address"
	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/sdk"
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
	conn, err := t.Join(ctx, addr, protocol, target, j)
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
