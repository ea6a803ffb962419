//go:build !linux || !(amd64 || arm64)

package libcuda

import (
	"errors"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// New returns a driver that has no devices, and says why.
func New() cuda.Driver { return stub{} }

type stub struct{}

func missing() error {
	return &cuda.MissingError{What: "CUDA support in this build", Do: "build for Linux on amd64 or arm64", Err: errors.ErrUnsupported}
}

func (stub) Devices() ([]cuda.Info, error) { return nil, missing() }
func (stub) Open(int) (cuda.Device, error) { return nil, missing() }
func (stub) Where(cuda.Ptr) (int, error)   { return 0, missing() }
