package cuda

import (
	"encoding/hex"
	"fmt"
)

// Driver finds and opens devices.
type Driver interface {
	// Devices lists the devices of this machine that the process may see, by
	// ordinal. The first call initialises the driver, which takes up to
	// seconds. It fails with a [*MissingError] where the library or the
	// kernel's driver is missing; no devices are an empty list.
	Devices() ([]Info, error)

	// Open retains the device's primary context and starts the device's
	// thread. It fails with a [*MissingError] if the device is another
	// process's alone (compute mode exclusive).
	Open(ordinal int) (Device, error)

	// Where says on which device the memory at p is, without opening one. It
	// fails with [InvalidValue], and says what is there instead, if it is not
	// device memory: managed memory, which moves, is not.
	Where(p Ptr) (ordinal int, err error)
}

// Info is what is known of a device without opening it.
type Info struct {
	// Ordinal is this process's number for the device. It means nothing to
	// another process: name a device by its UUID.
	Ordinal int
	Name    string
	UUID    UUID
	Mode    ComputeMode

	// VMM: the calls from Create to SetAccess work.
	VMM bool
	// PosixFD and Fabric are the driver's attributes: it knows the kind. Create
	// may still refuse it, as NotPermitted where no IMEX channel was granted:
	// only trying tells ([Allocate] does).
	PosixFD, Fabric bool
	// EventIPC: interprocess events work.
	EventIPC bool
	// ReadOnlyHost: read-only host memory can be registered.
	ReadOnlyHost bool
}

// UUID is a device's, the same in every process.
type UUID [16]byte

// String is the form that nvidia-smi prints.
func (u UUID) String() string {
	h := hex.EncodeToString(u[:])
	return fmt.Sprintf("GPU-%s-%s-%s-%s-%s", h[:8], h[8:12], h[12:16], h[16:20], h[20:])
}

// ComputeMode says how many processes may use a device, with CUDA's numbers.
type ComputeMode int

const (
	// ModeDefault: any number.
	ModeDefault ComputeMode = 0
	// ModeProhibited: none.
	ModeProhibited ComputeMode = 2
	// ModeExclusiveProcess: one. An engine's host that uses the device keeps
	// every plugin from it.
	ModeExclusiveProcess ComputeMode = 3
)

func (m ComputeMode) String() string {
	switch m {
	case ModeDefault:
		return "default"
	case ModeProhibited:
		return "prohibited"
	case ModeExclusiveProcess:
		return "exclusive process"
	}
	return fmt.Sprintf("compute mode %d", int(m))
}

// Device is an open device.
type Device interface {
	Info() Info

	// Do runs f on the device's thread, where its context is current, and
	// returns f's error. Calls run one after the other, so put the calls that
	// belong together into one f: a hop to the thread costs microseconds. Do
	// must not be called inside f, and f should not wait for work in flight
	// (SyncStream, SyncEvent): everybody else's f would wait with it. It
	// returns [ErrClosed] after Close, without running f.
	Do(f func(Context) error) error

	// Close waits for the running f, gives the context back and stops the
	// thread. Everything made on the device must be gone before.
	Close() error
}

