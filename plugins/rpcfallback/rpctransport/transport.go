package rpctransport

import (
	"context"
	"encoding/json"
	"net"

	"google.golang.org/grpc"

	"github.com/hawser-transport/hawser/plugins/internal/memory"
	"github.com/hawser-transport/hawser/plugins/internal/streams"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
)

// Name is the transport's name on the wire.
const Name = "rpcfallback"

const version = "0.1.0"

// Transport is the rpcfallback transport. It implements [sdk.Mover], [sdk.Prober],
// [sdk.Drainer], [sdk.Keyed] and [sdk.Examiner].
type Transport struct {
	streams.Base[end]
	memory.Table

	// Set by Configure, which comes before everything else.
	settings settings
	gate     *gate
	server   *grpc.Server
}

// New makes a transport.
func New() sdk.Transport { return &Transport{Base: streams.NewBase[end]()} }

// Describe implements [sdk.Transport].
func (t *Transport) Describe() sdk.Description {
	return sdk.Description{
		Name: Name, Version: version, Contract: sdk.ContractVersion,
		Features:     []sdk.Feature{sdk.FeatureNotify, sdk.FeatureProbe, sdk.FeatureDrain, sdk.FeatureMove, sdk.FeatureKeys},
		Limits:       sdk.Limits{MaxFrame: maxFrame, InflightFrames: maxInflight, InflightBytes: inflightBytes},
		Move:         moveLimits(),
		ConfigSchema: schema(),
		SharedDevice: true,
		Listeners:    []sdk.ListenerSpec{{Name: streams.ListenerName, Key: streams.ListenerName, Default: streams.DefaultListen}},
	}
}

// Configure implements [sdk.Transport].
func (t *Transport) Configure(ctx context.Context, cfg sdk.Config) (sdk.Setup, error) {
	s, err := parseSettings(cfg.Settings)
	if err != nil {
		return sdk.Setup{}, err
	}
	return t.Listen(ctx, cfg, s, func(ln net.Listener) {
		t.settings = s
		t.gate, t.server = &gate{Listener: ln, done: t.Life.Done()}, newServer(t)
		// Serve returns when the listener is closed; why it did is known.
		t.Life.Tasks.Go(func() { _ = t.server.Serve(mtls.Listener(t.gate, t.Keys, protocol, t.gate.refused(t.Log))) })
	})
}

// Examine implements [sdk.Examiner].
func (t *Transport) Examine(_ context.Context, settings json.RawMessage) []sdk.Finding {
	s, err := parseSettings(settings)
	return streams.Examine(s, err)
}

// Drain implements [sdk.Drainer]. The listening socket, which another instance
// may share, lives on; only this instance's descriptor of it is closed.
func (t *Transport) Drain(context.Context) error { return t.Stop(func() { _ = t.gate.Close() }) }

// Close implements [sdk.Transport].
func (t *Transport) Close(ctx context.Context) error {
	if err := t.Life.Close(ctx, func() { t.server.Stop() }); err != nil {
		return err
	}
	return t.Table.Close(ctx)
}
