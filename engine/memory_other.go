//go:build !linux

package engine

import (
	"os"

	"github.com/hawser-transport/hawser/sdk"
)

func noMemory() error {
	return sdk.Errorf(sdk.Unsupported, "register memory: only Linux has the memory that transports can share")
}

// AllocateHost is Unsupported here.
func (e *Engine) AllocateHost(int, RegionOptions) (*Region, error) { return nil, noMemory() }

// RegisterHost is Unsupported here.
func (e *Engine) RegisterHost(*os.File, int64, int, RegionOptions) (*Region, error) {
	return nil, noMemory()
}

// RegisterHandle is Unsupported here.
func (e *Engine) RegisterHandle(x ExportedMemory, _ RegionOptions) (*Region, error) {
	if err := x.check(); err != nil {
		return nil, err
	}
	return nil, noMemory()
}

func duplicate(*os.File) (*os.File, error) { return nil, noMemory() }
