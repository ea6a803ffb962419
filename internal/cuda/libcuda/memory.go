//go:build linux && (amd64 || arm64)

package libcuda

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// words are a handle's bytes, as C passes them by value.
func words(b [64]byte) bytes64 { return *(*bytes64)(unsafe.Pointer(&b)) }

// Granularity implements [cuda.Context].
func (c *context) Granularity(kinds cuda.Kind) (uint64, error) {
	var n uintptr
	err := check(c.lib.Granularity(&n, c.prop(kinds), granularityMin), "cuMemGetAllocationGranularity", "%s memory", kinds)
	return uint64(n), err
}

// Create implements [cuda.Context].
func (c *context) Create(size uint64, kinds cuda.Kind) (cuda.Handle, error) {
	var h uint64
	err := check(c.lib.Create(&h, uintptr(size), c.prop(kinds), 0), "cuMemCreate", "%d bytes, %s, on GPU %d", size, kinds, c.ordinal)
	return cuda.Handle(h), err
}

// Retain implements [cuda.Context].
func (c *context) Retain(p cuda.Ptr) (cuda.Handle, error) {
	var h uint64
	err := check(c.lib.RetainHandle(&h, uint64(p)), "cuMemRetainAllocationHandle", "the memory at %#x", uint64(p))
	return cuda.Handle(h), err
}

// Export implements [cuda.Context].
func (c *context) Export(h cuda.Handle, kind cuda.Kind) (cuda.Shared, error) {
	const call = "cuMemExportToShareableHandle"
	s := cuda.Shared{Kind: kind}
	var err error
	switch kind {
	case cuda.PosixFD:
		var fd int32
		err = check(c.lib.Export(unsafe.Pointer(&fd), uint64(h), int32(kind), 0), call, "%s", kind)
		if err == nil {
			unix.CloseOnExec(int(fd))
			s.FD = int(fd)
		}
	case cuda.Fabric:
		err = check(c.lib.Export(unsafe.Pointer(&s.Bytes), uint64(h), int32(kind), 0), call, "%s", kind)
	default:
		err = check(code(cuda.InvalidValue), call, "%s", kind)
	}
	if err != nil {
		return cuda.Shared{}, err
	}
	return s, nil
}

// Import implements [cuda.Context].
func (c *context) Import(s cuda.Shared) (cuda.Handle, error) {
	const call = "cuMemImportFromShareableHandle"
	var h uint64
	var err error
	switch s.Kind {
	case cuda.PosixFD:
		err = check(c.lib.ImportFD(&h, uintptr(s.FD), int32(s.Kind)), call, "%s", s.Kind)
	case cuda.Fabric:
		err = check(c.lib.ImportFabric(&h, &s.Bytes, int32(s.Kind)), call, "%s", s.Kind)
	default:
		err = check(code(cuda.InvalidValue), call, "%s", s.Kind)
	}
	return cuda.Handle(h), err
}

// Release implements [cuda.Context].
func (c *context) Release(h cuda.Handle) error {
	return check(c.lib.Release(uint64(h)), "cuMemRelease", "")
}

// Reserve implements [cuda.Context].
func (c *context) Reserve(size uint64) (cuda.Ptr, error) {
	var p uint64
	err := check(c.lib.Reserve(&p, uintptr(size), 0, 0, 0), "cuMemAddressReserve", "%d bytes", size)
	return cuda.Ptr(p), err
}

// FreeAddress implements [cuda.Context].
func (c *context) FreeAddress(p cuda.Ptr, size uint64) error {
	return check(c.lib.AddressFree(uint64(p), uintptr(size)), "cuMemAddressFree", "%d bytes at %#x", size, uint64(p))
}

// Map implements [cuda.Context].
func (c *context) Map(p cuda.Ptr, size uint64, h cuda.Handle) error {
	return check(c.lib.Map(uint64(p), uintptr(size), 0, uint64(h), 0), "cuMemMap", "%d bytes at %#x", size, uint64(p))
}

// SetAccess implements [cuda.Context].
func (c *context) SetAccess(p cuda.Ptr, size uint64, writable bool) error {
	d := accessDesc{location: c.location(), flags: accessRead}
	if writable {
		d.flags = accessReadWrite
	}
	return check(c.lib.SetAccess(uint64(p), uintptr(size), &d, 1), "cuMemSetAccess", "%d bytes at %#x for GPU %d", size, uint64(p), c.ordinal)
}

// Unmap implements [cuda.Context].
func (c *context) Unmap(p cuda.Ptr, size uint64) error {
	return check(c.lib.Unmap(uint64(p), uintptr(size)), "cuMemUnmap", "%d bytes at %#x", size, uint64(p))
}

// Alloc implements [cuda.Context].
func (c *context) Alloc(size uint64) (cuda.Ptr, error) {
	var p uint64
	err := check(c.lib.Alloc(&p, uintptr(size)), "cuMemAlloc", "%d bytes on GPU %d", size, c.ordinal)
	return cuda.Ptr(p), err
}

// Free implements [cuda.Context].
func (c *context) Free(p cuda.Ptr) error {
	return check(c.lib.Free(uint64(p)), "cuMemFree", "%#x", uint64(p))
}

// ExportIPC implements [cuda.Context].
func (c *context) ExportIPC(p cuda.Ptr) (cuda.Shared, error) {
	s := cuda.Shared{Kind: cuda.IPC}
	if err := check(c.lib.IPCGet(&s.Bytes, uint64(p)), "cuIpcGetMemHandle", "%#x", uint64(p)); err != nil {
		return cuda.Shared{}, err
	}
	return s, nil
}

// OpenIPC implements [cuda.Context].
func (c *context) OpenIPC(s cuda.Shared) (cuda.Ptr, error) {
	const call = "cuIpcOpenMemHandle"
	if s.Kind != cuda.IPC {
		return 0, check(code(cuda.InvalidValue), call, "%s", s.Kind)
	}
	var p uint64
	err := check(c.lib.IPCOpen(&p, words(s.Bytes), ipcLazyPeerAccess), call, "%s", s.Kind)
	return cuda.Ptr(p), err
}

// CloseIPC implements [cuda.Context].
func (c *context) CloseIPC(p cuda.Ptr) error {
	return check(c.lib.IPCClose(uint64(p)), "cuIpcCloseMemHandle", "%#x", uint64(p))
}
