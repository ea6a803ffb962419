package sdk

import (
	"context"
	"os"
)

// Mover is the ability to move memory: to read and write ranges of a peer's
// regions, without its engine's or its application's doing.
//
// Ops travel over endpoints of their own: those with [Target.Use] [UseMemory].
// They are made like those for frames, by Connect and Accept, and each Frame
// that Send takes is an op, see [Op]. Its Completion says what became of it:
// Done, every byte is where it belongs, and visible there unless the transport
// says [MoveLimits.NeedsFlush]; NotPosted, no byte
// was touched; Unknown, some may have been, or still may be. Ops are done in
// any order, and independently: after one has failed the endpoint goes on. The
// passive end sends no ops, and neither end receives frames.
//
// What has no outcome when an endpoint ends is Unknown, and may be repeated
// elsewhere only once nothing can touch that memory any more. So when Ended is
// called, this instance has stopped, for good, doing anything for that
// endpoint: the active end reads and writes no byte of its regions for it and
// has no copy of its own under way, the passive end neither. The engine asks
// the peer's engine for the same (a fence) before it repeats a write that the
// peer's side carries out, see [MoveLimits.TargetWrites].
//
// An end with code [PluginExited] does not say so: it is that of a plugin whose
// process has broken off, and may still run. What has stopped then is known
// once that process has been reaped. A transport gives no end that code.
type Mover interface {
	// Paths and the making of endpoints are as for frames. A transport that
	// carries no frames does not list [FeatureNotify].
	Notifier

	// Register makes a region of the application's known: ops may name it as
	// their local side, and peers' ops as their remote side. It returns what
	// peers' transports need to reach it. Those of a restarted transport are
	// others: the engine registers all regions anew with it. A region that is
	// registered is an error with code [Busy], one of a kind that the
	// transport cannot reach with code [Unsupported].
	//
	// The transport closes r.File.
	Register(ctx context.Context, r Region) (Attributes, error)

	// Deregister forgets a region. No op that begins afterwards finds it:
	// they fail with [StaleCapability]. It returns nil once nothing of this
	// instance touches or maps the region any more, or is there to do so:
	// ops under way have ended. If ctx ends before, the error has code [Busy]
	// and says what is left; the engine calls again. A region that is not
	// registered is no error.
	Deregister(ctx context.Context, c Capability) error

	// Announce says what a peer's region is now, before the first op that
	// names it. Announcing the same again does nothing; another that has the
	// same base takes the place of the old one, see package mapping. It does
	// no I/O that takes long: importing waits for the first op.
	Announce(ctx context.Context, r RemoteRegion) error

	// Withdraw takes back what Announce said: of one region of a peer, or, if
	// c is zero, of all. It returns nil once this instance holds nothing of
	// it any more: no op under way, no mapping. If ctx ends before, the error
	// has code [Busy] and says what is left; the engine calls again. One that
	// was not announced is no error.
	Withdraw(ctx context.Context, provider Incarnation, c Capability) error
}

// Use says what an endpoint is for. Numbers are frozen.
type Use uint8

const (
	// UseFrames: it carries frames, both ways.
	UseFrames Use = 0
	// UseMemory: it carries ops, of the side that connected it.
	UseMemory Use = 1
)

// String returns the use's name.
func (u Use) String() string {
	switch u {
	case UseFrames:
		return "frames"
	case UseMemory:
		return "memory"
	default:
		return "use-" + itoa(int(u))
	}
}

// Valid reports whether the use is one of the two.
func (u Use) Valid() bool { return u <= UseMemory }

// MemoryKind says where a region's memory is. Numbers are frozen.
type MemoryKind uint8

const (
	// HostMemory is a memfd.
	HostMemory MemoryKind = 1
	// DeviceMemory is a GPU's.
	DeviceMemory MemoryKind = 2
)

// String returns the kind's name.
func (k MemoryKind) String() string {
	switch k {
	case HostMemory:
		return "host"
	case DeviceMemory:
		return "device"
	default:
		return "memory-kind-" + itoa(int(k))
	}
}

// Valid reports whether the kind is one of the two.
func (k MemoryKind) Valid() bool { return k == HostMemory || k == DeviceMemory }

// HandleKind says how device memory was exported. Numbers are frozen.
type HandleKind uint8

const (
	// NoHandle: host memory.
	NoHandle HandleKind = 0
	// FabricHandle is a CUDA fabric handle: 64 bytes, for any process of the
	// NVLink domain.
	FabricHandle HandleKind = 1
	// FileHandle is a file descriptor of CUDA's virtual memory management,
	// for processes of the same machine.
	FileHandle HandleKind = 2
	// IPCHandle is a CUDA IPC memory handle: 64 bytes, for processes of the
	// same machine.
	IPCHandle HandleKind = 3
)

