package engine

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/sdk"
)

// seals are what every registered memfd has: a transport that has it mapped
// must not be hit by a fault since it shrank.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// AllocateHost allocates and registers host memory of size bytes, zeroed. It is
// shared with the transports' processes, which a slice of Go's heap cannot be:
// there is no method that registers one. It waits until every transport that is
// up has the region, some seconds at most.
func (e *Engine) AllocateHost(size int, opts RegionOptions) (*Region, error) {
	if _, err := e.ready(nil, "allocate memory"); err != nil { //nolint:staticcheck // nil is permitted
		return nil, err
	}
	if size <= 0 {
		return nil, sdk.Errorf(sdk.InvalidArgument, "allocate memory: %d bytes", size)
	}
	fd, err := unix.MemfdCreate("hawser-region", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, sdk.Errorf(sdk.Unavailable, "allocate memory: memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "hawser-region")
	defer f.Close() //nolint:errcheck // the region has a copy
	if err := f.Truncate(int64(size)); err != nil {
		return nil, sdk.Errorf(sdk.Unavailable, "allocate memory: %d bytes: %w", size, err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals|unix.F_SEAL_SEAL); err != nil {
		return nil, sdk.Errorf(sdk.Unavailable, "allocate memory: seal it: %w", err)
	}
	return e.registerFile(f, 0, size, opts)
}

// RegisterHost registers length bytes, from offset on, of a memfd that the
// application has. The memfd must be sealed against shrinking and growing
// (F_SEAL_SHRINK and F_SEAL_GROW): it is refused otherwise; one that is
// sealed against writing can only be registered ReadOnly. The engine makes a
// copy of the descriptor and a mapping of its own; see [Region.Bytes]. It waits
// as [Engine.AllocateHost] does.
func (e *Engine) RegisterHost(f *os.File, offset int64, length int, opts RegionOptions) (*Region, error) {
	if _, err := e.ready(nil, "register memory"); err != nil { //nolint:staticcheck // nil is permitted
		return nil, err
	}
	if f == nil || offset < 0 || length <= 0 || offset+int64(length) < offset {
		return nil, sdk.Errorf(sdk.InvalidArgument, "register memory: %d bytes at offset %d of a file", length, offset)
	}
	st, err := f.Stat()
	if err != nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "register memory: %w", err)
	}
	got, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "register memory: %s is no memfd: make one with memfd_create and MFD_ALLOW_SEALING, or use AllocateHost: %w", f.Name(), err)
	}
	if got&seals != seals {
		return nil, sdk.Errorf(sdk.InvalidArgument, "register memory: %s can shrink or grow while transports use it: seal it with F_SEAL_SHRINK and F_SEAL_GROW", f.Name())
	}
	if end := offset + int64(length); end > st.Size() {
		return nil, sdk.Errorf(sdk.InvalidArgument, "register memory: %d bytes at offset %d end after the file's %d", length, offset, st.Size())
	}
	if seal := writeSeal(got); seal != "" {
		if !opts.ReadOnly {
			return nil, sdk.Errorf(sdk.InvalidArgument, "register memory: %s is sealed against writing (%s): register it ReadOnly", f.Name(), seal)
		}
		// Older kernels map it from a read-only descriptor only.
		if f, err = openReadOnly(f); err != nil {
			return nil, sdk.Errorf(sdk.Unavailable, "register memory: %w", err)
		}
		defer f.Close() //nolint:errcheck // the region has a copy
	}
	return e.registerFile(f, offset, length, opts)
}

// writeSeal names the seal that forbids a writable mapping, if there is one.
func writeSeal(got int) string {
	switch {
	case got&unix.F_SEAL_WRITE != 0:
		return "F_SEAL_WRITE"
	case got&unix.F_SEAL_FUTURE_WRITE != 0:
		return "F_SEAL_FUTURE_WRITE"
	default:
		return ""
	}
}

// openReadOnly returns a descriptor that cannot be made writable again.
func openReadOnly(f *os.File) (*os.File, error) {
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

// registerFile maps and registers a sealed memfd.
func (e *Engine) registerFile(f *os.File, offset int64, length int, opts RegionOptions) (*Region, error) {
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "register memory: %w", err)
	}
	prot := unix.PROT_READ | unix.PROT_WRITE
	if flags&unix.O_ACCMODE != unix.O_RDWR {
		prot = unix.PROT_READ
		if !opts.ReadOnly {
			return nil, sdk.Errorf(sdk.InvalidArgument, "register memory: %s is not open for reading and writing: register it ReadOnly", f.Name())
		}
	}
	page := int64(os.Getpagesize())
	skip := offset % page
	all, err := unix.Mmap(int(f.Fd()), offset-skip, length+int(skip), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, sdk.Errorf(sdk.Unavailable, "register memory: map %d bytes: %w", length, err)
	}
	var file *os.File
	if opts.ReadOnly {
		file, err = openReadOnly(f)
	} else {
		file, err = duplicate(f)
	}
	if err != nil {
		_ = unix.Munmap(all)
		return nil, sdk.Errorf(sdk.Unavailable, "register memory: %w", err)
	}
	bytes := all[skip : skip+int64(length) : skip+int64(length)]
	r := &Region{
		opts: opts, bytes: bytes, file: file, unmap: func() error { return unix.Munmap(all) },
		region: sdk.Region{
			Kind: sdk.HostMemory, Base: uint64(uintptr(unsafe.Pointer(&bytes[0]))), Length: uint64(length),
			File: file, Offset: uint64(offset),
		},
	}
	if err := e.memory.add(r); err != nil {
		e.memory.closeFile(r)
		return nil, errors.Join(err, r.unmap())
	}
	return r, nil
}

// RegisterHandle registers a GPU's memory that was exported. The allocation
// must live until [Region.Close] has returned nil. It waits as
// [Engine.AllocateHost] does; the first one also starts the transport mnnvl, if
// no transports were configured.
func (e *Engine) RegisterHandle(x ExportedMemory, opts RegionOptions) (*Region, error) {
	if _, err := e.ready(nil, "register memory"); err != nil { //nolint:staticcheck // nil is permitted
		return nil, err
	}
	if err := x.check(); err != nil {
		return nil, err
	}
	r := &Region{
		opts: opts, unmap: func() error { return nil },
		region: sdk.Region{
			Kind: sdk.DeviceMemory, Base: x.Address, Length: x.Length, Device: x.Device, DeviceUUID: x.DeviceUUID,
			Offset: x.Offset, HandleKind: x.HandleKind, Handle: slices.Clone(x.Handle), Allocation: x.Allocation,
		},
	}
	if x.File != nil {
		file, err := duplicate(x.File)
		if err != nil {
			return nil, err
		}
		r.file, r.region.File = file, file
	}
	_ = e.transports.demand(e.ctx) // a refusal says why one is not up
	if err := e.memory.add(r); err != nil {
		e.memory.closeFile(r)
		return nil, err
	}
	return r, nil
}

func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, sdk.Errorf(sdk.Unavailable, "copy a descriptor: %w", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
