//go:build !linux || !cgo

package ibverbs

import (
	"errors"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// New returns a provider that has no devices, and says why.
func New() verbs.Provider { return stub{} }

type stub struct{}

func missing() error {
	return &verbs.MissingError{
		What: "RDMA support in this build", Do: "build for Linux with cgo and the headers of libibverbs",
		Err: errors.ErrUnsupported,
	}
}

func (stub) Devices() ([]verbs.Info, error)         { return nil, missing() }
func (stub) Open(name string) (verbs.Device, error) { return nil, missing() }
