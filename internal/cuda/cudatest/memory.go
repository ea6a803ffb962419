//go:build linux

package cudatest

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// hostMemory is a memfd's mapping, as regions of host memory are.
func hostMemory(size int, protection int) (mem []byte, err error) {
	fd, err := unix.MemfdCreate("cudatest", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, err
	}
	return unix.Mmap(fd, 0, size, protection, unix.MAP_SHARED)
}

// withHost runs do with registered host memory.
func withHost(c cuda.Context, size uint64, do func(mem []byte) error) error {
	mem, err := hostMemory(int(size), unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(mem) }()
	if err := c.RegisterHost(mem, false); err != nil {
		return err
	}
	return errors.Join(do(mem), c.UnregisterHost(mem))
}

// fill sets memory and waits.
func fill(c cuda.Context, s cuda.Stream, p cuda.Ptr, n uint64, value byte) error {
	if err := c.Set(p, value, n, s); err != nil {
		return err
	}
	return c.SyncStream(s)
}

// load copies memory out.
func load(c cuda.Context, s cuda.Stream, p cuda.Ptr, n uint64) (b []byte, err error) {
	err = withHost(c, n, func(mem []byte) error {
		if err := c.Copy(cuda.Host(mem), p, n, s); err != nil {
			return err
		}
		if err := c.SyncStream(s); err != nil {
			return err
		}
		b = append([]byte(nil), mem...)
		return nil
	})
	return b, err
}

// holds fails unless every byte of memory is value.
func holds(c cuda.Context, s cuda.Stream, p cuda.Ptr, n uint64, value byte) error {
	b, err := load(c, s, p, n)
	if err != nil {
		return err
	}
	return uniform(b, value)
}

func uniform(b []byte, value byte) error {
	if len(b) == 0 {
		return errors.New("no bytes")
	}
	for i, v := range b {
		if v != value {
			return fmt.Errorf("byte %d of %d is %#x, want %#x", i, len(b), v, value)
		}
	}
	return nil
}
