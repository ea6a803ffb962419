package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/engine/cuda"
)

// place is where a process keeps its blocks: on a GPU, or, if gpus is nil, in
// the host's memory.
type place struct {
	gpus *cuda.GPUs
	gpu  cuda.Device
}

// choose finds a place for the n-th process, as -gpu says.
func choose(mode string, n int) (*place, error) {
	switch mode {
	case "off":
		return &place{}, nil
	case "auto", "on":
	default:
		return nil, fmt.Errorf("-gpu is auto, on or off, not %q", mode)
	}
	gpus, err := cuda.Open()
	if mode == "auto" && errors.Is(err, engine.Unsupported) {
		return &place{}, nil
	}
	if err != nil {
		return nil, err
	}
	devices := gpus.Devices()
	return &place{gpus, devices[n%len(devices)]}, nil
}

func (p *place) String() string {
	if p.gpus == nil {
		return "host memory"
	}
	return "the memory of " + p.gpu.String()
}

// close gives the GPU back, when the memory was freed.
func (p *place) close() {
	if p.gpus != nil {
		_ = p.gpus.Close()
	}
}

// transports are what can carry. A GPU's memory moves over mnnvl, and what is
// told about it over tcp; nil are the engine's own.
func (p *place) transports() []engine.TransportConfig {
	if p.gpus == nil {
		return nil
	}
	return []engine.TransportConfig{{Name: "mnnvl"}, {Name: "tcp"}}
}

// memory is a region, and how the application itself gets at its bytes.
type memory struct {
	*engine.Region
	gpu *cuda.Memory // nil for the host's
}

// allocate makes memory that the transports' processes can use.
func (p *place) allocate(e *engine.Engine, size int, opts engine.RegionOptions) (*memory, error) {
	if p.gpus == nil {
		region, err := e.AllocateHost(size, opts)
		return &memory{Region: region}, err
	}
	gpu, err := p.gpus.Allocate(p.gpu.Ordinal, uint64(size))
	if err != nil {
		return nil, err
	}
	// An application with kernels has memory already: its pointer will do.
	region, err := p.gpus.Register(e, gpu.Pointer(), gpu.Len(), opts)
	if err != nil {
		return nil, errors.Join(p.explain(err), gpu.Free())
	}
	return &memory{region, gpu}, nil
}

// explain says what to do where no transport moves such memory.
func (p *place) explain(err error) error {
	if errors.Is(err, engine.Unsupported) || p.gpus != nil && errors.Is(err, engine.Unavailable) {
		return fmt.Errorf("%w (mnnvl alone moves a GPU's memory: `hawser doctor mnnvl` says what it lacks here; -gpu off uses host memory)", err)
	}
	return err
}

// put and get are the application's own copies.
func (m *memory) put(b []byte, at uint64) (err error) {
	if m.gpu == nil {
		copy(m.Bytes()[at:], b)
		return nil
	}
	_, err = m.gpu.WriteAt(b, int64(at))
	return err
}

func (m *memory) get(b []byte, at uint64) (err error) {
	if m.gpu == nil {
		copy(b, m.Bytes()[at:])
		return nil
	}
	_, err = m.gpu.ReadAt(b, int64(at))
	return err
}

// free gives the memory back. nil of Close means that nothing can touch it any
// more: before that it must not be freed.
func (m *memory) free(ctx context.Context) error {
	if err := m.Close(ctx); err != nil || m.gpu == nil {
		return err
	}
	return m.gpu.Free()
}
