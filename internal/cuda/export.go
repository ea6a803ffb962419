package cuda

import (
	"errors"
	"fmt"
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

// Export makes a handle for n bytes of device memory at p, as the first of the
// kinds that the memory can be exported as, with what it retains released. The
// error joins why each kind was refused; a range that is not within one
// allocation is refused as every kind.
//
// An Exported beside an error holds what could not be given back: Close it.
func Export(c Context, p Ptr, n uint64, kinds ...Kind) (*Exported, error) {
	at, err := c.Pointer(p)
	if err != nil {
		return nil, err
	}
	var refused []error
	for _, k := range kinds {
		e, err := export(c, at, p, n, k)
		if err == nil || e != nil || !isRefused(err) {
			return e, err
		}
		refused = append(refused, err)
	}
	return nil, errors.Join(refused...)
}

func export(c Context, at PointerInfo, p Ptr, n uint64, kind Kind) (*Exported, error) {
	if at.Kinds&kind == 0 {
		return nil, unsuited("the memory at %#x cannot be shared as %s, only as %s", uint64(p), kind, at.Kinds)
	}
	base, size := at.MappingBase, at.MappingSize
	if kind == IPC {
		base, size = at.Base, at.Size
	}
	if n == 0 || n > size || p < base || uint64(p-base) > size-n {
		return nil, unsuited("%d bytes at %#x are not within one allocation (%d bytes at %#x): register each by itself", n, uint64(p), size, uint64(base))
	}
	e := &Exported{Offset: uint64(p - base)}
	err := e.take(c, p, kind)
	e.Size = size
	if err == nil {
		return e, nil
	}
	err = e.undo.failed(c, err)
	if len(e.undo) == 0 {
		e = nil
	}
	return e, err
}

// unsuited says that memory is not what a kind needs; another kind may do.
func unsuited(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{NotSupported}, args...)...)
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
