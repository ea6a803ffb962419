//go:build linux

package simcuda

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// memory is an allocation, as far as this process holds it.
type memory struct {
	d      *Driver
	name   string // its memfd's: "simcuda:DEVICE.ID"
	device int    // whose memory it is
	size   uint64
	kinds  cuda.Kind
	file   *os.File
	held   *os.File // the machine's count
	holds  int      // references, mappings, IPC opens
	fabric *[64]byte

	isManaged bool
	// Of an IPC mapping: the handle, and the process that may free the memory.
	ipc   [64]byte
	owner string
}

// reference is what a handle stands for.
type reference struct {
	gpu   *gpu // whose context it was made in
	mem   *memory
	count int
}

const namePrefix = "simcuda:"

// createMemory allocates. VMM's memory cannot shrink; Alloc's can, when it is
// freed.
func (d *Driver) createMemory(g *gpu, size uint64, kinds cuda.Kind) (*memory, error) {
	id := rand.Text()
	m := &memory{d: d, name: namePrefix + memoryPrefix(g.ordinal) + id, device: g.ordinal, size: size, kinds: kinds}
	seals := unix.F_SEAL_GROW
	if kinds != cuda.IPC {
		seals |= unix.F_SEAL_SHRINK
	}
	var err error
	if m.held, err = d.machine.hold(g.ordinal, id, size, g.Memory); err != nil {
		return nil, err
	}
	if m.file, err = newFile(m.name, size, seals); err != nil {
		m.held.Close()
		return nil, err
	}
	d.memories[m.name] = m
	return m, nil
}

// importMemory takes another process's memory over from an open file, which it
// closes if it does not need it.
func (d *Driver) importMemory(f *os.File, kinds cuda.Kind) (*memory, error) {
	name := fileName(int(f.Fd()))
	if m := d.memories[name]; m != nil {
		f.Close()
		return m, nil
	}
	m := &memory{d: d, name: name, kinds: kinds, file: f}
	err := m.read()
	if err != nil {
		f.Close()
		return nil, err
	}
	d.memories[name] = m
	return m, nil
}

// read fills in what the file tells.
func (m *memory) read() error {
	number, id, ok := strings.Cut(strings.TrimPrefix(m.name, namePrefix), ".")
	device, err := strconv.Atoi(number)
	if !ok || err != nil || !strings.HasPrefix(m.name, namePrefix) {
		return fmt.Errorf("the descriptor is not of device memory: %q", m.name)
	}
	info, err := m.file.Stat()
	if err != nil {
		return err
	}
	m.device, m.size = device, uint64(info.Size())
	m.held, err = m.d.machine.hold(device, id, m.size, 0)
	return err
}

// drop drops holds; the memory goes with the last.
func (m *memory) drop(n int) {
	if m.holds -= n; m.holds > 0 {
		return
	}
	delete(m.d.memories, m.name)
	m.close()
}

func (m *memory) close() {
	if m.fabric != nil {
		m.d.machine.withdraw(*m.fabric)
	}
	m.file.Close()
	m.held.Close()
}

func (m *memory) place() place {
	return place{Process: m.d.process, PID: os.Getpid(), FD: int(m.file.Fd()), File: m.name}
}

// refer makes a handle.
func (c *context) refer(m *memory) cuda.Handle {
	h := lowest(c.handles)
	c.handles[h] = &reference{c.gpu, m, 1}
	m.holds++
	return h
}

// Granularity implements [cuda.Context].
func (c *context) Granularity(kinds cuda.Kind) (uint64, error) {
	const call = "cuMemGetAllocationGranularity"
	if err := c.enter(call); err != nil {
		return 0, err
	}
	defer c.leave()
	if c.gpu.NoVMM {
		return 0, refuse(call, "", cuda.NotSupported)
	}
	return c.gpu.Granularity, nil
}

