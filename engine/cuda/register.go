package cuda

import (
	"github.com/hawser-transport/hawser/engine"
	driver "github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/sdk"
)

// Register registers length bytes of device memory, from pointer on (a
// CUdeviceptr), with an engine: [engine.Engine.RegisterHandle] with the handle
// that reaches furthest, the GPU's identity, and the place in the allocation. It
// waits as that does.
//
// InvalidArgument is a range that is not a GPU's memory, and says what it is
// (host memory, managed memory, nothing), or that is not within one allocation.
// Unsupported is memory that was not made to be shared, a GPU that another
// process has for itself, and an engine none of whose transports takes it.
//
// The memory is in use until [engine.Region.Close] has returned nil: do not free
// it before.
func (g *GPUs) Register(e *engine.Engine, pointer uintptr, length uint64, opts engine.RegionOptions) (*engine.Region, error) {
	x, err := g.export(driver.Ptr(pointer), length)
	if err != nil {
		return nil, failed(err, "register %d bytes at %#x", length, pointer)
	}
	if x.File != nil {
		defer x.File.Close() //nolint:errcheck // the engine has a copy
	}
	return e.RegisterHandle(x, opts)
}

// export exports memory. The file is the caller's, nothing else is held.
func (g *GPUs) export(p driver.Ptr, n uint64) (x engine.ExportedMemory, err error) {
	// The extent of memory is known in its own GPU's context alone.
	d, err := g.find(func() (int, error) { return g.driver.Where(p) })
	if err != nil {
		return x, err
	}
	err = d.do(func(c driver.Context) error {
		out, err := driver.Export(c, p, n, driver.Fabric, driver.PosixFD, driver.IPC)
		if err == nil {
			x = describe(d.Info(), p, n, out)
		}
		if out != nil {
			d.give(c, out.Close)
		}
		return err
	})
	return x, err
}

// describe says of an export what the engine wants to know, and takes its
// descriptor over.
func describe(i driver.Info, p driver.Ptr, n uint64, out *driver.Exported) engine.ExportedMemory {
	x := engine.ExportedMemory{
		Address: uint64(p), Length: n, Offset: out.Offset, Allocation: out.Size, Device: i.Ordinal, DeviceUUID: i.UUID,
	}
	switch out.Kind {
	case driver.PosixFD:
		x.HandleKind, x.File = sdk.FileHandle, out.File()
	case driver.Fabric:
		x.HandleKind, x.Handle = sdk.FabricHandle, out.Bytes[:]
	case driver.IPC:
		x.HandleKind, x.Handle = sdk.IPCHandle, out.Bytes[:]
	}
	return x
}
