package cuda

import (
	"errors"
	"fmt"
	"io"
	"sync"

	driver "github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/internal/cuda/local"
	"github.com/hawser-transport/hawser/sdk"
)

// GPUs are those of this machine that the process may see. Its methods are safe
// for concurrent use; what they do on one GPU they do one after the other.
type GPUs struct {
	driver driver.Driver
	infos  []driver.Info

	mu      sync.Mutex
	devices map[int]*device // that were used
	closed  bool
}

// Device says which GPU one is.
type Device struct {
	// Ordinal is this process's number for it. Other processes may have others.
	Ordinal int
	Name    string
	// UUID is the same everywhere.
	UUID [16]byte
}

// String is for people: "GPU 0 (NVIDIA H200)".
func (d Device) String() string { return fmt.Sprintf("GPU %d (%s)", d.Ordinal, d.Name) }

// Open finds the driver and the GPUs, and uses none yet. It takes up to seconds.
// Its error is Unsupported where there is no driver or no GPU, and says what to
// do.
func Open() (*GPUs, error) {
	d := &local.Driver{}
	g, err := open(d)
	if err != nil {
		_ = d.Close() // nothing was made on it
	}
	return g, err
}

func open(d driver.Driver) (*GPUs, error) {
	infos, err := d.Devices()
	if err != nil {
		return nil, failed(err, "find the GPUs")
	}
	if len(infos) == 0 {
		return nil, sdk.Errorf(sdk.Unsupported, "cuda: there is no GPU: run this on a machine that has one, give a container its GPUs (--gpus), and see CUDA_VISIBLE_DEVICES")
	}
	return &GPUs{driver: d, infos: infos, devices: map[int]*device{}}, nil
}

// Devices lists the GPUs, by ordinal: there is at least one.
func (g *GPUs) Devices() []Device {
	var list []Device
	for _, i := range g.infos {
		list = append(list, Device{i.Ordinal, i.Name, i.UUID})
	}
	return list
}

// Close gives the contexts back. It fails as Busy, and names the GPU, while
// there is [Memory]: free that, and call it again. After the first call nothing
// else can be begun. Regions are not affected.
func (g *GPUs) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	var errs []error
	for ordinal, d := range g.devices {
		if err := d.close(); err != nil {
			errs = append(errs, failed(err, "close GPU %d", ordinal))
			continue
		}
		delete(g.devices, ordinal)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if c, ok := g.driver.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// use returns a device, which it opens the first time.
func (g *GPUs) use(ordinal int) (*device, error) {
	return g.find(func() (int, error) { return ordinal, nil })
}

// find is use for the ordinal that where says.
func (g *GPUs) find(where func() (int, error)) (*device, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, driver.ErrClosed
	}
	ordinal, err := where()
	if err != nil {
		return nil, err
	}
	if d := g.devices[ordinal]; d != nil {
		return d, nil
	}
	d, err := openDevice(g.driver, ordinal)
	if err == nil {
		g.devices[ordinal] = d
	}
	return d, err
}
