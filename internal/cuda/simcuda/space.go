//go:build linux

package simcuda

import (
	"fmt"
	"slices"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// firstAddress is above every address that a process of Linux has, so that the
// addresses of devices and of host memory never meet. Every process counts from
// here.
const firstAddress = 1 << 48

// span is a range of addresses in use.
type span struct {
	gpu  *gpu
	kind spanKind
	base uint64
	size uint64
	maps []*mapping // by address; one that covers it all unless reserved
}

type spanKind int

const (
	reserved  spanKind = iota // Reserve
	allocated                 // Alloc
	opened                    // OpenIPC
)

// mapping is memory at an address.
type mapping struct {
	gpu    *gpu // whose context it was made in
	base   uint64
	size   uint64
	mem    *memory
	host   []byte // instead of mem
	access map[*gpu]access
	used   int // copies in flight
	isGone bool
}

type access struct{ read, write bool }

// take finds the lowest free range.
func (d *Driver) take(g *gpu, kind spanKind, size, align uint64) *span {
	at, i := uint64(firstAddress), 0
	for ; i < len(d.spans); i++ {
		s := d.spans[i]
		if s.base >= at && s.base-at >= size {
			break
		}
		at = (s.base + s.size + align - 1) / align * align
	}
	s := &span{gpu: g, kind: kind, base: at, size: size}
	d.spans = slices.Insert(d.spans, i, s)
	return s
}

func (d *Driver) give(s *span) {
	i := slices.Index(d.spans, s)
	d.spans = slices.Delete(d.spans, i, i+1)
}

// spanAt finds what begins at p.
func (d *Driver) spanAt(p cuda.Ptr, kind spanKind) *span {
	for _, s := range d.spans {
		if s.base == uint64(p) && s.kind == kind {
			return s
		}
	}
	return nil
}

// within finds the span that holds a whole range.
func (d *Driver) within(p, n uint64) *span {
	for _, s := range d.spans {
		if p >= s.base && p-s.base < s.size && n <= s.size-(p-s.base) {
			return s
		}
	}
	return nil
}

// at finds what is mapped at p, for n bytes or less.
func (d *Driver) at(p, n uint64) (*mapping, *span) {
	s := d.within(p, 1)
	if s == nil {
		return nil, nil
	}
	for _, m := range s.maps {
		if p >= m.base && p-m.base < m.size {
			return m, s
		}
	}
	return nil, s
}

// whole maps memory over a whole span, for all devices of the process.
func (d *Driver) whole(s *span, mem *memory) {
	m := &mapping{gpu: s.gpu, base: s.base, size: s.size, mem: mem, access: map[*gpu]access{}}
	for _, g := range d.gpus {
		m.access[g] = access{true, true}
	}
	s.maps = []*mapping{m}
	mem.holds++
}

// gone ends a mapping.
func (d *Driver) gone(m *mapping, call string) {
	if m.used > 0 {
		d.fault("%s of %d bytes at %#x while a copy uses them", call, m.size, m.base)
	}
	m.isGone = true
	if m.mem != nil {
		m.mem.drop(1)
	}
}

// Reserve implements [cuda.Context].
func (c *context) Reserve(size uint64) (cuda.Ptr, error) {
	const call = "cuMemAddressReserve"
	if err := c.enter(call); err != nil {
		return 0, err
	}
	defer c.leave()
	if size == 0 || size%c.gpu.Granularity != 0 {
		return 0, refuse(call, fmt.Sprintf("%d bytes", size), cuda.InvalidValue)
	}
	return cuda.Ptr(c.take(c.gpu, reserved, size, c.gpu.Granularity).base), nil
}

// FreeAddress implements [cuda.Context].
func (c *context) FreeAddress(p cuda.Ptr, size uint64) error {
	const call = "cuMemAddressFree"
	if err := c.enter(call); err != nil {
		return err
	}
	defer c.leave()
	s := c.spanAt(p, reserved)
	if s == nil || s.size != size || len(s.maps) > 0 {
		return refuse(call, fmt.Sprintf("%d bytes at %#x", size, uint64(p)), cuda.InvalidValue)
	}
	c.give(s)
	return nil
}

// Map implements [cuda.Context].
func (c *context) Map(p cuda.Ptr, size uint64, h cuda.Handle) error {
	const call = "cuMemMap"
	if err := c.enter(call); err != nil {
		return err
	}
	defer c.leave()
	object := fmt.Sprintf("%d bytes at %#x", size, uint64(p))
	base, s, r := uint64(p), c.within(uint64(p), size), c.handles[h]
	if size == 0 || size%c.gpu.Granularity != 0 || base%c.gpu.Granularity != 0 ||
		s == nil || s.kind != reserved || r == nil || size > r.mem.size {
		return refuse(call, object, cuda.InvalidValue)
	}
	i := 0
	for ; i < len(s.maps) && s.maps[i].base < base; i++ {
	}
	if i > 0 && s.maps[i-1].base+s.maps[i-1].size > base || i < len(s.maps) && base+size > s.maps[i].base {
		return refuse(call, object, cuda.AlreadyMapped)
	}
	m := &mapping{gpu: c.gpu, base: base, size: size, mem: r.mem, access: map[*gpu]access{}}
	s.maps = slices.Insert(s.maps, i, m)
	r.mem.holds++
	return nil
}

// mapped finds what was mapped exactly there.
func (c *context) mapped(p cuda.Ptr, size uint64) (*mapping, *span) {
	m, s := c.at(uint64(p), 1)
	if m == nil || s.kind != reserved || m.base != uint64(p) || m.size != size {
		return nil, nil
	}
	return m, s
}

// SetAccess implements [cuda.Context].
func (c *context) SetAccess(p cuda.Ptr, size uint64, writable bool) error {
	const call = "cuMemSetAccess"
	if err := c.enter(call); err != nil {
		return err
	}
	defer c.leave()
	m, _ := c.mapped(p, size)
	if m == nil {
		return refuse(call, fmt.Sprintf("%d bytes at %#x", size, uint64(p)), cuda.InvalidValue)
	}
	m.access[c.gpu] = access{true, writable}
	return nil
}

// Unmap implements [cuda.Context].
func (c *context) Unmap(p cuda.Ptr, size uint64) error {
	const call = "cuMemUnmap"
	if err := c.enter(call); err != nil {
		return err
	}
	defer c.leave()
	m, s := c.mapped(p, size)
	if m == nil {
		return refuse(call, fmt.Sprintf("%d bytes at %#x, which are not one mapping", size, uint64(p)), cuda.InvalidValue)
	}
	s.maps = slices.DeleteFunc(s.maps, func(o *mapping) bool { return o == m })
	c.gone(m, call)
	return nil
}

// deviceAt finds the device memory at an address, or says what is there.
func (d *Driver) deviceAt(p cuda.Ptr) (*mapping, *span, error) {
	m, s := d.at(uint64(p), 1)
	what := ""
	switch {
	case m != nil && m.mem.isManaged:
		what = "managed memory"
	case m != nil:
		return m, s, nil
	case d.hostAt(uint64(p)) != nil:
		what = "host memory"
	default:
		what = "nothing that the driver knows"
	}
	return nil, nil, refuse("cuPointerGetAttribute", fmt.Sprintf("%#x, which is %s, not a device's memory", uint64(p), what), cuda.InvalidValue)
}

// Where implements [cuda.Driver].
func (d *Driver) Where(p cuda.Ptr) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin("cuPointerGetAttribute"); err != nil {
		return 0, err
	}
	m, _, err := d.deviceAt(p)
	if err != nil {
		return 0, err
	}
	return m.mem.device, nil
}

// Pointer implements [cuda.Context].
func (c *context) Pointer(p cuda.Ptr) (cuda.PointerInfo, error) {
	if err := c.enter("cuPointerGetAttribute"); err != nil {
		return cuda.PointerInfo{}, err
	}
	defer c.leave()
	m, s, err := c.deviceAt(p)
	if err != nil {
		return cuda.PointerInfo{}, err
	}
	if s.gpu != c.gpu && (s.kind != reserved || m.mem.device != c.gpu.ordinal) {
		return cuda.PointerInfo{}, refuse("cuMemGetAddressRange", fmt.Sprintf("%#x, which is not GPU %d's", uint64(p), c.gpu.ordinal), cuda.NotFound)
	}
	i := cuda.PointerInfo{
		Base: cuda.Ptr(m.base), Size: m.size, MappingBase: cuda.Ptr(m.base), MappingSize: m.size,
		Device: m.mem.device, Kinds: m.mem.kinds,
	}
	if s.kind == opened {
		i.Kinds = 0 // what was imported by IPC is not exported again
	}
	return i, nil
}
