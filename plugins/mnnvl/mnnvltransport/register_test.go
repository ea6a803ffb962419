//go:build linux

package mnnvltransport

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/internal/cuda/simcuda"
	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/plugins/mnnvl/internal/nvml"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// gated is a driver whose next call on a device, once it is armed, returns only
// when it may.
type gated struct {
	cuda.Driver
	armed         atomic.Bool
	done, proceed chan struct{}
}

type gatedDevice struct {
	cuda.Device
	g *gated
}

func (g *gated) Open(ordinal int) (cuda.Device, error) {
	d, err := g.Driver.Open(ordinal)
	return &gatedDevice{d, g}, err
}

func (d *gatedDevice) Do(f func(cuda.Context) error) error {
	err := d.Device.Do(f)
	if d.g.armed.CompareAndSwap(true, false) {
		d.g.done <- struct{}{}
		<-d.g.proceed
	}
	return err
}

// TestRegisterDuringClose: host memory that the driver has registered by the
// time that the transport is closed is given back.
func TestRegisterDuringClose(t *testing.T) {
	l := newLab(t, func(*simcuda.Options) {})
	driver := l.process(t).(*simcuda.Driver)
	g := &gated{Driver: driver, done: make(chan struct{}), proceed: make(chan struct{})}
	a := l.start(t, New(g, nvml.Fake{}), 1)
	r, err := sdktest.HostMemory(t, 4096).Export(true)
	if err != nil {
		t.Fatal(err)
	}
	r.Capability = sdk.Capability{1}
	g.armed.Store(true)
	registered, closed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := a.mover.Register(rigtest.Context(t), r)
		registered <- err
	}()
	<-g.done
	if n := driver.Counts().Hosts; n != 1 {
		t.Fatalf("%d ranges are registered", n)
	}
	go func() { closed <- a.Transport.Close(rigtest.Context(t)) }()
	select {
	case err := <-closed:
		t.Errorf("closed (%v) while a region is being registered", err)
		closed <- err
	case <-time.After(50 * time.Millisecond):
	}
	close(g.proceed)
	if err := errors.Join(<-registered, <-closed); err != nil {
		t.Error(err)
	}
	if c := driver.Counts(); !c.IsClean() {
		t.Errorf("%+v is left", c)
	}
	if _, err := a.mover.Register(rigtest.Context(t), r); !errors.Is(err, sdk.Closed) {
		t.Errorf("Register after Close: %v", err)
	}
}