// Context is a device's primary context, current on the calling thread. Sizes
// and offsets are bytes.
type Context interface {
	// Memory returns the device's free and total memory.
	Memory() (free, total uint64, err error)

	// Granularity is what the sizes and addresses of Create, Reserve and Map
	// have to be multiples of, for memory that can be exported as those kinds.
	Granularity(kinds Kind) (uint64, error)
	// Create allocates memory on this device, exportable as those kinds, and
	// takes a reference to it.
	Create(size uint64, kinds Kind) (Handle, error)
	// Retain takes a reference to the memory that is mapped at p. It fails
	// with [InvalidValue] if p was not mapped with Map.
	Retain(p Ptr) (Handle, error)
	// Export makes a shareable handle, PosixFD or Fabric. A descriptor is the
	// caller's to close and holds the memory until then. Size is not set: the
	// handle does not say it.
	Export(h Handle, kind Kind) (Shared, error)
	// Import takes a reference to what another process exported. The
	// descriptor remains the caller's and may be closed afterwards.
	Import(s Shared) (Handle, error)
	// Release drops a reference.
	Release(h Handle) error

	// Reserve reserves a range of addresses at a multiple of the granularity.
	Reserve(size uint64) (Ptr, error)
	// FreeAddress gives back what Reserve returned, all of it, after Unmap.
	FreeAddress(p Ptr, size uint64) error
	// Map maps the memory from its start; nobody may access it yet. The handle
	// can be released afterwards.
	Map(p Ptr, size uint64, h Handle) error
	// SetAccess lets this device access a mapped range.
	SetAccess(p Ptr, size uint64, writable bool) error
	// Unmap names exactly what Map did. No copy may be in flight.
	Unmap(p Ptr, size uint64) error

	// Alloc allocates memory that only IPC can export.
	Alloc(size uint64) (Ptr, error)
	// Free frees it. Every IPC mapping of it has to be closed before.
	Free(p Ptr) error
	// ExportIPC returns the handle of the whole allocation that p belongs to.
	// Its bytes may be the same again for the next allocation at that address.
	ExportIPC(p Ptr) (Shared, error)
	// OpenIPC maps another process's allocation, from its base. A handle is
	// opened once per process: opening it again may be refused.
	OpenIPC(s Shared) (Ptr, error)
	CloseIPC(p Ptr) error

	// Pointer says what device memory p belongs to, and refuses what
	// [Driver.Where] does.
	Pointer(p Ptr) (PointerInfo, error)

	// RegisterHost pins host memory so that copies from and to it run
	// asynchronously; the range of addresses is that of Host(mem). The memory
	// must stay mapped and in place until it is unregistered: never the Go
	// heap's. Read-only memory is registered as that or not at all.
	RegisterHost(mem []byte, readOnly bool) error
	UnregisterHost(mem []byte) error

	CreateStream() (Stream, error)
	// DestroyStream lets what is in flight end on its own.
	DestroyStream(s Stream) error
	// QueryStream reports whether the stream is idle. An error is that of the
	// work in it.
	QueryStream(s Stream) (bool, error)
	// SyncStream blocks the device's thread until the stream is idle.
	SyncStream(s Stream) error

	// Copy queues a copy of n bytes between device memory, mapped memory of
	// another device included, and device memory or registered host memory.
	Copy(dst, src Ptr, n uint64, s Stream) error
	// Write copies ordinary host memory to device memory, and Read the other
	// way, in the stream's order. They block the device's thread until the bytes
	// are there.
	Write(dst Ptr, from []byte, s Stream) error
	Read(into []byte, src Ptr, s Stream) error
	// Set queues filling n bytes of device memory.
	Set(dst Ptr, value byte, n uint64, s Stream) error
	// Wait lets what is queued from now on start after what e was last
	// recorded after, at the time of this call; an event that was never
	// recorded holds nothing back.
	Wait(s Stream, e Event) error

	// CreateEvent makes an event, without timing.
	CreateEvent(interprocess bool) (Event, error)
	DestroyEvent(e Event) error
	// Record completes e once everything queued before has.
	Record(e Event, s Stream) error
	// QueryEvent reports whether e has completed; true if never recorded.
	QueryEvent(e Event) (bool, error)
	// SyncEvent blocks the device's thread until e has completed.
	SyncEvent(e Event) error
	// ExportEvent returns the handle of an interprocess event of this process's,
	// and fails with [InvalidHandle] for another event. The real driver crashes
	// if the event is another device's, or none.
	ExportEvent(e Event) (EventHandle, error)
	// OpenEvent opens another process's event; DestroyEvent ends that.
	OpenEvent(h EventHandle) (Event, error)
}

// Busier is a [Context] that can keep a stream busy, as a kernel that takes its
// time does. Tests and benchmarks use it; the transport does not.
type Busier interface {
	// Busy queues work that takes that many nanoseconds.
	Busy(nanoseconds uint64, s Stream) error
}
