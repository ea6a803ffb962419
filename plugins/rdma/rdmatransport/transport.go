package rdmatransport

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/plugins/internal/lifecycle"
	"github.com/hawser-transport/hawser/plugins/internal/memory"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/rail"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/sdk"
)

// Name is the transport's name on the wire.
const Name = "rdma"

const version = "0.1.0"

// What is published to peers.
const (
	attrPorts       = "ports"
	attrIncarnation = "incarnation"
	attrInstance    = "instance"
)

// Transport is the rdma transport. It implements [sdk.Mover], [sdk.Drainer]
// and [sdk.Examiner].
type Transport struct {
	memory.Table
	provider    verbs.Provider
	life        *lifecycle.Life[*endpoint]
	generations bootstrap.Generations

	// Set by Configure, which comes before everything else.
	log         *slog.Logger
	settings    settings
	instance    uint64
	incarnation sdk.Incarnation
	host        string
	devices     []*device
	changed     func() // or nil

	closing sync.Mutex
	closed  bool
}

// New makes a transport on a provider's devices.
func New(p verbs.Provider) *Transport {
	t := &Transport{provider: p, life: lifecycle.New[*endpoint]()}
	t.Table.Pin, t.Table.Read = t.pin, read
	return t
}

// Describe implements [sdk.Transport].
func (t *Transport) Describe() sdk.Description {
	return sdk.Description{
		Name: Name, Version: version, Contract: sdk.ContractVersion,
		Features:     []sdk.Feature{sdk.FeatureNotify, sdk.FeatureMove, sdk.FeatureDrain},
		Limits:       sdk.Limits{MaxFrame: maxFrame, InflightFrames: maxOpen, InflightBytes: maxOpenBytes},
		Move:         moveLimits(),
		ConfigSchema: json.RawMessage(schema),
		SharedDevice: true,
	}
}

// Configure implements [sdk.Transport].
func (t *Transport) Configure(_ context.Context, cfg sdk.Config) (sdk.Setup, error) {
	s, err := parseSettings(cfg.Settings)
	if err != nil {
		return sdk.Setup{}, err
	}
	err = t.life.Open(func() error {
		t.log, t.settings, t.instance, t.incarnation = cfg.Log, s, cfg.Instance, cfg.Incarnation
		if t.log == nil {
			t.log = slog.New(slog.DiscardHandler)
		}
		t.changed = cfg.PathsChanged
		t.host, _ = os.Hostname() // for people
		return t.open()
	})
	if err != nil {
		return sdk.Setup{}, err
	}
	setup := sdk.Setup{Attributes: t.attributes()}
	for _, d := range t.devices {
		for _, p := range d.ports.list() {
			setup.Paths = append(setup.Paths, sdk.LocalPath{Name: p.Name(), Detail: p.detail() + "; memlock " + memlock()})
		}
	}
	return setup, nil
}

// open opens every device that the settings allow and that works. Without a
// usable port it fails, and says what is missing and what to do.
func (t *Transport) open() error {
	infos, err := t.provider.Devices()
	if err != nil {
		return sdk.Errorf(sdk.Unsupported, "rdma: %w", advise(err))
	}
	if absent := t.settings.absent(infos); len(absent) > 0 {
		return sdk.Errorf(sdk.Unsupported, "rdma: the settings name %s, and there is %s", strings.Join(absent, ", "), names(infos))
	}
	var troubles []error
	usable := false
	for _, info := range infos {
		d, err := t.openOne(info)
		if err != nil {
			troubles = append(troubles, fmt.Errorf("device %s: %w", info.Name, advise(err)))
			continue
		}
		if d == nil {
			continue
		}
		t.devices = append(t.devices, d)
		for _, p := range d.ports.list() {
			if p.usable() {
				usable = true
			} else {
				troubles = append(troubles, fmt.Errorf("port %s: %w", p.Name(), p.trouble))
			}
		}
	}
	if !usable {
		if len(troubles) == 0 {
			troubles = append(troubles, errors.New("no RDMA device: "+needDevice))
		} else { // there is something to mend, which the engine does not know
			t.log.Warn("there are RDMA devices, and none can be used: see `hawser doctor rdma`", "error", errors.Join(troubles...))
		}
		return sdk.Errorf(sdk.Unsupported, "rdma: %w", errors.Join(append(troubles, t.closeDevices())...))
	}
	for _, err := range troubles {
		t.log.Warn("not used", "error", err)
	}
	for _, d := range t.devices {
		d.tasks.Go(d.listen)
	}
	return nil
}

// openOne opens a device; nil if the settings leave it out.
func (t *Transport) openOne(info verbs.Info) (*device, error) {
	d, err := openDevice(t.provider, info, &t.settings, t.log, t.pathsChanged)
	if err != nil {
		return nil, err
	}
	if len(d.ports.list()) == 0 {
		return nil, d.dev.Close()
	}
	if err := d.try(); err != nil {
		return nil, errors.Join(err, d.dev.Close())
	}
	return d, nil
}

func names(infos []verbs.Info) string {
	if len(infos) == 0 {
		return "no device at all: " + needDevice
	}
	var s []string
	for _, i := range infos {
		s = append(s, i.Name)
	}
	return strings.Join(s, ", ")
}

// localPorts lists the ports that are wanted, in the order of the settings.
func (t *Transport) localPorts(want func(*localPort) bool) []rail.Port {
	var all []localPort
	for _, d := range t.devices {
		if d.lost.Load() {
			continue
		}
		for _, p := range d.ports.list() {
			if want(&p) {
				all = append(all, p)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b localPort) int { return cmp.Compare(a.rank, b.rank) })
	var out []rail.Port
	for _, p := range all[:min(len(all), rail.MaxPorts)] {
		out = append(out, p.Port)
	}
	return out
}

// attributes are what peers need to know: also of ports that are down now.
func (t *Transport) attributes() sdk.Attributes {
	return sdk.Attributes{
		attrPorts:       rail.Format(t.localPorts((*localPort).usable)),
		attrIncarnation: t.incarnation.String(),
		attrInstance:    strconv.FormatUint(t.instance, 10),
	}
}

// pathsChanged is called whenever Paths may answer differently from before,
// by a device's own goroutine, which Close waits for.
func (t *Transport) pathsChanged() {
	if t.changed != nil {
		t.changed()
	}
}

// Drain implements [sdk.Drainer].
func (t *Transport) Drain(context.Context) error { return t.life.Drain() }

// Close implements [sdk.Transport].
func (t *Transport) Close(ctx context.Context) error {
	if err := t.life.Close(ctx, func() {}); err != nil {
		return err
	}
	if err := t.Table.Close(ctx); err != nil {
		return err
	}
	if err := t.closeDevices(); err != nil {
		// What a device does not let go ends with the process.
		return sdk.Errorf(sdk.Busy, "rdma: %w", err)
	}
	return nil
}

// closeDevices closes them once, after the last endpoint.
func (t *Transport) closeDevices() error {
	t.closing.Lock()
	defer t.closing.Unlock()
	var errs []error
	if !t.closed {
		for _, d := range t.devices {
			errs = append(errs, d.close())
		}
	}
	t.closed = true
	return errors.Join(errs...)
}
