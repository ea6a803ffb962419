//go:build linux

package mnnvltransport

import (
	"context"
	"crypto/subtle"
	"maps"
	"math"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/plugins/internal/memory"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mapping"
)

// maxRegions bounds the application's regions and, apart, those of all peers.
const maxRegions = 64 << 10

// region is one of the application's.
type region struct {
	sdk.Region
	memory.Uses         // by ops, under the lock of regions
	device      *device // that copies for it
	// key and export are device memory's, which is another process's.
	key    mapping.Key
	export export
	// mapped is host memory, whole pages, registered with the device; the region
	// is at at.
	mapped     []byte
	registered bool
	at         cuda.Ptr
	releasing  sync.Mutex
}

// regions are the application's, by capability and, those with a descriptor, by
// ticket.
type regions struct {
	mu      sync.RWMutex
	byCap   map[sdk.Capability]*region
	tickets map[ticket]*region
	shared  map[[sdk.HandleBytes]byte]*sharing
	bases   uint64
}

// sharing is how many regions one IPC handle has, and the id that says that they
// are of one allocation.
type sharing struct {
	id      allocationID
	regions int
}

func (rs *regions) init() {
	rs.byCap, rs.tickets = map[sdk.Capability]*region{}, map[ticket]*region{}
	rs.shared = map[[sdk.HandleBytes]byte]*sharing{}
}

// take finds a region for an op, which releases it.
func (rs *regions) take(c sdk.Capability) *region {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.byCap[c]
	if r == nil || !r.Begin() {
		return nil
	}
	return r
}

func (rs *regions) release(r *region) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r.End()
}

// leave lets no op take a region any more, and waits for those that have.
func (rs *regions) leave(ctx context.Context, r *region) error {
	rs.mu.Lock()
	free := r.Leave()
	rs.mu.Unlock()
	if memory.Over(ctx, free) {
		return nil
	}
	rs.mu.RLock()
	defer rs.mu.RUnlock()
	return sdk.Errorf(sdk.Busy, "mnnvl: %d ops of region %v have not ended", r.Count(), r.Capability)
}

// reserve keeps a capability's place for the region that publish puts there.
func (rs *regions) reserve(c sdk.Capability) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	_, taken := rs.byCap[c]
	switch {
	case taken:
		return sdk.Errorf(sdk.Busy, "mnnvl: region %v is registered, or has not gone yet", c)
	case len(rs.byCap) >= maxRegions:
		return sdk.Errorf(sdk.Busy, "mnnvl: %d regions are registered, the limit", maxRegions)
	}
	rs.byCap[c] = nil
	return nil
}

// publish lets ops find a region, and peers its descriptor.
func (rs *regions) publish(r *region) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.byCap[r.Capability] = r
	if r.File != nil {
		rs.tickets[r.export.ticket] = r
	}
}

// identify gives an IPC region the id of its allocation, until remove.
func (rs *regions) identify(r *region) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	s := rs.shared[r.export.handle]
	if s == nil {
		s = &sharing{id: allocationID(newTicket())}
		rs.shared[r.export.handle] = s
	}
	s.regions++
	r.export.id = s.id
}

// nextBase is a base for a region's mapping here. The application's own repeat:
// two registrations of the same memory are two.
func (rs *regions) nextBase() uint64 {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.bases++
	return rs.bases
}

func (rs *regions) remove(r *region) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.byCap, r.Capability)
	delete(rs.tickets, r.export.ticket)
	if r.export.id == (allocationID{}) {
		return
	}
	// The application may free the memory once its last region is gone. What is
	// there then may have the same handle, and gets another id.
	if s := rs.shared[r.export.handle]; s.regions == 1 {
		delete(rs.shared, r.export.handle)
	} else {
		s.regions--
	}
}

func (rs *regions) get(c sdk.Capability) *region {
	rs.mu.RLock()
	defer rs.mu.RUnlock()
	return rs.byCap[c]
}

// all returns them, when none is being registered.
func (rs *regions) all() []*region {
	rs.mu.RLock()
	defer rs.mu.RUnlock()
	return slices.Collect(maps.Values(rs.byCap))
}

// descriptor returns a duplicate of a region's descriptor for whoever has its
// ticket and knows its capability; a peer whose descriptor of the region is of
// an older version knows none.
func (rs *regions) descriptor(t ticket, c sdk.Capability) (*os.File, error) {
	rs.mu.RLock()
	defer rs.mu.RUnlock()
	r := rs.tickets[t]
	if r == nil || !c.IsZero() && subtle.ConstantTimeCompare(c[:], r.Capability[:]) != 1 {
		return nil, sdk.Errorf(sdk.StaleCapability, "mnnvl: no region has this ticket and capability %v", c)
	}
	// The file is closed only after the region was removed.
	fd, err := unix.FcntlInt(r.File.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, sdk.Errorf(sdk.Unavailable, "mnnvl: the descriptor of region %v: %w", c, err)
	}
	return os.NewFile(uintptr(fd), "device memory"), nil
}

// Register implements [sdk.Mover].
func (t *Transport) Register(_ context.Context, from sdk.Region) (sdk.Attributes, error) {
	attrs, err := t.register(from)
	if err != nil && from.File != nil {
		_ = from.File.Close()
	}
	return attrs, err
}

func (t *Transport) register(from sdk.Region) (sdk.Attributes, error) {
	end, err := t.Life.Begin() // Close gives all regions back, after this
	if err != nil {
		return nil, err
	}
	defer end()
	if err := from.Check(); err != nil {
		return nil, err
	}
	r := &region{Region: from}
	if err := t.regions.reserve(r.Capability); err != nil {
		return nil, err
	}
	attrs, err := t.prepare(r)
	if err != nil {
		t.regions.remove(r)
		return nil, err
	}
	t.regions.publish(r)
	return attrs, nil
}

