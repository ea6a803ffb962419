//go:build linux

package simcuda

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// Alloc implements [cuda.Context].
func (c *context) Alloc(size uint64) (cuda.Ptr, error) {
	const call, unit = "cuMemAlloc", 512
	if err := c.enter(call); err != nil {
		return 0, err
	}
	defer c.leave()
	object := fmt.Sprintf("%d bytes on GPU %d", size, c.gpu.ordinal)
	if size == 0 {
		return 0, refuse(call, object, cuda.InvalidValue)
	}
	size = (size + unit - 1) / unit * unit
	m, err := c.createMemory(c.gpu, size, cuda.IPC)
	if err != nil {
		return 0, refused(call, object, err)
	}
	s := c.take(c.gpu, allocated, size, unit)
	c.whole(s, m)
	return cuda.Ptr(s.base), nil
}

// Managed is a [cuda.Context] whose application allocates managed memory. Only
// tests do: Hawser refuses it.
type Managed interface {
	AllocManaged(size uint64) (cuda.Ptr, error)
}

// AllocManaged implements [Managed]. Free frees it.
func (c *context) AllocManaged(size uint64) (cuda.Ptr, error) {
	p, err := c.Alloc(size)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.spanAt(p, allocated).maps[0].mem.isManaged = true
	}
	return p, err
}

// Free implements [cuda.Context]. Whoever has the memory open loses it.
func (c *context) Free(p cuda.Ptr) error {
	const call = "cuMemFree"
	if err := c.enter(call); err != nil {
		return err
	}
	defer c.leave()
	s := c.spanAt(p, allocated)
	if s == nil {
		return refuse(call, fmt.Sprintf("%#x", uint64(p)), cuda.InvalidValue)
	}
	c.machine.withdraw(c.ipcHandle(s))
	if err := spoil(s.maps[0].mem.file, c.options.Poison); err != nil {
		return refused(call, "", err)
	}
	c.give(s)
	c.gone(s.maps[0], call)
	return nil
}

// spoil is what becomes of freed memory that another process still has open.
func spoil(f *os.File, poison bool) error {
	if !poison {
		return f.Truncate(0)
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	const piece = 1 << 20
	b := bytes.Repeat([]byte{PoisonByte}, piece)
	for at := int64(0); at < info.Size(); at += piece {
		if _, err := f.WriteAt(b[:min(piece, info.Size()-at)], at); err != nil {
			return err
		}
	}
	return nil
}

// ipcHandle is made of the process, the device and the address, and nothing
// else: the next allocation at that address has the same.
func (d *Driver) ipcHandle(s *span) (h [64]byte) {
	copy(h[:16], d.process)
	binary.LittleEndian.PutUint64(h[16:], uint64(s.gpu.ordinal))
	binary.LittleEndian.PutUint64(h[24:], s.base)
	return h
}

// ExportIPC implements [cuda.Context].
func (c *context) ExportIPC(p cuda.Ptr) (cuda.Shared, error) {
	const call = "cuIpcGetMemHandle"
	if err := c.enter(call); err != nil {
		return cuda.Shared{}, err
	}
	defer c.leave()
	s := c.within(uint64(p), 1)
	if s == nil || s.kind != allocated {
		return cuda.Shared{}, refuse(call, fmt.Sprintf("%#x", uint64(p)), cuda.InvalidValue)
	}
	h := c.ipcHandle(s)
	if err := c.machine.publish(h, s.maps[0].mem.place()); err != nil {
		return cuda.Shared{}, refused(call, "", err)
	}
	return cuda.Shared{Kind: cuda.IPC, Bytes: h}, nil
}

// OpenIPC implements [cuda.Context].
func (c *context) OpenIPC(s cuda.Shared) (cuda.Ptr, error) {
	const call = "cuIpcOpenMemHandle"
	if err := c.enter(call); err != nil {
		return 0, err
	}
	defer c.leave()
	if s.Kind != cuda.IPC {
		return 0, refuse(call, s.Kind.String(), cuda.InvalidValue)
	}
	for _, o := range c.spans {
		if o.kind == opened && o.maps[0].mem.ipc == s.Bytes {
			return 0, refuse(call, "a handle that is open in this process", cuda.AlreadyMapped)
		}
	}
	at, f, err := c.machine.resolve(s.Bytes)
	if err != nil {
		return 0, refuse(call, "a handle that leads nowhere ("+err.Error()+")", cuda.InvalidHandle)
	}
	if at.Process == c.process {
		f.Close()
		return 0, refuse(call, "this process's own handle", cuda.InvalidContext)
	}
	m, err := c.importMemory(f, 0)
	if err != nil {
		return 0, refused(call, "", err)
	}
	m.ipc, m.owner = s.Bytes, at.Process
	n := c.take(c.gpu, opened, m.size, c.gpu.Granularity)
	c.whole(n, m)
	return cuda.Ptr(n.base), nil
}

// CloseIPC implements [cuda.Context].
func (c *context) CloseIPC(p cuda.Ptr) error {
	const call = "cuIpcCloseMemHandle"
	if err := c.enter(call); err != nil {
		return err
	}
	defer c.leave()
	s := c.spanAt(p, opened)
	if s == nil {
		return refuse(call, fmt.Sprintf("%#x", uint64(p)), cuda.InvalidValue)
	}
	c.give(s)
	c.gone(s.maps[0], call)
	return nil
}
