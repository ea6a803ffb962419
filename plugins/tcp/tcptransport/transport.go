package tcptransport

import (
	"context"
	"encoding/json"
	"net"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/memory"
	"github.com/hawser-transport/hawser/plugins/internal/streams"
	"github.com/hawser-transport/hawser/sdk"
)

// Name is the transport's name on the wire.
const Name = "tcp"

const version = "0.1.0"

// protocol is what TLS connections are negotiated for.
const protocol = "hawser-tcp/1"

// Transport is the tcp transport. It implements [sdk.Mover], [sdk.Prober],
// [sdk.Drainer], [sdk.Keyed] and [sdk.Examiner].
type Transport struct {
	streams.Base[end]
	memory.Table
	base   time.Time
	chunks chunks

	// Set by Configure, which comes before everything else.
	settings settings
	doors    *streams.Doors[end]
}

// New makes a transport.
func New() sdk.Transport {
	return &Transport{Base: streams.NewBase[end](), base: time.Now()}
}

// Describe implements [sdk.Transport].
func (t *Transport) Describe() sdk.Description {
	return sdk.Description{
		Name: Name, Version: version, Contract: sdk.ContractVersion,
		Features:     []sdk.Feature{sdk.FeatureNotify, sdk.FeatureProbe, sdk.FeatureDrain, sdk.FeatureMove, sdk.FeatureKeys},
		Limits:       sdk.Limits{MaxFrame: maxFrame, InflightFrames: maxInflight, InflightBytes: 4 << 20},
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
	return t.Listen(ctx, cfg, s.Settings, func(ln net.Listener) {
		t.settings = s
		t.doors = streams.OpenDoors(&t.Base, ln, protocol, streams.Milliseconds(s.HandshakeTimeoutMS))
	})
}

// Examine implements [sdk.Examiner].
func (t *Transport) Examine(_ context.Context, settings json.RawMessage) []sdk.Finding {
	s, err := parseSettings(settings)
	return streams.Examine(s.Settings, err)
}

// Drain implements [sdk.Drainer].
func (t *Transport) Drain(context.Context) error { return t.Stop(t.doors.Close) }

// Close implements [sdk.Transport].
func (t *Transport) Close(ctx context.Context) error {
	if err := t.Life.Close(ctx, func() { t.doors.Close() }); err != nil {
		return err
	}
	return t.Table.Close(ctx)
}
