package simverbs

import (
	"fmt"
	"syscall"
	"unsafe"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// pd is a protection domain.
type pd struct {
	d        *device
	users    int // regions, shared receive queues, queue pairs
	isClosed bool
}

func (p *pd) begin(call string) error {
	if err := p.d.begin(call); err != nil {
		return err
	}
	if p.isClosed {
		p.d.p.fault("%s in a protection domain that was closed", call)
		return refuse(call, p.d.n.name, syscall.EINVAL)
	}
	return nil
}

func (p *pd) Close() error {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return p.d.closing("ibv_dealloc_pd", &p.isClosed, p.users, func() { delete(p.d.pds, p) })
}

// closing is how every object of a device is closed: once, and not while it is used.
func (d *device) closing(call string, isClosed *bool, users int, do func()) error {
	if *isClosed {
		d.p.fault("%s twice", call)
		return refuse(call, d.n.name, syscall.EINVAL)
	}
	if err := d.p.inject(call, d.n.name); err != nil {
		return err
	}
	if users > 0 {
		return refuse(call, d.n.name, syscall.EBUSY)
	}
	*isClosed = true
	do()
	return nil
}

// mr is a registered memory region. Its slice is how the simulation reaches
// the memory, so that the race detector sees what a device would do.
type mr struct {
	pd       *pd
	mem      []byte
	base     uint64
	key      uint32
	access   verbs.Access
	sends    int // posted, not completed
	receives map[*receive]bool
	isClosed bool
}

func (p *pd) RegisterMemory(mem []byte, access verbs.Access) (verbs.MR, error) {
	const call = "ibv_reg_mr"
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := p.begin(call); err != nil {
		return nil, err
	}
	if len(mem) == 0 || access&verbs.RemoteWrite != 0 && access&verbs.LocalWrite == 0 {
		return nil, refuse(call, d.n.name, syscall.EINVAL)
	}
	if len(d.mrs) >= d.n.config.Limits.MRs {
		return nil, refuse(call, d.n.name, syscall.ENOMEM)
	}
	locked := len(mem)
	for _, m := range d.mrs {
		locked += len(m.mem)
	}
	if limit := d.n.config.Memlock; limit > 0 && locked > limit {
		return nil, &verbs.MissingError{
			What: fmt.Sprintf("locked memory for %d KiB: the simulated limit is %d KiB", len(mem)>>10, limit>>10),
			Do:   "raise RLIMIT_MEMLOCK", Err: refuse(call, d.n.name, syscall.ENOMEM),
		}
	}
	d.keys++
	m := &mr{
		pd: p, mem: mem, base: uint64(uintptr(unsafe.Pointer(&mem[0]))),
		key: d.keys, access: access, receives: map[*receive]bool{},
	}
	d.mrs[m.key] = m
	p.users++
	return m, nil
}

func (m *mr) LKey() uint32 { return m.key }
func (m *mr) RKey() uint32 { return m.key }

func (m *mr) Close() error {
	d := m.pd.d
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closing("ibv_dereg_mr", &m.isClosed, 0, func() {
		if m.sends > 0 || len(m.receives) > 0 {
			d.p.fault("a region was closed under %d sends and %d receives", m.sends, len(m.receives))
		}
		delete(d.mrs, m.key)
		m.pd.users--
	})
}

// region returns the bytes that a key and a range name in this domain, nil if
// they name none.
func (p *pd) region(key uint32, at uint64, length uint32) (*mr, []byte) {
	m := p.d.mrs[key]
	if m == nil || m.pd != p || at < m.base {
		return nil, nil
	}
	off := at - m.base
	if off > uint64(len(m.mem)) || uint64(length) > uint64(len(m.mem))-off {
		return nil, nil
	}
	return m, m.mem[off : off+uint64(length) : off+uint64(length)]
}
