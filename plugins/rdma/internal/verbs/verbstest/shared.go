package verbstest

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// shared is a file's memory that is registered for a peer, as the transport
// does it with an application's.
type shared struct {
	file *os.File
	mem  []byte
	mr   verbs.MR
}

func (s *shared) open(pd verbs.PD, access verbs.Access) error {
	fd, err := unix.MemfdCreate("verbstest", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	s.file = os.NewFile(uintptr(fd), "shared")
	if _, err := s.file.WriteAt(pattern(9, SlotSize), 0); err != nil {
		return err
	}
	prot := unix.PROT_READ
	if access&verbs.LocalWrite != 0 {
		prot |= unix.PROT_WRITE
	}
	if s.mem, err = unix.Mmap(fd, 0, SlotSize, prot, unix.MAP_SHARED); err != nil {
		return err
	}
	s.mr, err = pd.RegisterMemory(s.mem, access)
	return err
}

// close undoes what open has done of it.
func (s *shared) close() error {
	if s.mr != nil {
		if err := s.mr.Close(); err != nil {
			return err
		}
	}
	if s.mem != nil {
		if err := unix.Munmap(s.mem); err != nil {
			return err
		}
	}
	if s.file != nil {
		if err := s.file.Close(); err != nil {
			return err
		}
	}
	*s = shared{}
	return nil
}

func (e *local) Share(access verbs.Access) (Shared, error) {
	if err := e.shared.close(); err != nil || access == 0 {
		return Shared{}, err
	}
	if err := e.shared.open(e.pd, access); err != nil {
		return Shared{}, err
	}
	return Shared{uint64(uintptr(unsafe.Pointer(&e.shared.mem[0]))), e.shared.mr.RKey()}, nil
}

func (e *local) Shared(n int) ([]byte, error) {
	b := make([]byte, n)
	_, err := e.shared.file.ReadAt(b, 0)
	return b, err
}
