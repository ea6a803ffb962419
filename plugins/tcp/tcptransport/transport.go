package tcptransport

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/address"
	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/plugins/internal/lifecycle"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
)

// Name is the transport's name on the wire.
const Name = "tcp"

const version = "0.1.0"

// protocol is what TLS connections are negotiated for.
const protocol = "hawser-tcp/1"

// Transport is the tcp transport. It implements [sdk.Notifier], [sdk.Prober],
// [sdk.Drainer] and [sdk.Keyed].
type Transport struct {
	life        *lifecycle.Life[*endpoint]
	base        time.Time
	chunks      chunks
	generations bootstrap.Generations

	// Set by Configure, which comes before everything else.
	log      *slog.Logger
	keys     *mtls.Keyring // nil without TLS
	settings settings
	instance uint64
	addr     string
	pending  *bootstrap.Pending[*endpoint]
	doors    *doors
}

// New makes a transport.
func New() sdk.Transport {
	return &Transport{life: lifecycle.New[*endpoint](), base: time.Now()}
}

// Describe implements [sdk.Transport].
func (t *Transport) Describe() sdk.Description {
	return sdk.Description{
		Name: Name, Version: version, Contract: sdk.ContractVersion,
		Features:     []sdk.Feature{sdk.FeatureNotify, sdk.FeatureProbe, sdk.FeatureDrain, sdk.FeatureKeys},
		Limits:       sdk.Limits{MaxFrame: maxFrame, InflightFrames: maxInflight, InflightBytes: 4 << 20},
		ConfigSchema: json.RawMessage(schema),
		SharedDevice: true,
		Listeners:    []sdk.ListenerSpec{{Name: listenerName, Key: listenerName, Default: defaultListen}},
	}
}

// Configure implements [sdk.Transport].
func (t *Transport) Configure(ctx context.Context, cfg sdk.Config) (sdk.Setup, error) {
	s, err := parseSettings(cfg.Settings)
	if err != nil {
		return sdk.Setup{}, err
	}
	keys, err := mtls.Ring(cfg.Keys)
	if err != nil {
		return sdk.Setup{}, err
	}
	ln, err := address.Open(ctx, cfg, listenerName, s.Listen)
	if err != nil {
		return sdk.Setup{}, err
	}
	addr, err := address.Published(ln.Addr(), s.Advertise)
	if err != nil {
		_ = ln.Close()
		return sdk.Setup{}, err
	}
	err = t.life.Open(func() error {
		t.keys = keys
		t.log, t.settings, t.instance, t.addr = cfg.Log, s, cfg.Instance, addr
		if t.log == nil {
			t.log = slog.New(slog.DiscardHandler)
		}
		t.pending = bootstrap.NewPending[*endpoint](cfg.Instance)
		t.doors = newDoors(t, ln)
		t.life.Tasks.Go(t.doors.serve)
		return nil
	})
	if err != nil {
		_ = ln.Close()
		return sdk.Setup{}, err
	}
	return sdk.Setup{
		Attributes: sdk.Attributes{address.Attribute: addr},
		Paths:      []sdk.LocalPath{{Name: sdk.MainPath, Detail: "listening on " + ln.Addr().String() + ", reached at " + addr}},
	}, nil
}

// SetKeys implements [sdk.Keyed].
func (t *Transport) SetKeys(_ context.Context, k sdk.Keys) error {
	if err := t.life.Running(); err != nil {
		return err
	}
	return t.keys.Replace(k)
}

// Drain implements [sdk.Drainer]. Endpoints whose peer has not arrived end
// now: its connection would reach another instance, if any.
func (t *Transport) Drain(context.Context) error {
	if err := t.life.Drain(); err != nil {
		return err
	}
	t.doors.close()
	for _, e := range t.pending.All() {
		e.out.end(sdk.Errorf(sdk.Unavailable, "draining before %s has connected", e.peer))
	}
	return nil
}

// Close implements [sdk.Transport].
func (t *Transport) Close(ctx context.Context) error {
	return t.life.Close(ctx, func() { t.doors.close() })
}
