//go:build linux

package scenarios

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/internal/cuda/libcuda"
	"github.com/hawser-transport/hawser/internal/cuda/simcuda"
)

// simVariable names the file of a simulated machine's options to mnnvl, and to
// these tests where devices are real: then this is rehearsed.
const simVariable = "HAWSER_CUDA_SIM"

// gpuTestVariable says that real devices have to be there, and are GPUs.
const gpuTestVariable = "HAWSER_GPU_TEST"

// gpus are a machine's as one process has them: this machine's on hardware, and
// otherwise simulated ones, of a row's own.
type gpus struct {
	file string          // of the simulated machine's options
	sim  *simcuda.Driver // nil on hardware
	all  []*gpu
}

// gpu is a device, and what its memory is looked at through.
type gpu struct {
	cuda.Device
	mu     sync.Mutex
	stage  []byte
	stream cuda.Stream
}

// stageBytes is how much of a GPU's memory is copied at a time.
const stageBytes = 1 << 20

// ownGPUs are this machine's, in this process, until it ends. What the driver
// takes when something is done for the first time is taken then.
var ownGPUs = sync.OnceValues(func() (*gpus, error) {
	m, err := openGPUs(os.Getenv(simVariable))
	if err != nil {
		return nil, err
	}
	for _, g := range m.all {
		for _, k := range []cuda.Kind{cuda.PosixFD, cuda.IPC} {
			b, err := g.allocate(unit, k)
			if err != nil {
				return nil, err
			}
			if err := b.warm(); err != nil {
				return nil, err
			}
		}
	}
	return m, nil
})

// warm does with an allocation what the tests do, and frees it.
func (m *deviceMemory) warm() error {
	if _, err := m.WriteAt(make([]byte, 8), 0); err != nil {
		return err
	}
	err := m.Do(func(c cuda.Context) error {
		e, err := c.CreateEvent(true)
		if err != nil {
			return err
		}
		if _, err := c.ExportEvent(e); err != nil {
			return err
		}
		x, err := cuda.Export(c, m.Base, unit, m.Kind)
		if err != nil {
			return err
		}
		return errors.Join(c.(cuda.Busier).Busy(1, m.stream), c.Set(m.Base, 0, unit, m.stream), c.Record(e, m.stream),
			c.SyncStream(m.stream), c.DestroyEvent(e), x.Close(c))
	})
	return errors.Join(err, m.free())
}

// simulatedGPUs makes a machine of two. What its processes have done wrong is an
// error at the test's end, and so is memory that any of them still has.
func simulatedGPUs(t *testing.T, o simcuda.Options) *gpus {
	t.Helper()
	var err error
	if o.Dir, err = os.MkdirTemp(root, "g"); err != nil {
		t.Fatal(err)
	}
	o.Devices = []simcuda.Device{{Memory: 2 << 30}, {Memory: 2 << 30}}
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(o.Dir, "machine.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := openGPUs(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		until(t, "all memory of the GPUs to be free", func() bool { return m.used(t) == 0 })
		if err := m.close(); err != nil {
			t.Error(err)
		}
		if faults, err := simcuda.Faults(o.Dir); err != nil || len(faults) > 0 {
			t.Errorf("on the simulated machine: %q, %v", faults, err)
		}
	})
	return m
}

// openGPUs opens them in this process.
func openGPUs(file string) (m *gpus, err error) {
	m = &gpus{file: file}
	d := libcuda.New()
	if file != "" {
		o, err := simcuda.Load(file)
		if err != nil {
			return nil, err
		}
		if m.sim, err = simcuda.New(o); err != nil {
			return nil, err
		}
		d = m.sim
	}
	infos, err := d.Devices()
	if err != nil || len(infos) == 0 {
		return nil, fmt.Errorf("the GPUs of the machine: %v, %w", infos, err)
	}
	for i := range infos {
		g := &gpu{}
		if g.Device, err = d.Open(i); err != nil {
			return nil, err
		}
		if g.stage, err = unix.Mmap(-1, 0, stageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE); err != nil {
			return nil, err
		}
		err = g.Do(func(c cuda.Context) error {
			if err := c.RegisterHost(g.stage, false); err != nil {
				return err
			}
			g.stream, err = c.CreateStream()
			return err
		})
		if err != nil {
			return nil, err
		}
		m.all = append(m.all, g)
	}
	return m, nil
}

func (m *gpus) close() (err error) {
	for _, g := range m.all {
		err = errors.Join(err, g.Do(func(c cuda.Context) error {
			return errors.Join(c.DestroyStream(g.stream), c.UnregisterHost(g.stage))
		}), g.Close(), unix.Munmap(g.stage))
	}
	if m.sim != nil {
		if c := m.sim.Counts(); !c.IsClean() {
			err = errors.Join(err, fmt.Errorf("this process of the simulated machine ends with %+v", c))
		}
		err = errors.Join(err, m.sim.Close())
	}
	return err
}

// used is how much memory of the GPUs any process has.
func (m *gpus) used(t *testing.T) (n uint64) {
	t.Helper()
	for _, g := range m.all {
		err := g.Do(func(c cuda.Context) error {
			free, total, err := c.Memory()
			n += total - free
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// deviceMemory is an allocation on a GPU.
type deviceMemory struct {
	*gpu
	*cuda.Allocation
}

// unit is what allocations are multiples of: a smaller one of IPC's kind shares
// its handle with others.
const unit = 2 << 20

func (g *gpu) allocate(size int, kind cuda.Kind) (*deviceMemory, error) {
	m := &deviceMemory{gpu: g}
	return m, g.Do(func(c cuda.Context) (err error) {
		m.Allocation, err = cuda.Allocate(c, uint64(size+unit-1)/unit*unit, kind)
		return err
	})
}

func (m *deviceMemory) free() error { return m.Do(m.Allocation.Close) }

// ReadAt and WriteAt copy through the stage.
func (m *deviceMemory) ReadAt(b []byte, at int64) (int, error) {
	return m.each(b, at, func(c cuda.Context, b []byte, p cuda.Ptr) error {
		err := c.Copy(cuda.Host(m.stage), p, uint64(len(b)), m.stream)
		if err == nil {
			err = c.SyncStream(m.stream)
		}
		copy(b, m.stage)
		return err
	})
}

func (m *deviceMemory) WriteAt(b []byte, at int64) (int, error) {
	return m.each(b, at, func(c cuda.Context, b []byte, p cuda.Ptr) error {
		copy(m.stage, b)
		if err := c.Copy(p, cuda.Host(m.stage), uint64(len(b)), m.stream); err != nil {
			return err
		}
		return c.SyncStream(m.stream)
	})
}

func (m *deviceMemory) each(b []byte, at int64, move func(c cuda.Context, b []byte, p cuda.Ptr) error) (n int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for n < len(b) && err == nil {
		piece := b[n:min(len(b), n+stageBytes)]
		err = m.Do(func(c cuda.Context) error { return move(c, piece, m.Base+cuda.Ptr(at)+cuda.Ptr(n)) })
		n += len(piece)
	}
	return n, err
}
