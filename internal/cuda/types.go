package cuda

import (
	"strings"
	"unsafe"
)

// Ptr is an address that the device knows.
type Ptr uint64

// Host returns the address of registered host memory.
func Host(mem []byte) Ptr { return Ptr(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }

// Handle is a reference to an allocation. 0 is none.
type Handle uint64

// Stream is a queue of work that is done in order. 0 is none.
type Stream uint64

// Event marks a point in a stream. 0 is none.
type Event uint64

// Kind is a way to share memory, or several in Create.
type Kind uint32

const (
	// PosixFD is a file descriptor: within one machine.
	PosixFD Kind = 1 << 0
	// Fabric is 64 bytes: within the NVLink domain and its IMEX channel.
	Fabric Kind = 1 << 3
	// IPC is CUDA's legacy kind: 64 bytes, within one machine, Alloc's memory
	// only. Not a kind for Create.
	IPC Kind = 1 << 16
)

// String names the kinds: "fabric", "fd", "fabric+fd".
func (k Kind) String() string {
	var names []string
	for _, n := range []struct {
		kind Kind
		name string
	}{{Fabric, "fabric"}, {PosixFD, "fd"}, {IPC, "ipc"}} {
		if k&n.kind != 0 {
			names = append(names, n.name)
		}
	}
	if len(names) == 0 {
		return "not shareable"
	}
	return strings.Join(names, "+")
}

// Shared is a handle to memory that another process can import.
type Shared struct {
	Kind Kind // one of them
	// Bytes are Fabric's and IPC's handle, opaque.
	Bytes [64]byte
	// FD is PosixFD's.
	FD int
	// Size is the whole allocation's. Context's Export and Import do not use
	// it; [Export] sets it and [Import] needs it.
	Size uint64
}

// EventHandle is an interprocess event's, opaque.
type EventHandle [64]byte

// PointerInfo is what an address belongs to.
type PointerInfo struct {
	// Base and Size are the allocation's (cuMemGetAddressRange).
	Base Ptr
	Size uint64
	// MappingBase and MappingSize are what was mapped there: for Map's memory,
	// its one allocation, although Base and Size may say more.
	MappingBase Ptr
	MappingSize uint64
	// Device is the ordinal of the device whose memory it is.
	Device int
	// Kinds that it can be exported as.
	Kinds Kind
}

// allocation is what is exported of the memory: the whole of it.
func (i *PointerInfo) allocation() (base Ptr, size uint64) {
	if i.Kinds&IPC != 0 {
		return i.Base, i.Size
	}
	return i.MappingBase, i.MappingSize
}
