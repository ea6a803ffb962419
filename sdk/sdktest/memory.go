package sdktest

import (
	"io"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
)

// Memory is memory of an application's, as the cases about [sdk.Mover] need it:
// they register it with the transport under test, and look at its bytes and
// change them as the application would, through ReadAt and WriteAt, which must
// not use the transport. It lives until the test has ended.
type Memory interface {
	io.ReaderAt
	io.WriterAt
	// Export says where the memory is, for one registration: Kind, Length and
	// the fields of its kind, not Capability and Base. File is a descriptor of
	// its own, which the transport closes, open read-only unless writable.
	Export(writable bool) (sdk.Region, error)
}

// memory makes memory of a kind, or returns nil if it cannot.
func (h *Harness) memory(t testing.TB, kind sdk.MemoryKind, size int) Memory {
	t.Helper()
	if h.Memory != nil {
		if m := h.Memory(t, kind, size); m != nil {
			return m
		}
	}
	if kind == sdk.HostMemory {
		return HostMemory(t, size)
	}
	return nil
}
