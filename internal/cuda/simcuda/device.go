//go:build linux

package simcuda

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// gpu is a device, with what its contexts in this process share.
type gpu struct {
	Device
	ordinal   int
	opens     int
	exclusive *os.File    // held while open in that mode
	lost      cuda.Result // the error that cost the context
}

// enter takes the device as its mode wants.
func (g *gpu) enter(m machine) (err error) {
	switch {
	case g.Mode == cuda.ModeProhibited:
		return unix.EBUSY
	case g.Mode == cuda.ModeExclusiveProcess && g.exclusive == nil:
		g.exclusive, err = lock(m.path("exclusive", fmt.Sprint(g.ordinal)), os.O_CREATE, unix.LOCK_EX|unix.LOCK_NB)
	}
	return err
}

func (g *gpu) leave() {
	if g.exclusive != nil {
		g.exclusive.Close()
		g.exclusive = nil
	}
}

// device is an open device.
type device struct {
	d       *Driver
	gpu     *gpu
	thread  *cuda.Thread
	context *context
}

// Info implements [cuda.Device].
func (v *device) Info() cuda.Info { return v.gpu.info(v.gpu.ordinal) }

// Do implements [cuda.Device].
func (v *device) Do(f func(cuda.Context) error) error {
	return v.thread.Do(func() error {
		v.context.isInside.Store(true)
		defer v.context.isInside.Store(false)
		return f(v.context)
	})
}

// Close implements [cuda.Device]. What was left is forgotten with the context
// of a device that is lost, and is a fault otherwise.
func (v *device) Close() error {
	return v.thread.Close(func() error {
		d, g := v.d, v.gpu
		d.mu.Lock()
		defer d.mu.Unlock()
		err := d.begin("cuDevicePrimaryCtxRelease")
		if g.opens--; g.opens > 0 {
			return err
		}
		switch left := d.count(g); {
		case g.lost != 0:
			d.abandon(g)
		case !left.IsClean():
			d.fault("GPU %d was closed with %+v", g.ordinal, left)
		}
		g.leave()
		g.lost = 0
		return err
	})
}

// abandon forgets everything of a lost context.
func (d *Driver) abandon(g *gpu) {
	for h, r := range d.handles {
		if r.gpu == g {
			delete(d.handles, h)
			r.mem.drop(r.count)
		}
	}
	d.spans = slices.DeleteFunc(d.spans, func(s *span) bool {
		if s.gpu == g {
			for _, m := range s.maps {
				m.isGone = true
				m.mem.drop(1)
			}
		}
		return s.gpu == g
	})
	d.hosts = slices.DeleteFunc(d.hosts, func(m *mapping) bool { return m.gpu == g })
	for n, s := range d.streams {
		if s.gpu == g {
			delete(d.streams, n)
			s.gpu = &gpu{lost: g.lost} // what is in flight concerns nobody
			s.end()
		}
	}
	for n, e := range d.events {
		if e.gpu == g {
			delete(d.events, n)
			e.release()
		}
	}
}
