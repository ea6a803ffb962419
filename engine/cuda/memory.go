package cuda

import (
	driver "github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/sdk"
)

// Memory is device memory that this process has allocated, for applications
// that have none otherwise. Its methods are safe for concurrent use; a copy
// keeps the other calls on its GPU waiting.
type Memory struct {
	d    *device
	a    *driver.Allocation
	size uint64
	gone bool // the thread's
}

// Allocate allocates size bytes on a GPU, by its ordinal, as memory that can be
// shared as far as the driver grants: by a fabric handle, else a descriptor, else
// CUDA IPC. What is in it is not defined. Register it, or parts of it, by its
// pointer.
//
// InvalidArgument is no size, or no such GPU, Busy is a GPU without that much
// free memory, Unsupported one that another process has for itself.
func (g *GPUs) Allocate(device int, size uint64) (*Memory, error) {
	if size == 0 {
		return nil, sdk.Errorf(sdk.InvalidArgument, "cuda: allocate 0 bytes on GPU %d", device)
	}
	d, err := g.use(device)
	if err != nil {
		return nil, failed(err, "allocate on GPU %d", device)
	}
	m := &Memory{d: d, size: size}
	err = d.do(func(c driver.Context) (err error) {
		m.a, err = driver.Allocate(c, size, driver.Fabric, driver.PosixFD, driver.IPC)
		switch {
		case err == nil:
			d.memories++
		case m.a != nil:
			d.give(c, m.a.Close)
		}
		return err
	})
	if err != nil {
		return nil, failed(err, "allocate %d bytes on GPU %d", size, device)
	}
	return m, nil
}

// Pointer is the memory's address, a CUdeviceptr.
func (m *Memory) Pointer() uintptr { return uintptr(m.a.Base) }

// Len is the memory's size in bytes.
func (m *Memory) Len() uint64 { return m.size }

// Device is the ordinal of the memory's GPU.
func (m *Memory) Device() int { return m.d.Info().Ordinal }

// ReadAt copies bytes out, from offset on, and returns once they are there. All
// of them are within the memory, or it fails as InvalidArgument and copies none.
func (m *Memory) ReadAt(b []byte, offset int64) (int, error) {
	return m.copy("read", b, offset, func(c driver.Context, at driver.Ptr) error { return c.Read(b, at, m.d.stream) })
}

// WriteAt is ReadAt the other way round: a transfer that is submitted once it
// has returned moves these bytes.
func (m *Memory) WriteAt(b []byte, offset int64) (int, error) {
	return m.copy("write", b, offset, func(c driver.Context, at driver.Ptr) error { return c.Write(at, b, m.d.stream) })
}

func (m *Memory) copy(what string, b []byte, offset int64, do func(c driver.Context, at driver.Ptr) error) (int, error) {
	n := uint64(len(b))
	if offset < 0 || n > m.size || uint64(offset) > m.size-n {
		return 0, sdk.Errorf(sdk.InvalidArgument, "cuda: %s %d bytes at offset %d of memory of %d", what, n, offset, m.size)
	}
	err := m.d.do(func(c driver.Context) error {
		if m.gone {
			return sdk.Errorf(sdk.Closed, "the memory was freed")
		}
		return do(c, m.a.Base+driver.Ptr(offset))
	})
	if err != nil {
		return 0, failed(err, "%s %d bytes at offset %d on GPU %d", what, n, offset, m.Device())
	}
	return len(b), nil
}

// Free frees the memory. Every region of it must be closed before, by a
// [engine.Region.Close] that has returned nil. Free does not know the regions and
// succeeds all the same while one is open: transfers then reach memory that this
// process has no more, peers keep what they have mapped of it, and what becomes
// of such a mapping is undefined for CUDA IPC.
// Freeing again does nothing. After an error it may be called again, and goes on.
func (m *Memory) Free() error {
	err := m.d.do(func(c driver.Context) error {
		if m.gone {
			return nil
		}
		if err := m.a.Close(c); err != nil && !driver.IsLost(err) {
			return err
		}
		m.gone = true
		m.d.memories--
		return nil
	})
	if err != nil {
		return failed(err, "free %d bytes of GPU %d", m.size, m.Device())
	}
	return nil
}
