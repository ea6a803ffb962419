//go:build !linux

package local

import (
	"fmt"

	"github.com/hawser-transport/hawser/internal/cuda"
)

func simulate(file string) (cuda.Driver, error) {
	return nil, fmt.Errorf("%s=%s: only Linux has the simulated machine", Simulation, file)
}
