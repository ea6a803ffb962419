package cuda

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Exported is a handle to memory, and where in it a range begins.
type Exported struct {
	Shared
	Offset uint64

	undo undo
}

// Close closes the descriptor, if it is one; importers keep what they have
// imported. It may be called again after an error, and goes on where it failed.
func (e *Exported) Close(c Context) error { return e.undo.run(c) }

// File hands over the descriptor: it is the caller's to close from now on.
func (e *Exported) File() *os.File {
	e.undo = e.undo[:len(e.undo)-1]
	return os.NewFile(uintptr(e.FD), "device memory")
}

// Export makes a handle for n bytes of device memory at p, as the first of the
// kinds that the memory can be exported as, with what it retains released. The
// error is [InvalidValue] for what is not memory of a device, or not within one
// allocation, and [NotSupported] for memory that was not made to be shared so;
// otherwise it joins why each kind was refused.
//
// An Exported beside an error holds what could not be given back: Close it.
func Export(c Context, p Ptr, n uint64, kinds ...Kind) (*Exported, error) {
	at, err := c.Pointer(p)
	if err != nil {
		return nil, err
	}
	base, size := at.allocation()
	if n == 0 || n > size || p < base || uint64(p-base) > size-n {
		return nil, fmt.Errorf("%w: %d bytes at %#x are not within one allocation (%d bytes at %#x): register each by itself",
			InvalidValue, n, uint64(p), size, uint64(base))
	}
	var refused []error
	for _, k := range kinds {
		if at.Kinds&k == 0 {
			continue
		}
		e, err := export(c, p, k)
		if err == nil {
			e.Offset, e.Size = uint64(p-base), size
			return e, nil
		}
		if e != nil || !isRefused(err) {
			return e, err
		}
		refused = append(refused, err)
	}
	if len(refused) == 0 {
		return nil, fmt.Errorf("%w: the memory at %#x is %s: make it with cuMemCreate and a type of handle that it can be exported as, or with cuMemAlloc (cudaMalloc)",
			NotSupported, uint64(p), at.Kinds)
	}
	return nil, errors.Join(refused...)
}

func export(c Context, p Ptr, kind Kind) (*Exported, error) {
	e := &Exported{}
	err := e.take(c, p, kind)
	if err == nil {
		return e, nil
	}
	err = e.undo.failed(c, err)
	if len(e.undo) == 0 {
		e = nil
	}
	return e, err
}

func (e *Exported) take(c Context, p Ptr, kind Kind) (err error) {
	if kind == IPC {
		e.Shared, err = c.ExportIPC(p)
		return err
	}
	h, err := c.Retain(p)
	if err != nil {
		return err
	}
	e.undo.add(func(c Context) error { return c.Release(h) })
	if e.Shared, err = c.Export(h, kind); err != nil {
		return err
	}
	// The handle has served. If it cannot be released now, Close tries again.
	_ = e.undo.run(c)
	if kind == PosixFD {
		fd := e.FD
		e.undo.add(func(Context) error { return syscall.Close(fd) })
	}
	return nil
}
