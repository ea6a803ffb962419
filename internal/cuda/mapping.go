package cuda

import "fmt"

// Mapping is another process's memory, mapped here.
type Mapping struct {
	Base Ptr
	Size uint64

	undo undo
}

// Import maps what another process exported, all of it. The descriptor of a
// PosixFD handle remains the caller's and can be closed afterwards. Every call
// makes a mapping of its own; IPC allows one per handle and process.
//
// A Mapping beside an error holds what could not be given back: Close it.
func Import(c Context, s Shared, writable bool) (*Mapping, error) {
	m := &Mapping{Size: s.Size}
	err := m.take(c, s, writable)
	if err == nil {
		return m, nil
	}
	err = m.undo.failed(c, err)
	if len(m.undo) == 0 {
		m = nil
	}
	return m, err
}

func (m *Mapping) take(c Context, s Shared, writable bool) (err error) {
	if s.Size == 0 {
		return fmt.Errorf("%w: a handle of memory without a size", InvalidValue)
	}
	if s.Kind == IPC {
		return m.open(c, s)
	}
	h, err := c.Import(s)
	if err != nil {
		return err
	}
	var held undo
	held.add(func(c Context) error { return c.Release(h) })
	m.undo = held
	if m.Base, err = place(c, &m.undo, h, m.Size, writable); err != nil {
		return err
	}
	// The mapping holds the memory. A release that is refused now is tried
	// again by Close, last, as the order wants.
	if held.run(c) == nil {
		m.undo = m.undo[1:]
	}
	return nil
}

// open maps an IPC handle, whose memory has to be as large as its provider says.
func (m *Mapping) open(c Context, s Shared) (err error) {
	if m.Base, err = c.OpenIPC(s); err != nil {
		return err
	}
	m.undo.add(func(c Context) error { return c.CloseIPC(m.Base) })
	at, err := c.Pointer(m.Base)
	if err != nil {
		return err
	}
	if have := at.Size - uint64(m.Base-at.Base); m.Size > have {
		return fmt.Errorf("%w: the handle is of %d bytes, not of %d as its provider says", InvalidValue, have, m.Size)
	}
	return nil
}

// Close unmaps the exact range, frees the addresses, closes an IPC mapping and
// releases the handle, in that order. No copy may be in flight. It may be called
// again after an error, and goes on where it failed; a closed one has nothing
// to do.
func (m *Mapping) Close(c Context) error { return m.undo.run(c) }