// Create implements [cuda.Context].
func (c *context) Create(size uint64, kinds cuda.Kind) (cuda.Handle, error) {
	const call = "cuMemCreate"
	if err := c.enter(call); err != nil {
		return 0, err
	}
	defer c.leave()
	object := fmt.Sprintf("%d bytes, %s, on GPU %d", size, kinds, c.gpu.ordinal)
	switch {
	case c.gpu.NoVMM:
		return 0, refuse(call, object, cuda.NotSupported)
	case size == 0 || size%c.gpu.Granularity != 0 || kinds&^(cuda.PosixFD|cuda.Fabric) != 0:
		return 0, refuse(call, object, cuda.InvalidValue)
	case kinds&cuda.PosixFD != 0 && c.gpu.NoPosixFD, kinds&cuda.Fabric != 0 && c.gpu.Fabric == NoFabric:
		return 0, refuse(call, object, cuda.NotSupported)
	case kinds&cuda.Fabric != 0 && c.gpu.Fabric == FabricRefused:
		return 0, refuse(call, object, cuda.NotPermitted)
	}
	m, err := c.createMemory(c.gpu, size, kinds)
	if err != nil {
		return 0, refused(call, object, err)
	}
	return c.refer(m), nil
}

// Retain implements [cuda.Context].
func (c *context) Retain(p cuda.Ptr) (cuda.Handle, error) {
	const call = "cuMemRetainAllocationHandle"
	if err := c.enter(call); err != nil {
		return 0, err
	}
	defer c.leave()
	m, s := c.at(uint64(p), 1)
	if m == nil || s.kind != reserved {
		return 0, refuse(call, fmt.Sprintf("the memory at %#x", uint64(p)), cuda.InvalidValue)
	}
	for h, r := range c.handles {
		if r.mem == m.mem {
			r.count++
			m.mem.holds++
			return h, nil
		}
	}
	return c.refer(m.mem), nil
}

// Release implements [cuda.Context].
func (c *context) Release(h cuda.Handle) error {
	const call = "cuMemRelease"
	if err := c.enter(call); err != nil {
		return err
	}
	defer c.leave()
	r := c.handles[h]
	if r == nil {
		return refuse(call, fmt.Sprintf("handle %d, which has no reference", h), cuda.InvalidValue)
	}
	if r.count--; r.count == 0 {
		delete(c.handles, h)
	}
	r.mem.drop(1)
	return nil
}

// Export implements [cuda.Context].
func (c *context) Export(h cuda.Handle, kind cuda.Kind) (cuda.Shared, error) {
	const call = "cuMemExportToShareableHandle"
	if err := c.enter(call); err != nil {
		return cuda.Shared{}, err
	}
	defer c.leave()
	r := c.handles[h]
	if r == nil || kind != cuda.PosixFD && kind != cuda.Fabric || r.mem.kinds&kind == 0 {
		return cuda.Shared{}, refuse(call, fmt.Sprintf("handle %d as %s", h, kind), cuda.InvalidValue)
	}
	s := cuda.Shared{Kind: kind}
	if kind == cuda.PosixFD {
		fd, err := c.duplicate(int(r.mem.file.Fd()))
		if err != nil {
			return cuda.Shared{}, refused(call, kind.String(), err)
		}
		s.FD = fd
		c.seen[fd] = r.mem.name
		return s, nil
	}
	if r.mem.fabric == nil {
		var b [64]byte
		rand.Read(b[:])
		if err := c.machine.publish(b, r.mem.place()); err != nil {
			return cuda.Shared{}, refused(call, kind.String(), err)
		}
		r.mem.fabric = &b
	}
	s.Bytes = *r.mem.fabric
	return s, nil
}

// duplicate returns the lowest free descriptor for the same file.
func (d *Driver) duplicate(fd int) (int, error) {
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
}

// Import implements [cuda.Context].
func (c *context) Import(s cuda.Shared) (cuda.Handle, error) {
	const call = "cuMemImportFromShareableHandle"
	if err := c.enter(call); err != nil {
		return 0, err
	}
	defer c.leave()
	f, err := c.openShared(s)
	if err != nil {
		return 0, refuse(call, s.Kind.String()+" ("+err.Error()+")", cuda.InvalidHandle)
	}
	m, err := c.importMemory(f, s.Kind)
	if err != nil {
		return 0, refuse(call, s.Kind.String()+" ("+err.Error()+")", cuda.InvalidHandle)
	}
	if s.Kind == cuda.PosixFD {
		c.seen[s.FD] = m.name
	}
	return c.refer(m), nil
}

func (c *context) openShared(s cuda.Shared) (*os.File, error) {
	switch s.Kind {
	case cuda.PosixFD:
		fd, err := c.duplicate(s.FD)
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), "imported"), nil
	case cuda.Fabric:
		if c.gpu.Fabric != FabricWorks {
			return nil, cuda.NotPermitted
		}
		_, f, err := c.machine.resolve(s.Bytes)
		return f, err
	}
	return nil, errors.New("not a kind that can be imported")
}
