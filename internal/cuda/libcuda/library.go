//go:build linux && (amd64 || arm64)

package libcuda

import (
	"fmt"
	"reflect"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// code is a CUresult, an int of C.
type code int32

// bytes64 is a handle that C passes by value.
type bytes64 struct{ a, b, c, d, e, f, g, h uint64 }

// library holds the functions by their tag's symbol. Handles and addresses of
// the driver are uint64: CUdeviceptr, and opaque pointers. size_t is uintptr.
type library struct {
	Init           func(flags uint32) code                                                                                            `cu:"cuInit"`
	DeviceCount    func(n *int32) code                                                                                                `cu:"cuDeviceGetCount"`
	DeviceGet      func(d *int32, ordinal int32) code                                                                                 `cu:"cuDeviceGet"`
	DeviceName     func(name *byte, size int32, d int32) code                                                                         `cu:"cuDeviceGetName"`
	DeviceUUID     func(u *cuda.UUID, d int32) code                                                                                   `cu:"cuDeviceGetUuid_v2"`
	DeviceAttr     func(v *int32, attribute, d int32) code                                                                            `cu:"cuDeviceGetAttribute"`
	CtxRetain      func(ctx *uint64, d int32) code                                                                                    `cu:"cuDevicePrimaryCtxRetain"`
	CtxRelease     func(d int32) code                                                                                                 `cu:"cuDevicePrimaryCtxRelease_v2"`
	CtxSetCurrent  func(ctx uint64) code                                                                                              `cu:"cuCtxSetCurrent"`
	MemInfo        func(free, total *uintptr) code                                                                                    `cu:"cuMemGetInfo_v2"`
	Granularity    func(n *uintptr, p *allocationProp, option int32) code                                                             `cu:"cuMemGetAllocationGranularity"`
	Create         func(h *uint64, n uintptr, p *allocationProp, f uint64) code                                                       `cu:"cuMemCreate"`
	Release        func(h uint64) code                                                                                                `cu:"cuMemRelease"`
	RetainHandle   func(h *uint64, p uint64) code                                                                                     `cu:"cuMemRetainAllocationHandle"`
	Export         func(to unsafe.Pointer, h uint64, kind int32, f uint64) code                                                       `cu:"cuMemExportToShareableHandle"`
	ImportFD       func(h *uint64, fd uintptr, kind int32) code                                                                       `cu:"cuMemImportFromShareableHandle"`
	ImportFabric   func(h *uint64, b *[64]byte, kind int32) code                                                                      `cu:"cuMemImportFromShareableHandle"`
	Reserve        func(p *uint64, n, align uintptr, at, flags uint64) code                                                           `cu:"cuMemAddressReserve"`
	AddressFree    func(p uint64, n uintptr) code                                                                                     `cu:"cuMemAddressFree"`
	Map            func(p uint64, n, offset uintptr, h, flags uint64) code                                                            `cu:"cuMemMap"`
	Unmap          func(p uint64, n uintptr) code                                                                                     `cu:"cuMemUnmap"`
	SetAccess      func(p uint64, n uintptr, d *accessDesc, count uintptr) code                                                       `cu:"cuMemSetAccess"`
	Alloc          func(p *uint64, n uintptr) code                                                                                    `cu:"cuMemAlloc_v2"`
	Free           func(p uint64) code                                                                                                `cu:"cuMemFree_v2"`
	IPCGet         func(b *[64]byte, p uint64) code                                                                                   `cu:"cuIpcGetMemHandle"`
	IPCOpen        func(p *uint64, b bytes64, flags uint32) code                                                                      `cu:"cuIpcOpenMemHandle_v2"`
	IPCClose       func(p uint64) code                                                                                                `cu:"cuIpcCloseMemHandle"`
	AddressRange   func(base *uint64, n *uintptr, p uint64) code                                                                      `cu:"cuMemGetAddressRange_v2"`
	PointerAttr    func(v unsafe.Pointer, attribute int32, p uint64) code                                                             `cu:"cuPointerGetAttribute"`
	HostRegister   func(p unsafe.Pointer, n uintptr, flags uint32) code                                                               `cu:"cuMemHostRegister_v2"`
	HostUnregister func(p unsafe.Pointer) code                                                                                        `cu:"cuMemHostUnregister"`
	StreamCreate   func(s *uint64, flags uint32) code                                                                                 `cu:"cuStreamCreate"`
	StreamDestroy  func(s uint64) code                                                                                                `cu:"cuStreamDestroy_v2"`
	StreamQuery    func(s uint64) code                                                                                                `cu:"cuStreamQuery"`
	StreamSync     func(s uint64) code                                                                                                `cu:"cuStreamSynchronize"`
	StreamWait     func(s, e uint64, flags uint32) code                                                                               `cu:"cuStreamWaitEvent"`
	CopyD2D        func(dst, src uint64, n uintptr, s uint64) code                                                                    `cu:"cuMemcpyDtoDAsync_v2"`
	CopyH2D        func(dst, src uint64, n uintptr, s uint64) code                                                                    `cu:"cuMemcpyHtoDAsync_v2"`
	CopyD2H        func(dst, src uint64, n uintptr, s uint64) code                                                                    `cu:"cuMemcpyDtoHAsync_v2"`
	Set            func(dst uint64, v uint8, n uintptr, s uint64) code                                                                `cu:"cuMemsetD8Async"`
	EventCreate    func(e *uint64, flags uint32) code                                                                                 `cu:"cuEventCreate"`
	EventDestroy   func(e uint64) code                                                                                                `cu:"cuEventDestroy_v2"`
	EventRecord    func(e, s uint64) code                                                                                             `cu:"cuEventRecord"`
	EventQuery     func(e uint64) code                                                                                                `cu:"cuEventQuery"`
	EventSync      func(e uint64) code                                                                                                `cu:"cuEventSynchronize"`
	EventGet       func(b *cuda.EventHandle, e uint64) code                                                                           `cu:"cuIpcGetEventHandle"`
	EventOpen      func(e *uint64, b bytes64) code                                                                                    `cu:"cuIpcOpenEventHandle"`
	ModuleLoad     func(m *uint64, image *byte) code                                                                                  `cu:"cuModuleLoadData"`
	ModuleUnload   func(m uint64) code                                                                                                `cu:"cuModuleUnload"`
	ModuleFunction func(f *uint64, m uint64, name string) code                                                                        `cu:"cuModuleGetFunction"`
	Launch         func(f uint64, gx, gy, gz, bx, by, bz, shared uint32, s uint64, params *unsafe.Pointer, extra unsafe.Pointer) code `cu:"cuLaunchKernel"`
}

// allocationProp is CUmemAllocationProp.
type allocationProp struct {
	kind        int32
	handleKinds int32
	location    location
	_           uintptr // of Windows
	_           [8]byte // flags: no compression, no GPUDirect, reserved
}

// location is CUmemLocation.
type location struct{ kind, id int32 }

// accessDesc is CUmemAccessDesc.
type accessDesc struct {
	location location
	flags    int32
}

// The driver's numbers.
const (
	allocationPinned = 1
	locationDevice   = 1
	granularityMin   = 0
	accessRead       = 1
	accessReadWrite  = 3

	attrComputeMode    = 20
	attrVMM            = 102
	attrPosixFD        = 103
	attrReadOnlyHost   = 113
	attrEventIPC       = 125
	attrFabric         = 128
	pointerMemoryType  = 2
	pointerManaged     = 8
	pointerOrdinal     = 9
	pointerIPC         = 10
	pointerHandleKinds = 14
	pointerMappingSize = 18
	pointerMappingBase = 19
	memoryTypeDevice   = 2

	hostPortable      = 1
	hostReadOnly      = 8
	ipcLazyPeerAccess = 1
	streamNonBlocking = 1
	eventNoTiming     = 2
	eventInterprocess = 4
)

// load opens the library once and for all: its threads and its exit handlers
// forbid unloading it.
func load(file string) (*library, error) {
	// The reason of a failure is kept for the thread that it met.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	h, err := purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, &cuda.MissingError{
			What: file, Err: err,
			Do: "install the NVIDIA driver; in a container, give it the driver's libraries (--gpus, the nvidia runtime)",
		}
	}
	lib := &library{}
	v := reflect.ValueOf(lib).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("cu")
		symbol, err := purego.Dlsym(h, name)
		if err != nil {
			return nil, &cuda.MissingError{What: name + " in " + file, Do: "install a newer NVIDIA driver (CUDA 12 or later)", Err: err}
		}
		purego.RegisterFunc(v.Field(i).Addr().Interface(), symbol)
	}
	return lib, nil
}

// check says which call failed.
func check(c code, call, format string, args ...any) error {
	if c == 0 {
		return nil
	}
	return &cuda.CallError{Call: call, Object: fmt.Sprintf(format, args...), Result: cuda.Result(c)}
}
