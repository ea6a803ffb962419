//go:build linux

package scenarios

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/internal/cuda"
)

// providerSetup is what a provider in a process of its own begins with.
type providerSetup struct {
	Transports []providerTransport
	Runs, Bin  string
	Name       string
	Listen     string // where its control plane is
	Memory     cuda.Kind
}

// providerTransport is what is told of a transport.
type providerTransport struct {
	Name   string
	Config json.RawMessage `json:",omitempty"`
	Env    map[string]string
}

// providerUp is its answer.
type providerUp struct {
	Address string
	Plugins []int
}

// order is what it is told, one after the other.
type order struct {
	Do      string // publish, replace or leave
	Content uint64
}

// published is what there is now at the one address.
type published struct {
	Address    uint64
	Capability engine.Capability
	Plugins    []int
}

// What a provider publishes: regions at one address, of one length. Only their
// beginning has content. A GPU's memory is wherever the driver puts it: it is
// published at that address.
const (
	placeAddress = 0x7000_0000_0000 // far below what the kernel begins with
	placeBytes   = 16 << 20
	contentBytes = 64 << 10
)

// provider publishes one region after the other, all at the same address.
func provider(d *dialogue) error {
	var s providerSetup
	if err := d.hear(&s); err != nil {
		return err
	}
	ctx := context.Background()
	var transports []engine.TransportConfig
	for _, x := range s.Transports {
		transports = append(transports, engine.TransportConfig{Name: x.Name, Config: x.Config, Env: x.Env})
	}
	cfg := configOf(s.Name, transports)
	cfg.Plugins.Dir, cfg.Plugins.RunDir, cfg.Control.Listen = s.Bin, s.Runs, s.Listen
	e, err := engine.Open(ctx, cfg)
	if err != nil {
		return err
	}
	for e.Transports()[0].State != "up" { // as in carrier.open; the parent's patience ends it
		time.Sleep(pollEvery)
	}
	if err := d.say(providerUp{e.Self().Address, pluginPIDs(e)}); err != nil {
		return err
	}
	p := place{e: e}
	if s.Memory != 0 {
		if p.gpus, err = openGPUs(s.Transports[0].Env[simVariable]); err != nil {
			return err
		}
		p.remote = s.Memory
	}
	for {
		var o order
		if err := d.hear(&o); err != nil {
			return err
		}
		switch {
		case o.Do == "leave":
			err := errors.Join(p.clear(), e.Close(ctx))
			if p.gpus != nil {
				err = errors.Join(err, p.gpus.close())
			}
			return errors.Join(err, d.say("left"))
		case o.Do == "publish":
			err = p.clear()
		case o.Do == "replace":
			err = p.abandon()
		}
		if err == nil {
			err = p.publish(o.Content)
		}
		if err != nil {
			return err
		}
		if err := d.say(published{p.block.Address(), p.block.Capability(), pluginPIDs(e)}); err != nil {
			return err
		}
	}
}

// place is the one address, and what is there now.
type place struct {
	carrier
	e      *engine.Engine
	block  *block
	memory *deviceMemory // that the next region is of, if it is there
}

// clear closes what is there.
func (p *place) clear() error {
	if p.block == nil {
		return nil
	}
	return p.block.close(context.Background())
}

// abandon does what an owner must not: the address has another region while the
// old one is only withdrawn, and plugins still have it. CUDA IPC's memory must
// not even be freed then: the other region is of the same.
func (p *place) abandon() error {
	expired, cancel := context.WithCancel(context.Background())
	cancel()
	r := p.block.Region
	if err := r.Close(expired); !errors.Is(err, engine.Busy) {
		return fmt.Errorf("close without waiting: %w", err)
	}
	switch p.remote {
	case 0:
		_, _, no := unix.Syscall(unix.SYS_MUNMAP, uintptr(r.Address()), uintptr(r.Len()), 0)
		if no != 0 {
			return no
		}
		return nil
	case cuda.IPC:
		p.memory = p.block.device
		return nil
	}
	return p.block.device.free()
}

// publish puts the next region there.
func (p *place) publish(content uint64) error {
	if p.remote == 0 {
		r, err := allocateAt(p.e, placeAddress, placeBytes)
		if err != nil {
			return err
		}
		p.block = &block{Region: r}
		return p.block.put(0, filled(contentBytes, content))
	}
	m := p.memory
	if p.memory = nil; m == nil {
		var err error
		if m, err = p.gpus.all[0].allocate(placeBytes, p.remote); err != nil {
			return err
		}
	}
	if _, err := m.WriteAt(filled(contentBytes, content), 0); err != nil {
		return err
	}
	r, err := m.register(p.e, placeAddress, placeBytes, engine.RegionOptions{})
	p.block = &block{r, m}
	return err
}

// allocateAt allocates a region at an address. If it gets another one, that
// place and all others above the address are taken, and it tries again: another
// thread may get in the way.
func allocateAt(e *engine.Engine, at, size uintptr) (*engine.Region, error) {
	var errs []error
	for range 8 {
		r, err := e.AllocateHost(int(size), engine.RegionOptions{})
		if err != nil || r.Address() == uint64(at) {
			return r, err
		}
		defer r.Close(context.Background()) //nolint:errcheck // nobody was told of it
		errs = append(errs, fmt.Errorf("allocated at %#x", r.Address()))
		if err := reserveAbove(at, size); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, err
		}
	}
	return nil, errors.Join(errs...)
}

// reserveAbove has the kernel place the next mapping of a size at an address:
// it takes the highest gap that is large enough, and there is none above. Many
// that are a little smaller are left, for others.
func reserveAbove(at, size uintptr) error {
	const (
		stack = 8 << 20 // what the main thread's may grow by
		holes = 256
	)
	page := uintptr(os.Getpagesize())
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	free := at + size
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			return err
		}
		if to <= at+size {
			continue
		}
		end := from
		if strings.Contains(line, "[stack]") {
			end -= stack
		}
		for n := 0; from > free && end > free && end-free >= size; n++ {
			length := page
			if n == holes {
				length = end - free
			}
			_, _, no := unix.Syscall6(unix.SYS_MMAP, free, length, unix.PROT_NONE,
				unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED_NOREPLACE, ^uintptr(0), 0)
			if no != 0 {
				return fmt.Errorf("reserve %d bytes at %#x: %w", length, free, no)
			}
			if n == holes {
				break
			}
			free += size
		}
		free = max(free, to)
		if strings.Contains(line, "[stack]") {
			break
		}
	}
	return nil
}

// startProvider starts one, and waits until it is up.
func (c carrier) startProvider(t *testing.T, name, listen string) (*child, providerUp) {
	t.Helper()
	dir, err := os.MkdirTemp(root, "k") // it may be killed, and leave something
	if err != nil {
		t.Fatal(err)
	}
	setup := providerSetup{Runs: dir, Bin: bin, Name: name, Listen: listen, Memory: c.remote}
	list, err := c.transports()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range list {
		setup.Transports = append(setup.Transports, providerTransport{x.Name, x.Config, x.Env})
	}
	p := startChild(t, "provider")
	p.tell(t, setup)
	var up providerUp
	p.ask(t, &up)
	return p, up
}

// publish has a provider publish new content.
func (c *child) publish(t *testing.T, do string, content uint64) (p published) {
	t.Helper()
	c.tell(t, order{do, content})
	c.ask(t, &p)
	return p
}

// leave has it go in peace.
func (c *child) leave(t *testing.T) {
	t.Helper()
	c.tell(t, order{Do: "leave"})
	var left string
	c.ask(t, &left)
	_ = c.Wait()
}
