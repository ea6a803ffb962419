// Package local finds the CUDA driver of this process: that of the machine's
// GPUs, or of a simulated machine. The plugin and the engine's helper share it,
// since both have to see the same one.
package local

import (
	"io"
	"os"
	"sync"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/internal/cuda/libcuda"
)

// Simulation is the environment variable that, for tests, names a file of
// package simcuda's options: the process is then on that simulated machine.
const Simulation = "HAWSER_CUDA_SIM"

// Driver is this process's. It is opened by its first call: a plugin that only
// describes itself touches nothing.
type Driver struct {
	mu     sync.Mutex
	opened cuda.Driver
}

func (d *Driver) open() (_ cuda.Driver, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.opened != nil {
		return d.opened, nil
	}
	if file := os.Getenv(Simulation); file != "" {
		d.opened, err = simulate(file)
	} else {
		d.opened = libcuda.New()
	}
	return d.opened, err
}

// Devices implements [cuda.Driver].
func (d *Driver) Devices() ([]cuda.Info, error) {
	o, err := d.open()
	if err != nil {
		return nil, err
	}
	return o.Devices()
}

// Open implements [cuda.Driver].
func (d *Driver) Open(ordinal int) (cuda.Device, error) {
	o, err := d.open()
	if err != nil {
		return nil, err
	}
	return o.Open(ordinal)
}

// Where implements [cuda.Driver].
func (d *Driver) Where(p cuda.Ptr) (int, error) {
	o, err := d.open()
	if err != nil {
		return 0, err
	}
	return o.Where(p)
}

// Close ends a simulated process. The real driver stays loaded.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c, ok := d.opened.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
