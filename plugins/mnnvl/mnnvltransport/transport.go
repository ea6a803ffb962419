//go:build linux

package mnnvltransport

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/plugins/internal/streams"
	"github.com/hawser-transport/hawser/plugins/mnnvl/internal/nvml"
	"github.com/hawser-transport/hawser/sdk"
)

// Name is the transport's name on the wire.
const Name = "mnnvl"

const version = "0.1.0"

// protocol is what TLS connections are negotiated for.
const protocol = "hawser-mnnvl/1"

// limits are the transport's. A copy of 128 MiB takes 0.35 milliseconds over
// NVLink, so that what is between two of them costs little; two are under way at
// a time, so that nothing is.
var limits = sdk.MoveLimits{
	MaxOp: 128 << 20, Inflight: 256, InflightBytes: 512 << 20,
	Local: []sdk.MemoryKind{sdk.DeviceMemory, sdk.HostMemory}, Remote: []sdk.MemoryKind{sdk.DeviceMemory},
}.WithDefaults()

const needGPU = "run this node on a machine with NVIDIA GPUs, or leave mnnvl out of transports; " +
	"in a container give it the GPUs (--gpus) and NVIDIA_DRIVER_CAPABILITIES=compute,utility"

// Transport is the mnnvl transport. It implements [sdk.Mover], [sdk.Drainer],
// [sdk.Keyed] and [sdk.Examiner].
type Transport struct {
	streams.Base[*endpoint]
	driver cuda.Driver
	gpus   nvml.Reader
	// Lost, if set before Configure, is called when a device's context is lost:
	// nothing works on it any more before the process has ended.
	Lost func(error)

	addressOnly bool // see the constant
	// self stands for this process's application in the caches.
	self    sdk.Incarnation
	regions regions
	remotes remotes
	handles handles

	// Set by Configure, which comes before everything else.
	settings settings
	machine  string
	devices  []*device
	door     *door
	doors    *streams.Doors[*endpoint]

	closing sync.Mutex
	closed  int // devices, the first ones
}

// New makes a transport of a driver's GPUs, whose links the reader knows.
func New(d cuda.Driver, gpus nvml.Reader) *Transport {
	t := &Transport{Base: streams.NewBase[*endpoint](), driver: d, gpus: gpus, addressOnly: addressOnly}
	_, _ = rand.Read(t.self[:]) // never fails
	t.regions.init()
	t.remotes.init()
	t.handles.init(t.self)
	return t
}

