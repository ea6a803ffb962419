//go:build !linux || !cgo

package nvml

import (
	"errors"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// New returns a reader that has no GPUs, and says why.
func New() Reader { return stub{} }

type stub struct{}

// GPUs implements [Reader].
func (stub) GPUs() ([]GPU, error) {
	return nil, &cuda.MissingError{What: "NVML support in this build", Do: "build for Linux with cgo", Err: errors.ErrUnsupported}
}
