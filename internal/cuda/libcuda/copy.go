//go:build linux && (amd64 || arm64)

package libcuda

import (
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// hosts are the registered ranges of host memory of all devices. The driver
// would tell by itself which addresses are the host's, but takes one that it
// does not know (of memory that was unmapped) for the host's as well, and the
// process crashes; as a device's it is refused.
type hosts struct {
	mu     sync.RWMutex
	ranges []hostRange
}

type hostRange struct {
	base cuda.Ptr
	size uint64
}

// within reports whether a range lies within registered memory. It is an error
// if a part of it does.
func (h *hosts) within(p cuda.Ptr, n uint64) (bool, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, r := range h.ranges {
		switch {
		case p >= r.base && n <= r.size && uint64(p-r.base) <= r.size-n:
			return true, nil
		case p < r.base+cuda.Ptr(r.size) && r.base < p+cuda.Ptr(n):
			return false, check(code(cuda.InvalidValue), "cuMemcpyAsync", "%d bytes at %#x, which are host memory in part", n, uint64(p))
		}
	}
	return false, nil
}

func (h *hosts) add(r hostRange) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ranges = append(h.ranges, r)
}

func (h *hosts) remove(r hostRange) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ranges = slices.DeleteFunc(h.ranges, func(o hostRange) bool { return o == r })
}

func hostRangeOf(mem []byte) hostRange { return hostRange{cuda.Host(mem), uint64(len(mem))} }

// RegisterHost implements [cuda.Context].
func (c *context) RegisterHost(mem []byte, readOnly bool) error {
	flags := uint32(hostPortable)
	if readOnly {
		flags |= hostReadOnly
	}
	err := check(c.lib.HostRegister(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)), flags), "cuMemHostRegister", "%d bytes", len(mem))
	if err == nil {
		c.hosts.add(hostRangeOf(mem))
	}
	return err
}

// UnregisterHost implements [cuda.Context].
func (c *context) UnregisterHost(mem []byte) error {
	err := check(c.lib.HostUnregister(unsafe.Pointer(unsafe.SliceData(mem))), "cuMemHostUnregister", "%d bytes", len(mem))
	if err == nil {
		c.hosts.remove(hostRangeOf(mem))
	}
	return err
}

// Copy implements [cuda.Context].
func (c *context) Copy(dst, src cuda.Ptr, n uint64, s cuda.Stream) error {
	from, err := c.hosts.within(src, n)
	if err != nil {
		return err
	}
	to, err := c.hosts.within(dst, n)
	if err != nil {
		return err
	}
	call, name := c.lib.CopyD2D, "cuMemcpyDtoDAsync"
	switch {
	case from && to:
		return check(code(cuda.InvalidValue), "cuMemcpyAsync", "host memory to host memory")
	case from:
		call, name = c.lib.CopyH2D, "cuMemcpyHtoDAsync"
	case to:
		call, name = c.lib.CopyD2H, "cuMemcpyDtoHAsync"
	}
	return check(call(uint64(dst), uint64(src), uintptr(n), uint64(s)), name, "%d bytes from %#x to %#x", n, uint64(src), uint64(dst))
}

// Write implements [cuda.Context].
func (c *context) Write(dst cuda.Ptr, from []byte, s cuda.Stream) error {
	return c.host(c.lib.CopyH2D, "cuMemcpyHtoDAsync", uint64(dst), uint64(cuda.Host(from)), from, s)
}

// Read implements [cuda.Context].
func (c *context) Read(into []byte, src cuda.Ptr, s cuda.Stream) error {
	return c.host(c.lib.CopyD2H, "cuMemcpyDtoHAsync", uint64(cuda.Host(into)), uint64(src), into, s)
}

// host copies to or from host memory that is not registered, and waits: the
// collector neither moves nor frees it until then.
func (c *context) host(call func(dst, src uint64, n uintptr, s uint64) code, name string, dst, src uint64, mem []byte, s cuda.Stream) error {
	err := check(call(dst, src, uintptr(len(mem)), uint64(s)), name, "%d bytes from %#x to %#x", len(mem), src, dst)
	if err == nil {
		err = c.SyncStream(s)
	}
	runtime.KeepAlive(mem)
	return err
}
