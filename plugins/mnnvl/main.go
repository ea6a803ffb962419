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

	"github.com/hawser-transport/hawser/internal/cuda/local"
	"github.com/hawser-transport/hawser/plugins/mnnvl/internal/nvml"
	"github.com/hawser-transport/hawser/plugins/mnnvl/mnnvltransport"
	"github.com/hawser-transport/hawser/sdk"
)

// exitLost is the status of a process whose GPU's context is lost: nothing works
// on it any more before a new process has made a new one.
const exitLost = 4

func main() {
	gpus := nvml.New()
	if file := os.Getenv(local.Simulation); file != "" {
		fmt.Fprintf(os.Stderr, "warning: GPUs are simulated, as %s=%s asks for\n", local.Simulation, file)
		gpus = nvml.Fake{}
	}
	t := mnnvltransport.New(&local.Driver{}, gpus)
	t.Lost = func(error) { os.Exit(exitLost) } // it was logged
	sdk.Serve(t)
}
