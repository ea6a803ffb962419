package cuda

import (
	"errors"
)

// Allocation is mapped memory of a device, which this process owns.
type Allocation struct {
	Base Ptr
	Size uint64
	// Kind is the way to share it.
	Kind Kind

	undo undo
}

// Allocate allocates and maps memory that can be exported as the first of the
// kinds that the driver grants. The size is rounded up to the granularity. The
// error joins why each kind was refused.
//
// An Allocation beside an error holds what could not be given back: Close it.
func Allocate(c Context, size uint64, kinds ...Kind) (*Allocation, error) {
	refused := []error{}
	for _, k := range kinds {
		a, err := allocate(c, size, k)
		if err == nil || a != nil || !isRefused(err) {
			return a, err
		}
		refused = append(refused, err)
	}
	return nil, errors.Join(refused...)
}

// isRefused reports whether another kind may do.
func isRefused(err error) bool {
	return errors.Is(err, NotPermitted) || errors.Is(err, NotSupported) || errors.Is(err, InvalidDevice) || errors.Is(err, InvalidValue)
}

func allocate(c Context, size uint64, kind Kind) (*Allocation, error) {
	a := &Allocation{Size: size, Kind: kind}
	err := a.take(c)
	if err == nil {
		return a, nil
	}
	err = a.undo.failed(c, err)
	if len(a.undo) == 0 {
		a = nil
	}
	return a, err
}

func (a *Allocation) take(c Context) (err error) {
	if a.Kind == IPC {
		a.Base, err = c.Alloc(a.Size)
		if err == nil {
			a.undo.add(func(c Context) error { return c.Free(a.Base) })
		}
		return err
	}
	unit, err := c.Granularity(a.Kind)
	if err != nil {
		return err
	}
	a.Size = (a.Size + unit - 1) / unit * unit
	h, err := c.Create(a.Size, a.Kind)
	if err != nil {
		return err
	}
	a.undo.add(func(c Context) error { return c.Release(h) })
	a.Base, err = place(c, &a.undo, h, a.Size, true)
	return err
}

// Close frees the memory, as far as this process holds it. It may be called
// again after an error, and goes on where it failed.
func (a *Allocation) Close(c Context) error { return a.undo.run(c) }

// place reserves addresses and maps memory there.
func place(c Context, u *undo, h Handle, size uint64, writable bool) (Ptr, error) {
	p, err := c.Reserve(size)
	if err != nil {
		return 0, err
	}
	u.add(func(c Context) error { return c.FreeAddress(p, size) })
	if err := c.Map(p, size, h); err != nil {
		return 0, err
	}
	u.add(func(c Context) error { return c.Unmap(p, size) })
	return p, c.SetAccess(p, size, writable)
}
