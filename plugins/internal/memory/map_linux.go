package memory

import (
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/sdk"
)

// mapRegion maps a region's file, and returns the mapping and the region within
// it. A file that could shrink is refused: its mapping would kill the process
// that touches it.
func mapRegion(r *sdk.Region) (mapping, bytes []byte, err error) {
	fd := int(r.File.Fd())
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, nil, sdk.Errorf(sdk.InvalidArgument, "region %v is no memfd with seals: %w", r.Capability, err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return nil, nil, sdk.Errorf(sdk.InvalidArgument, "region %v: its memfd may shrink; seal it with F_SEAL_SHRINK and F_SEAL_GROW", r.Capability)
	}
	var file unix.Stat_t
	if err := unix.Fstat(fd, &file); err != nil {
		return nil, nil, sdk.Errorf(sdk.InvalidArgument, "region %v: %w", r.Capability, err)
	}
	end := r.Offset + r.Length
	if end > uint64(file.Size) {
		return nil, nil, sdk.Errorf(sdk.InvalidArgument, "region %v: %d bytes at %d are not within its memfd of %d", r.Capability, r.Length, r.Offset, file.Size)
	}
	// A mapping begins and ends between pages, which may be huge ones.
	page := uint64(max(int64(os.Getpagesize()), int64(file.Blksize))) //nolint:unconvert // it is an int32 on arm64
	skip := r.Offset % page
	size := (skip + r.Length + page - 1) / page * page
	if size > math.MaxInt {
		return nil, nil, sdk.Errorf(sdk.InvalidArgument, "region %v: %d bytes are more than can be mapped", r.Capability, r.Length)
	}
	access := unix.PROT_READ
	if r.Writable {
		access |= unix.PROT_WRITE
	}
	mapping, err = unix.Mmap(fd, int64(r.Offset-skip), int(size), access, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, sdk.Errorf(sdk.InvalidArgument, "region %v: cannot map %d bytes, writable %t: %w", r.Capability, r.Length, r.Writable, err)
	}
	return mapping, mapping[skip : skip+r.Length : skip+r.Length], nil
}

func unmap(mapping []byte) error { return unix.Munmap(mapping) }
