//go:build linux

// Command hawser-mnnvl is the mnnvl transport as a plugin: transfers between
// GPUs over NVLink. See docs/mnnvl.md.
//
// For tests the environment variable HAWSER_CUDA_SIM names a file of package
// simcuda's options: the plugin then runs on that simulated machine instead of
// this one's GPUs, and says so.
package main

import (
	"fmt"
	"os"
	"sync"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/internal/cuda/libcuda"
	"github.com/hawser-transport/hawser/internal/cuda/simcuda"
	"github.com/hawser-transport/hawser/plugins/mnnvl/internal/nvml"
	"github.com/hawser-transport/hawser/plugins/mnnvl/mnnvltransport"
	"github.com/hawser-transport/hawser/sdk"
)

const simulation = "HAWSER_CUDA_SIM"

// exitLost is the status of a process whose GPU's context is lost: nothing works
// on it any more before a new process has made a new one.
const exitLost = 4

func main() {
	var gpus nvml.Reader = nvml.Fake{}
	if os.Getenv(simulation) == "" {
		gpus = nvml.New()
	}
	t := mnnvltransport.New(&later{open: sync.OnceValues(open)}, gpus)
	t.Lost = func(error) { os.Exit(exitLost) } // it was logged
	sdk.Serve(t)
}

// open finds the driver.
func open() (cuda.Driver, error) {
	if file := os.Getenv(simulation); file != "" {
		fmt.Fprintf(os.Stderr, "warning: GPUs are simulated, as %s=%s asks for\n", simulation, file)
		o, err := simcuda.Load(file)
		if err != nil {
			return nil, err
		}
		return simcuda.New(o)
	}
	return libcuda.New(), nil
}

// later opens the driver when it is used first: a plugin that only describes
// itself touches nothing.
type later struct {
	open func() (cuda.Driver, error)
}

// Devices implements [cuda.Driver].
func (l *later) Devices() ([]cuda.Info, error) {
	d, err := l.open()
	if err != nil {
		return nil, err
	}
	return d.Devices()
}

// Open implements [cuda.Driver].
func (l *later) Open(ordinal int) (cuda.Device, error) {
	d, err := l.open()
	if err != nil {
		return nil, err
	}
	return d.Open(ordinal)
}