// Describe implements [sdk.Transport].
func (t *Transport) Describe() sdk.Description {
	return sdk.Description{
		Name: Name, Version: version, Contract: sdk.ContractVersion,
		Features:     []sdk.Feature{sdk.FeatureDrain, sdk.FeatureMove, sdk.FeatureKeys},
		Move:         limits,
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
	if t.settings, t.handles.incarnation = s, cfg.Incarnation; t.Log == nil {
		t.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Log != nil {
		t.Log = cfg.Log
	}
	if err := t.open(); err != nil {
		return sdk.Setup{}, errors.Join(err, t.closeDevices(ctx))
	}
	setup, err := t.Listen(ctx, cfg, s.Settings, func(ln net.Listener) {
		t.doors = streams.OpenDoors(&t.Base, ln, protocol, streams.Milliseconds(s.HandshakeTimeoutMS))
	})
	if err != nil {
		return sdk.Setup{}, errors.Join(err, t.closeDevices(ctx))
	}
	t.publish(setup.Attributes)
	for _, d := range t.devices {
		setup.Paths = append(setup.Paths, sdk.LocalPath{Name: d.info.UUID.String(), Detail: d.String()})
	}
	return setup, nil
}

// open opens the devices that the settings allow and that work, and the door.
// Without one it fails, and says what is missing and what to do.
func (t *Transport) open() error {
	infos, err := t.driver.Devices()
	if err != nil {
		return sdk.Errorf(sdk.Unsupported, "mnnvl: %w", err)
	}
	chosen, absent := t.settings.choose(infos)
	switch {
	case len(infos) == 0:
		return sdk.Errorf(sdk.Unsupported, "mnnvl: there is no GPU: %s", needGPU)
	case len(absent) > 0:
		return sdk.Errorf(sdk.Unsupported, "mnnvl: the setting devices names %s, and there is %s", strings.Join(absent, ", "), names(infos))
	}
	if t.machine, err = machineID(); err != nil {
		return sdk.Errorf(sdk.Unsupported, "mnnvl: %w", err)
	}
	fabrics, err := t.fabrics()
	if err != nil {
		t.Log.Warn("what NVLink connects is not known: peers on other machines are not reached", "error", err)
	}
	var troubles []error
	for _, info := range chosen {
		d, err := t.openDevice(info, fabrics[info.UUID].Fabric)
		if err != nil {
			troubles = append(troubles, err)
			continue
		}
		t.devices = append(t.devices, d)
	}
	if len(t.devices) == 0 {
		return sdk.Errorf(sdk.Unsupported, "mnnvl: no GPU can be used: %w", errors.Join(troubles...))
	}
	for _, err := range troubles {
		t.Log.Warn("a GPU is not used", "error", err)
	}
	t.door, err = openDoor(t.regions.descriptor)
	return err
}

// fabrics is what the management library knows, by UUID.
func (t *Transport) fabrics() (map[cuda.UUID]nvml.GPU, error) {
	gpus, err := t.gpus.GPUs()
	known := map[cuda.UUID]nvml.GPU{}
	for _, g := range gpus {
		known[g.UUID] = g
	}
	return known, err
}

func names(infos []cuda.Info) string {
	var s []string
	for _, i := range infos {
		s = append(s, fmt.Sprintf("%d (%s)", i.Ordinal, i.UUID))
	}
	return strings.Join(s, ", ")
}

// machineID is the same for every process of a machine, containers included,
// until it boots again.
func machineID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// attrFabrics are the fabrics of an instance's devices.
const attrFabrics = "fabrics"

// publish adds what peers need to know whether they can reach this instance.
func (t *Transport) publish(a sdk.Attributes) {
	a[attrMachine] = t.machine
	var fabrics []string
	for _, d := range t.devices {
		if f := formatFabric(d.place.fabric); f != "" {
			fabrics = append(fabrics, f)
		}
	}
	if len(fabrics) > 0 {
		a[attrFabrics] = strings.Join(fabrics, ",")
	}
}

// meets reports whether an instance that published this may have memory that a
// device of this place can map.
func (p place) meets(remote sdk.Attributes) bool {
	if remote[attrMachine] == p.machine {
		return true
	}
	for _, s := range strings.Split(remote[attrFabrics], ",") {
		if f, err := parseFabric(s); err == nil && p.fabric.Reaches(f) {
			return true
		}
	}
	return false
}

// lose is called when a device's context is lost.
func (t *Transport) lose(d *device, err error) {
	t.Log.Error("the context of a GPU is lost", "gpu", d.info.Ordinal, "error", err)
	if t.Lost != nil {
		t.Lost(err)
	}
}

// Drain implements [sdk.Drainer].
func (t *Transport) Drain(context.Context) error { return t.Stop(t.doors.Close) }

// Close implements [sdk.Transport].
func (t *Transport) Close(ctx context.Context) error {
	if err := t.Life.Close(ctx, func() { t.doors.Close() }); err != nil {
		return err
	}
	return t.closeDevices(ctx)
}

// closeDevices gives everything back, when there are no endpoints any more. It
// goes on where it failed.
func (t *Transport) closeDevices(ctx context.Context) error {
	t.closing.Lock()
	defer t.closing.Unlock()
	if t.door != nil {
		t.door.close()
	}
	if err := t.releaseAll(ctx); err != nil {
		return err
	}
	for _, d := range t.devices[t.closed:] {
		if err := d.close(ctx); err != nil {
			return sdk.Errorf(sdk.Busy, "mnnvl: GPU %d: %w", d.info.Ordinal, err)
		}
		t.closed++
	}
	return nil
}
