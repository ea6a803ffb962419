//go:build linux && (amd64 || arm64)

package libcuda

import (
	"bytes"
	"errors"
	"sync"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// soname is the library's: whoever changes its ABI changes this.
const soname = "libcuda.so.1"

// New returns the driver of this machine's GPUs. The library is opened by the
// first call.
func New() cuda.Driver { return open(soname) }

type driver struct {
	// library is loaded and initialised, or says what is missing; nil, nil is a
	// library without a device.
	library func() (*library, error)
	hosts   hosts
}

func open(file string) *driver {
	return &driver{library: sync.OnceValues(func() (*library, error) {
		lib, err := load(file)
		if err != nil {
			return nil, err
		}
		err = check(lib.Init(0), "cuInit", "")
		if errors.Is(err, cuda.NoDevice) {
			return nil, nil
		}
		return lib, err
	})}
}

// Devices implements [cuda.Driver].
func (d *driver) Devices() ([]cuda.Info, error) {
	infos := []cuda.Info{}
	lib, err := d.library()
	if lib == nil || err != nil {
		return infos, err
	}
	var n int32
	if err := check(lib.DeviceCount(&n), "cuDeviceGetCount", ""); err != nil {
		return nil, err
	}
	for i := range int(n) {
		_, info, err := lib.info(i)
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// info describes a device, and returns the driver's number for it.
func (l *library) info(ordinal int) (int32, cuda.Info, error) {
	i := cuda.Info{Ordinal: ordinal}
	var d int32
	if err := check(l.DeviceGet(&d, int32(ordinal)), "cuDeviceGet", "GPU %d", ordinal); err != nil {
		return 0, i, err
	}
	var name [256]byte
	if err := check(l.DeviceName(&name[0], int32(len(name)), d), "cuDeviceGetName", "GPU %d", ordinal); err != nil {
		return 0, i, err
	}
	before, _, _ := bytes.Cut(name[:], []byte{0})
	i.Name = string(before)
	if err := check(l.DeviceUUID(&i.UUID, d), "cuDeviceGetUuid", "GPU %d", ordinal); err != nil {
		return 0, i, err
	}
	// An attribute that the driver does not know is one that the device does
	// not have.
	attribute := func(number int32) int32 {
		var v int32
		if l.DeviceAttr(&v, number, d) != 0 {
			return 0
		}
		return v
	}
	i.Mode = cuda.ComputeMode(attribute(attrComputeMode))
	i.VMM = attribute(attrVMM) != 0
	i.PosixFD = attribute(attrPosixFD) != 0
	i.Fabric = attribute(attrFabric) != 0
	i.EventIPC = attribute(attrEventIPC) != 0
	i.ReadOnlyHost = attribute(attrReadOnlyHost) != 0
	return d, i, nil
}

// needed is the library of a driver that has devices.
func (d *driver) needed() (*library, error) {
	lib, err := d.library()
	if lib == nil && err == nil {
		err = &cuda.CallError{Call: "cuInit", Result: cuda.NoDevice}
	}
	return lib, err
}

// Open implements [cuda.Driver].
func (d *driver) Open(ordinal int) (cuda.Device, error) {
	lib, err := d.needed()
	if err != nil {
		return nil, err
	}
	number, info, err := lib.info(ordinal)
	if err != nil {
		return nil, err
	}
	var ctx uint64
	if err := check(lib.CtxRetain(&ctx, number), "cuDevicePrimaryCtxRetain", "GPU %d", ordinal); err != nil {
		if errors.Is(err, cuda.DeviceUnavailable) {
			err = cuda.Taken(info, err)
		}
		return nil, err
	}
	dev := &device{lib: lib, number: number, info: info, thread: cuda.StartThread()}
	dev.context = &context{lib: lib, number: number, ordinal: ordinal, hosts: &d.hosts}
	err = dev.thread.Do(func() error {
		return check(lib.CtxSetCurrent(ctx), "cuCtxSetCurrent", "GPU %d", ordinal)
	})
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return dev, nil
}

// device is a retained primary context and the thread where it is current.
type device struct {
	lib     *library
	number  int32
	info    cuda.Info
	thread  *cuda.Thread
	context *context
}

// Info implements [cuda.Device].
func (d *device) Info() cuda.Info { return d.info }

// Do implements [cuda.Device].
func (d *device) Do(f func(cuda.Context) error) error {
	return d.thread.Do(func() error { return f(d.context) })
}

// Close implements [cuda.Device].
func (d *device) Close() error {
	return d.thread.Close(func() error {
		return errors.Join(
			d.context.unload(),
			check(d.lib.CtxSetCurrent(0), "cuCtxSetCurrent", "nothing"),
			check(d.lib.CtxRelease(d.number), "cuDevicePrimaryCtxRelease", "GPU %d", d.info.Ordinal))
	})
}
