package rdmatransport

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/hawser-transport/hawser/plugins/internal/memory"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/rail"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/sdk"
)

// What is published of a region: its address in this process, and the key of
// each device's registration, "mlx5_0=1a2b mlx5_1=3c4d". Both die with this
// instance of the transport, whose number they go with.
const (
	attrAddress = "address"
	attrKeys    = "keys"
)

// pinned is a region's registration with each device that took it.
type pinned struct {
	address uint64
	mrs     map[*device]verbs.MR
}

// Register implements [sdk.Mover]: it maps the region and registers it with
// every device, which locks its memory once for each.
func (t *Transport) Register(ctx context.Context, r sdk.Region) (sdk.Attributes, error) {
	end, err := t.life.Begin()
	if err != nil {
		if r.File != nil {
			_ = r.File.Close()
		}
		return nil, err
	}
	defer end()
	return t.Table.Register(ctx, r)
}

// pin registers a mapping. What one device refuses others carry.
func (t *Transport) pin(r *sdk.Region, bytes []byte) (memory.Pin, error) {
	p := &pinned{uint64(uintptr(unsafe.Pointer(&bytes[0]))), make(map[*device]verbs.MR)}
	access := verbs.RemoteRead
	if r.Writable {
		access |= verbs.LocalWrite | verbs.RemoteWrite
	}
	var failed []error
	for _, d := range t.devices {
		mr, err := d.register(bytes, access)
		if err != nil {
			failed = append(failed, fmt.Errorf("device %s: %w", d.name, advise(err)))
			continue
		}
		p.mrs[d] = mr
	}
	if len(p.mrs) == 0 {
		if err := errors.Join(failed...); !r.Writable && errors.Is(err, syscall.EFAULT) {
			return nil, sdk.Errorf(sdk.Unsupported, "region %v is read-only, which needs Linux 6.2 or later: %w", r.Capability, err)
		}
		return nil, sdk.Errorf(sdk.Unavailable, "region %v of %d bytes cannot be registered: %w", r.Capability, r.Length, errors.Join(failed...))
	}
	for _, err := range failed {
		t.log.Warn("a region is not reached over this device", "region", r.Capability, "bytes", r.Length, "error", err)
	}
	return p, nil
}

// register registers memory with the device.
func (d *device) register(bytes []byte, access verbs.Access) (verbs.MR, error) {
	if d.lost.Load() {
		return nil, errors.New("it is lost")
	}
	pd, err := d.domain()
	if err != nil {
		return nil, err
	}
	return pd.RegisterMemory(bytes, access)
}

// Attributes implements [memory.Pin].
func (p *pinned) Attributes() sdk.Attributes {
	var keys []string
	for d, mr := range p.mrs {
		keys = append(keys, d.name+"="+strconv.FormatUint(uint64(mr.RKey()), 16))
	}
	slices.Sort(keys)
	return sdk.Attributes{
		attrAddress: strconv.FormatUint(p.address, 16),
		attrKeys:    strings.Join(keys[:min(len(keys), rail.MaxPorts)], " "),
	}
}

// Release implements [memory.Pin]. Once it has returned nil, no device reaches
// the memory any more.
func (p *pinned) Release() error {
	var errs []error
	for d, mr := range maps.Clone(p.mrs) {
		if err := mr.Close(); err != nil {
			errs = append(errs, fmt.Errorf("device %s: %w", d.name, err))
			continue
		}
		delete(p.mrs, d)
	}
	return errors.Join(errs...)
}

// reached is how a peer's region is reached: by its address there, and the key
// for each of the peer's devices.
type reached struct {
	address uint64
	keys    map[string]uint32
}

// read reads what a peer publishes of a region.
func read(said *sdk.RemoteRegion) (any, error) {
	bad := func(what string) (any, error) {
		return nil, sdk.Errorf(sdk.InvalidArgument, "region %v of %v: the attributes have no valid %s", said.Capability, said.Provider.Short(), what)
	}
	address, err := strconv.ParseUint(said.Attributes[attrAddress], 16, 64)
	if err != nil || address == 0 || address+said.Length < address {
		return bad(attrAddress)
	}
	r := &reached{address, make(map[string]uint32)}
	for _, text := range strings.Fields(said.Attributes[attrKeys]) {
		name, digits, _ := strings.Cut(text, "=")
		key, err := strconv.ParseUint(digits, 16, 32)
		if err != nil || name == "" || len(r.keys) == rail.MaxPorts {
			return bad(attrKeys)
		}
		r.keys[name] = uint32(key)
	}
	if len(r.keys) == 0 {
		return bad(attrKeys)
	}
	return r, nil
}
