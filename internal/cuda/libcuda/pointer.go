//go:build linux && (amd64 || arm64)

package libcuda

import (
	"errors"
	"unsafe"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// attribute asks for an attribute of a pointer. It needs no context.
func (l *library) attribute(at uint64, number int32, v unsafe.Pointer) error {
	return check(l.PointerAttr(v, number, at), "cuPointerGetAttribute", "%#x", at)
}

// where says on which device the memory at an address is.
func (l *library) where(at uint64) (int, error) {
	refuse := func(what string) (int, error) {
		return 0, check(code(cuda.InvalidValue), "cuPointerGetAttribute", "%#x, which is %s, not a device's memory", at, what)
	}
	var kind, managed uint32 // the second is a bool of C
	var ordinal int32
	err := l.attribute(at, pointerMemoryType, unsafe.Pointer(&kind))
	switch {
	case errors.Is(err, cuda.InvalidValue):
		return refuse("nothing that the driver knows")
	case err != nil:
		return 0, err
	case l.attribute(at, pointerManaged, unsafe.Pointer(&managed)) == nil && managed&0xff != 0:
		return refuse("managed memory")
	case kind != memoryTypeDevice:
		return refuse("host memory")
	}
	err = l.attribute(at, pointerOrdinal, unsafe.Pointer(&ordinal))
	return int(ordinal), err
}

// Where implements [cuda.Driver].
func (d *driver) Where(p cuda.Ptr) (int, error) {
	lib, err := d.needed()
	if err != nil {
		return 0, err
	}
	return lib.where(uint64(p))
}

// Pointer implements [cuda.Context].
func (c *context) Pointer(p cuda.Ptr) (cuda.PointerInfo, error) {
	at := uint64(p)
	ordinal, err := c.lib.where(at)
	if err != nil {
		return cuda.PointerInfo{}, err
	}
	var base, mappingBase uint64
	var size, mappingSize uintptr
	if err := check(c.lib.AddressRange(&base, &size, at), "cuMemGetAddressRange", "%#x", at); err != nil {
		return cuda.PointerInfo{}, err
	}
	// A driver that does not know these has one mapping a range.
	if c.lib.attribute(at, pointerMappingBase, unsafe.Pointer(&mappingBase)) != nil ||
		c.lib.attribute(at, pointerMappingSize, unsafe.Pointer(&mappingSize)) != nil || mappingSize == 0 {
		mappingBase, mappingSize = base, size
	}
	var kinds uint64 // the driver says unsigned int in one place, 8 bytes in another
	var ipc uint32
	if err := errors.Join(
		c.lib.attribute(at, pointerHandleKinds, unsafe.Pointer(&kinds)),
		c.lib.attribute(at, pointerIPC, unsafe.Pointer(&ipc))); err != nil {
		return cuda.PointerInfo{}, err
	}
	info := cuda.PointerInfo{
		Base: cuda.Ptr(base), Size: uint64(size),
		MappingBase: cuda.Ptr(mappingBase), MappingSize: uint64(mappingSize),
		Device: ordinal, Kinds: cuda.Kind(kinds) & (cuda.PosixFD | cuda.Fabric),
	}
	if ipc&0xff != 0 { // a bool of C
		info.Kinds |= cuda.IPC
	}
	return info, nil
}
