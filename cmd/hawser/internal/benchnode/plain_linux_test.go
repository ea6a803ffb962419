package benchnode

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

// mapped is memory outside of Go's heap, as regions are: the race detector does
// not know that bytes that went through a socket are ordered.
func mapped(t *testing.T, size int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

// The plain program copies both ways, and only what it was asked for.
func TestPlain(t *testing.T) {
	const size, window = 1000, 3
	there, here := mapped(t, size*window+1), mapped(t, size*window)
	s, err := servePlain(there)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	p, err := dialPlain(s.address(), here)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	for seed, write := range []bool{true, false} {
		Fill(here, uint64(seed))
		Fill(there, uint64(seed+10))
		if bytes.Equal(here, there[:len(here)]) {
			t.Fatal("both are filled alike: nothing can be told")
		}
		source := bytes.Clone(there)
		if write {
			source = append(bytes.Clone(here), there[len(here)])
		}
		r, err := Move(t.Context(), size, 10, window, 5, func(slot int) (Waiter, error) { return p.begin(write, slot, size) })
		if err != nil || r.Count != 10 || r.BytesPerSecond <= 0 || r.P50US <= 0 {
			t.Errorf("%+v, %v", r, err)
		}
		if !bytes.Equal(there, source) || !bytes.Equal(here, source[:len(here)]) {
			t.Errorf("write %t: something else was copied", write)
		}
	}
	// What is not within the memory there ends the connection.
	p.memory = mapped(t, 4*len(there))
	if o, err := p.begin(false, 2*window, size); err == nil && o.Wait(t.Context()) == nil {
		t.Error("read beyond the memory")
	}
}