// String returns the kind's name.
func (k HandleKind) String() string {
	switch k {
	case NoHandle:
		return "none"
	case FabricHandle:
		return "fabric"
	case FileHandle:
		return "fd"
	case IPCHandle:
		return "ipc"
	default:
		return "handle-kind-" + itoa(int(k))
	}
}

// Valid reports whether the kind is one of the four.
func (k HandleKind) Valid() bool { return k <= IPCHandle }

// HandleBytes is the size in bytes of fabric and IPC handles.
const HandleBytes = 64

// Region is memory of the application's, as the engine hands it to a
// transport.
type Region struct {
	// Capability is the region's identity, never zero.
	Capability Capability
	Kind       MemoryKind
	// Base is the address that stands in descriptors. It names a place, and
	// is never dereferenced.
	Base uint64
	// Length in bytes, at least 1; Base+Length does not wrap.
	Length uint64
	// Writable says that ops may write to it: a peer's writes, and the bytes
	// of own reads. File is open read-only otherwise.
	Writable bool
	// Device is the GPU's ordinal in the application's process, its UUID in
	// DeviceUUID. A transport finds the device by the UUID.
	Device     int
	DeviceUUID [16]byte
	// File is the memfd of host memory, or what was exported as [FileHandle].
	// The region begins at Offset of it, in bytes, and lies within it.
	File   *os.File
	Offset uint64
	// Handle is the exported handle: HandleBytes bytes for the other kinds.
	HandleKind HandleKind
	Handle     []byte
	// Allocation is the length in bytes of what the handle exports, from its
	// beginning; the region begins at Offset of it. 0 for host memory.
	Allocation uint64
}

// RemoteRegion is a peer's region, as its descriptor says. It comes from the
// peer and is untrusted.
type RemoteRegion struct {
	// Provider is whose it is, Instance the peer's instance of this transport
	// that Attributes are of. An endpoint to another instance must not use
	// them.
	Provider Incarnation
	Instance uint64
	// Capability is zero in descriptors of older peers: such a region is
	// named by Base in ops.
	Capability Capability
	Kind       MemoryKind
	Base       uint64
	Length     uint64
	Writable   bool
	// Attributes are what the peer's transport returned from Register.
	Attributes Attributes
	// Version is the descriptor's. It grows with every change of it.
	Version uint64
}

// MoveLimits says what a transport with FeatureMove can do. It is part of its
// description.
type MoveLimits struct {
	// MaxOp is the largest op in bytes. The engine cuts larger ones up, into
	// ops of this size unless its configuration wants smaller ones: choose what
	// is moved best. It is also what is moved again when a path fails.
	// Default 4 MiB, at most [MaxOpLimit].
	MaxOp int
	// Inflight is how many ops of one endpoint may be without an outcome, and
	// InflightBytes how many bytes they may have; one op of any allowed size
	// always fits. Defaults 64 and 64 MiB, at most 1 Gi each.
	Inflight      int
	InflightBytes int
	// Local and Remote are the kinds of memory that ops may name as their own
	// side and as the peer's. Default: host memory.
	Local, Remote []MemoryKind
	// NeedsFlush says that a write which is Done may not be visible yet to the
	// peer's processor: the engine ends a batch with an op of kind [Flush] on
	// each endpoint that it wrote over.
	NeedsFlush bool
	// TargetWrites says that the target's transport or device carries out
	// writes: such a write may take effect after its endpoint has ended here,
	// until it has ended there, too.
	TargetWrites bool
	// Parallel is how many endpoints for memory to the same peer and path the
	// engine may have at a time: a stream socket moves more over several.
	// Default 1, at most [MaxParallel].
	Parallel int
}

// The largest [MoveLimits.MaxOp] in bytes and [MoveLimits.Parallel].
const (
	MaxOpLimit  = 1 << 30
	MaxParallel = 8
)

// WithDefaults returns l with zero fields replaced by their defaults.
func (l MoveLimits) WithDefaults() MoveLimits {
	if l.MaxOp == 0 {
		l.MaxOp = 4 << 20
	}
	if l.Inflight == 0 {
		l.Inflight = 64
	}
	if l.InflightBytes == 0 {
		l.InflightBytes = 64 << 20
	}
	if len(l.Local) == 0 {
		l.Local = []MemoryKind{HostMemory}
	}
	if len(l.Remote) == 0 {
		l.Remote = []MemoryKind{HostMemory}
	}
	if l.Parallel == 0 {
		l.Parallel = 1
	}
	return l
}