// prepare finds the device of a region and makes it ready for ops.
func (t *Transport) prepare(r *region) (sdk.Attributes, error) {
	if r.Kind == sdk.HostMemory {
		r.device = t.devices[0]
		return sdk.Attributes{}, r.mapHost()
	}
	for _, d := range t.devices {
		if d.info.UUID == cuda.UUID(r.DeviceUUID) {
			r.device = d
		}
	}
	if r.device == nil {
		return nil, sdk.Errorf(sdk.Unsupported, "mnnvl: region %v is on %s, which this plugin does not have: see its setting devices, and CUDA_VISIBLE_DEVICES",
			r.Capability, cuda.UUID(r.DeviceUUID))
	}
	r.export = export{
		kind: kindOf(r.HandleKind), offset: r.Offset, allocation: r.Allocation,
		machine: t.machine, fabric: r.device.place.fabric,
	}
	copy(r.export.handle[:], r.Handle)
	if r.File != nil {
		r.export.ticket, r.export.door = newTicket(), t.door.name
	}
	if r.export.kind == cuda.IPC {
		t.regions.identify(r)
	}
	r.key = mapping.Key{Provider: t.self, Base: t.regions.nextBase(), Capability: r.Capability}
	return r.export.attributes(), r.announce()
}

// announce tells the device's cache of the region; it may have to be told again.
func (r *region) announce() error {
	return r.device.cache.Announce(r.export.source(r.key, r.Length, r.Writable, 1))
}

// mapHost maps host memory and registers it with the device, so that it can be
// copied to and from without the processor.
func (r *region) mapHost() error {
	page := uint64(os.Getpagesize())
	begin := r.Offset / page * page
	if r.Offset+r.Length > math.MaxInt64-page {
		return sdk.Errorf(sdk.InvalidArgument, "mnnvl: region %v: %d bytes at %d are no range of a file", r.Capability, r.Length, r.Offset)
	}
	prot := unix.PROT_READ
	if r.Writable {
		prot |= unix.PROT_WRITE
	} else if !r.device.info.ReadOnlyHost {
		return sdk.Errorf(sdk.Unsupported, "mnnvl: region %v is read-only, and GPU %d cannot register such host memory: register it writable", r.Capability, r.device.info.Ordinal)
	}
	var at unix.Stat_t
	if err := unix.Fstat(int(r.File.Fd()), &at); err != nil {
		return sdk.Errorf(sdk.InvalidArgument, "mnnvl: region %v: %w", r.Capability, err)
	}
	if uint64(at.Size) < r.Offset+r.Length {
		return sdk.Errorf(sdk.InvalidArgument, "mnnvl: region %v: %d bytes at %d are not within the file's %d", r.Capability, r.Length, r.Offset, at.Size)
	}
	size := (r.Offset + r.Length - begin + page - 1) / page * page
	mem, err := unix.Mmap(int(r.File.Fd()), int64(begin), int(size), prot, unix.MAP_SHARED)
	if err != nil {
		return sdk.Errorf(sdk.Unsupported, "mnnvl: cannot map region %v, %d bytes of host memory: %w", r.Capability, r.Length, err)
	}
	err = r.device.imports.Do(func(c cuda.Context) error { return c.RegisterHost(mem, !r.Writable) })
	if err != nil {
		_ = unix.Munmap(mem)
		return sdk.Errorf(codeOf(err), "mnnvl: region %v, %d bytes of host memory: %w", r.Capability, r.Length, err)
	}
	r.mapped, r.registered, r.at = mem, true, cuda.Host(mem)+cuda.Ptr(r.Offset-begin)
	_ = r.File.Close()
	r.File = nil
	return nil
}

// unmapHost may be called again after an error.
func (r *region) unmapHost() error {
	if r.registered {
		err := r.device.imports.Do(func(c cuda.Context) error { return c.UnregisterHost(r.mapped) })
		if err != nil && !cuda.IsLost(err) {
			return err
		}
		r.registered = false
	}
	if r.mapped == nil {
		return nil
	}
	err := unix.Munmap(r.mapped)
	if err == nil {
		r.mapped = nil
	}
	return err
}

// Deregister implements [sdk.Mover].
func (t *Transport) Deregister(ctx context.Context, c sdk.Capability) error {
	if r := t.regions.get(c); r != nil {
		return t.release(ctx, r)
	}
	return nil
}

// release waits for the ops of a region and gives back what there is of it.
func (t *Transport) release(ctx context.Context, r *region) error {
	if err := t.regions.leave(ctx, r); err != nil {
		return err
	}
	r.releasing.Lock()
	defer r.releasing.Unlock()
	if t.regions.get(r.Capability) != r {
		return nil // another call was quicker
	}
	var err error
	if r.Kind == sdk.HostMemory {
		err = r.unmapHost()
	} else {
		err = r.device.cache.Withdraw(ctx, r.key)
	}
	if err != nil {
		return sdk.Errorf(sdk.Busy, "mnnvl: region %v: %w", r.Capability, err)
	}
	t.regions.remove(r)
	if r.File != nil {
		_ = r.File.Close()
	}
	return nil
}

// releaseAll gives all regions back, when there are no endpoints any more, and
// there will be no others.
func (t *Transport) releaseAll(ctx context.Context) error {
	for _, r := range t.regions.all() {
		err := t.release(ctx, r)
		if err != nil && ctx.Err() == nil {
			err = t.release(ctx, r) // what the driver refuses once
		}
		if err != nil {
			return err
		}
	}
	return nil
}
