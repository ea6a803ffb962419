package cuda

import (
	"errors"

	driver "github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/sdk"
)

// device is a GPU that is in use. Its fields are its thread's.
type device struct {
	driver.Device
	stream   driver.Stream // that Memory is copied over
	memories int           // allocated and not freed
	// left is what the driver has refused to take back. It has another turn with
	// what is given back next, and at the end.
	left   []func(driver.Context) error
	closed bool
}

func openDevice(d driver.Driver, ordinal int) (*device, error) {
	opened, err := d.Open(ordinal)
	if err != nil {
		return nil, err
	}
	v := &device{Device: opened}
	err = v.do(func(c driver.Context) (err error) {
		v.stream, err = c.CreateStream()
		return err
	})
	if err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	return v, nil
}

// do runs f on the device's thread.
func (d *device) do(f func(driver.Context) error) error {
	return d.Device.Do(func(c driver.Context) error {
		if d.closed {
			return driver.ErrClosed
		}
		return f(c)
	})
}

// give gives something back, now or later.
func (d *device) give(c driver.Context, back func(driver.Context) error) {
	d.left = append(d.left, back)
	_ = d.settle(c) // what stays has its next turn
}

// settle gives back what is left. Whatever was made in a context that is lost
// went with it.
func (d *device) settle(c driver.Context) (err error) {
	left := d.left
	d.left = nil
	for _, back := range left {
		if refused := back(c); refused != nil && !driver.IsLost(refused) {
			d.left, err = append(d.left, back), errors.Join(err, refused)
		}
	}
	return err
}

// close may be called again after an error.
func (d *device) close() error {
	err := d.do(func(c driver.Context) error {
		if d.memories > 0 {
			return sdk.Errorf(sdk.Busy, "%d Memory of it are not freed: free them first", d.memories)
		}
		if err := d.settle(c); err != nil {
			return err
		}
		if err := c.DestroyStream(d.stream); err != nil && !driver.IsLost(err) {
			return err
		}
		d.closed = true
		return nil
	})
	if err != nil && !errors.Is(err, driver.ErrClosed) {
		return err
	}
	return d.Device.Close()
}
