package rdmatransport

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// area is memory outside of Go's heap with one memory region: a region for
// each buffer would soon be more than devices and memlock limits allow.
type area struct {
	mem []byte
	mr  verbs.MR
}

func newArea(pd verbs.PD, bytes int) (*area, error) {
	mem, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes: %w", bytes, err)
	}
	mr, err := pd.RegisterMemory(mem, verbs.LocalWrite)
	if err != nil {
		_ = unix.Munmap(mem)
		return nil, err
	}
	return &area{mem, mr}, nil
}

// address is where the device finds the byte.
func (a *area) address(offset int) uint64 {
	return uint64(uintptr(unsafe.Pointer(&a.mem[offset])))
}

func (a *area) close() error {
	if err := a.mr.Close(); err != nil {
		return err // the device may still use the memory
	}
	return unix.Munmap(a.mem)
}
