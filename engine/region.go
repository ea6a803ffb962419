package engine

import (
	"os"
	"slices"
	"sync/atomic"

	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
)

// Capability is the identity of one publication of a region. Who knows it may
// use the region as its permissions say.
type Capability = sdk.Capability

// RegionOptions shape a region. The zero value is one that peers may read and
// write.
type RegionOptions struct {
	// ReadOnly keeps peers, and this engine's own reads, from writing to the
	// region: transports get it read-only. The application may write to it.
	ReadOnly bool
	// Private keeps the region out of the descriptor: only this engine's own
	// transfers use it.
	Private bool
}

// Region is memory that transports can reach: the local side of this engine's
// transfers and, unless it is private, the remote side of its peers'. Each
// registration has an identity of its own, see [Capability]. It is in use until
// [Region.Close] has returned nil. Its methods are safe for concurrent use.
type Region struct {
	m          *memory
	capability sdk.Capability
	opts       RegionOptions
	region     sdk.Region // without the file
	bytes      []byte     // the mapping, nil for device memory
	unmap      func() error

	shut atomic.Bool // Close was called
	// known lists the instances that have the region; it is replaced, never
	// changed.
	known   atomic.Pointer[[]*pluginhost.Instance]
	closing chan struct{} // a token: one Close at a time

	// Guarded by the memory's lock.
	file      *os.File // what transports get copies of, or nil
	at        map[*pluginhost.Instance]*registration
	abandoned []*pluginhost.Instance // that were lost, and are not gone, with the region
	published uint64                 // since which version it is in the descriptor
	withdrawn bool                   // it is not in the descriptor any more
	released  bool                   // nothing of ours can touch it any more
	held      bool                   // that its Close waits was told
}

// Bytes is the region's memory, nil for a GPU's. It must not be touched once
// Close has been called; a peer may read or write it at any time before.
func (r *Region) Bytes() []byte { return r.bytes }

// Address is what peers name the region's first byte by, and Len its length in
// bytes.
func (r *Region) Address() uint64 { return r.region.Base }

// Len is the region's length in bytes.
func (r *Region) Len() uint64 { return r.region.Length }

// Capability is this registration's identity.
func (r *Region) Capability() Capability { return r.capability }

// knownTo reports whether an instance has the region: until then it would
// refuse an op that names it.
func (r *Region) knownTo(inst *pluginhost.Instance) bool {
	return slices.Contains(*r.known.Load(), inst)
}

// knowLocked takes in which instances have the region. The memory's lock is
// held.
func (r *Region) knowLocked() {
	var known []*pluginhost.Instance
	for _, inst := range r.m.movers {
		if g := r.at[inst]; g != nil && isClosed(g.done) && g.err == nil {
			known = append(known, inst)
		}
	}
	r.known.Store(&known)
}

// exported reports whether other processes map the memory by a handle, which
// may outlast their silence.
func (r *Region) exported() bool { return r.region.HandleKind != sdk.NoHandle }

// export is what one transport gets: it closes the file.
func (r *Region) export() (sdk.Region, error) {
	x := r.region
	x.Capability, x.Writable = r.capability, !r.opts.ReadOnly
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	if r.region.File == nil {
		return x, nil
	}
	if r.file == nil {
		return x, sdk.Errorf(sdk.Closed, "register memory: the region is closed")
	}
	var err error
	x.File, err = duplicate(r.file)
	return x, err
}

// closeFile gives a region's file back. A transport that has just come up may be
// getting its copy.
func (m *memory) closeFile(r *Region) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r.closeFileLocked()
}

func (r *Region) closeFileLocked() {
	if r.file != nil {
		_ = r.file.Close()
		r.file = nil
	}
}

// ExportedMemory is a GPU's memory as its owner has exported it.
type ExportedMemory struct {
	// HandleKind says how: as a fabric handle, a file descriptor, or a CUDA
	// IPC handle.
	HandleKind sdk.HandleKind
	// Handle is a fabric or IPC handle, of 64 bytes, File what was exported as
	// a file descriptor, of which RegisterHandle makes a copy.
	Handle []byte
	File   *os.File
	// Address is the memory's in the exporting process, Length its size in
	// bytes; it begins Offset bytes after the beginning of what was exported,
	// which has Allocation bytes.
	Address, Length, Offset, Allocation uint64
	// Device is the GPU's ordinal in this process, DeviceUUID its identity.
	Device     int
	DeviceUUID [16]byte
}

func (x *ExportedMemory) check() error {
	bad := func(format string, args ...any) error {
		return sdk.Errorf(sdk.InvalidArgument, "register exported memory: "+format, args...)
	}
	switch {
	case x.Length == 0 || x.Address+x.Length < x.Address:
		return bad("%d bytes at %#x", x.Length, x.Address)
	case x.Offset+x.Length < x.Offset || x.Offset+x.Length > x.Allocation:
		return bad("%d bytes at offset %d are not within the exported %d", x.Length, x.Offset, x.Allocation)
	case x.HandleKind == sdk.FileHandle:
		if x.File == nil || x.Handle != nil {
			return bad("a handle of kind fd is a File and no Handle")
		}
	case x.HandleKind == sdk.FabricHandle || x.HandleKind == sdk.IPCHandle:
		if x.File != nil || len(x.Handle) != sdk.HandleBytes {
			return bad("a handle of kind %v has %d bytes and no File, not %d", x.HandleKind, sdk.HandleBytes, len(x.Handle))
		}
	default:
		return bad("there is no handle of kind %v", x.HandleKind)
	}
	return nil
}
