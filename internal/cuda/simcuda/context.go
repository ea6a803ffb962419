//go:build linux

package simcuda

import (
	"fmt"
	"sync/atomic"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// context makes the calls of one open device.
type context struct {
	*Driver
	gpu      *gpu
	isInside atomic.Bool // Do runs
}

// enter locks and begins a call; on success leave ends it. A context that is
// lost refuses everything.
func (c *context) enter(call string) error {
	c.mu.Lock()
	err := c.begin(call)
	switch {
	case err != nil:
	case !c.isInside.Load():
		c.fault("%s outside Do", call)
		err = refuse(call, "", cuda.InvalidContext)
	case c.gpu.lost != 0:
		err = refuse(call, fmt.Sprintf("GPU %d", c.gpu.ordinal), c.gpu.lost)
	default:
		return nil
	}
	c.mu.Unlock()
	return err
}

func (c *context) leave() { c.mu.Unlock() }

// Memory implements [cuda.Context]. What any process holds is not free.
func (c *context) Memory() (free, total uint64, err error) {
	const call = "cuMemGetInfo"
	if err := c.enter(call); err != nil {
		return 0, 0, err
	}
	defer c.leave()
	var used uint64
	err = c.machine.locked(func() (err error) {
		used, err = c.machine.used(c.gpu.ordinal)
		return err
	})
	if err != nil {
		return 0, 0, refused(call, "", err)
	}
	total = c.gpu.Memory
	return total - min(used, total), total, nil
}

// RegisterHost implements [cuda.Context].
func (c *context) RegisterHost(mem []byte, readOnly bool) error {
	const call = "cuMemHostRegister"
	if err := c.enter(call); err != nil {
		return err
	}
	defer c.leave()
	object := fmt.Sprintf("%d bytes", len(mem))
	if len(mem) == 0 {
		return refuse(call, object, cuda.InvalidValue)
	}
	if readOnly && c.gpu.NoReadOnlyHost {
		return refuse(call, object, cuda.NotSupported)
	}
	m := &mapping{gpu: c.gpu, base: uint64(cuda.Host(mem)), size: uint64(len(mem)), host: mem, access: map[*gpu]access{}}
	for _, o := range c.hosts {
		if m.base < o.base+o.size && o.base < m.base+m.size {
			return refuse(call, object, cuda.AlreadyRegistered)
		}
	}
	for _, g := range c.gpus {
		m.access[g] = access{read: true, write: !readOnly}
	}
	c.hosts = append(c.hosts, m)
	return nil
}

// UnregisterHost implements [cuda.Context].
func (c *context) UnregisterHost(mem []byte) error {
	const call = "cuMemHostUnregister"
	if err := c.enter(call); err != nil {
		return err
	}
	defer c.leave()
	for i, m := range c.hosts {
		if m.base == uint64(cuda.Host(mem)) && m.size == uint64(len(mem)) {
			c.gone(m, call)
			c.hosts = append(c.hosts[:i:i], c.hosts[i+1:]...)
			return nil
		}
	}
	return refuse(call, fmt.Sprintf("%d bytes", len(mem)), cuda.NotRegistered)
}
