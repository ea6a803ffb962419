package sdktest

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/sdk"
)

// memfdName names the memfds of HostMemory, so that mappings of them can be
// counted.
const memfdName = "hawser-sdktest"

// hostSkip is where host memory begins in its file: not at its beginning.
const hostSkip = 4096

// HostMemory makes host memory as an engine does: a memfd, sealed against
// growing and shrinking.
func HostMemory(t testing.TB, size int) Memory {
	t.Helper()
	fd, err := unix.MemfdCreate(memfdName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatalf("memfd: %v", err)
	}
	f := os.NewFile(uintptr(fd), memfdName)
	t.Cleanup(func() { f.Close() }) //nolint:errcheck // test
	// Behind the region there is more of the file, which nobody may touch.
	if err := f.Truncate(int64(hostSkip + size + hostSkip)); err != nil {
		t.Fatalf("memfd: %v", err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		t.Fatalf("memfd: %v", err)
	}
	return &hostMemory{f, size}
}

type hostMemory struct {
	f    *os.File
	size int
}

func (m *hostMemory) ReadAt(b []byte, offset int64) (int, error) {
	return m.f.ReadAt(b, hostSkip+offset)
}

func (m *hostMemory) WriteAt(b []byte, offset int64) (int, error) {
	return m.f.WriteAt(b, hostSkip+offset)
}

func (m *hostMemory) Export(writable bool) (sdk.Region, error) {
	flag := os.O_RDONLY
	if writable {
		flag = os.O_RDWR
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", m.f.Fd()), flag, 0)
	return sdk.Region{
		Kind: sdk.HostMemory, Length: uint64(m.size), Writable: writable, File: f, Offset: hostSkip,
	}, err
}
