//go:build linux && cgo

package ibverbs

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"errors"
	"sync"
	"syscall"
	"unsafe"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// soname is the library's: whoever changes its ABI changes this.
const soname = "libibverbs.so.1"

// New returns the provider of this machine's devices. The library is opened by
// the first call.
func New() verbs.Provider { return &provider{file: soname, host: host{"/"}} }

type provider struct {
	file string
	host host

	load sync.Once
	lib  *C.hw_lib
	err  error
}

// library opens the library once and for all: unloading it is not safe, since
// its drivers keep threads and memory.
func (p *provider) library() (*C.hw_lib, error) {
	p.load.Do(func() {
		file := C.CString(p.file)
		defer C.free(unsafe.Pointer(file))
		var text *C.char
		if p.lib = C.hw_load(file, &text); p.lib == nil {
			p.err = &verbs.MissingError{
				What: p.file, Do: "install libibverbs and its drivers (Debian: libibverbs1 ibverbs-providers)",
				Err: errors.New(C.GoString(text)), Present: p.host.present(),
			}
			C.free(unsafe.Pointer(text))
		}
	})
	return p.lib, p.err
}

func (p *provider) Devices() ([]verbs.Info, error) {
	infos := []verbs.Info{}
	err := p.each(func(d *C.struct_ibv_device) {
		infos = append(infos, p.host.info(C.GoString(&d.name[0])))
	})
	if err == nil && len(infos) == 0 {
		err = p.host.missing()
	}
	if err != nil {
		return nil, err
	}
	return infos, nil
}

// each calls do for every device, by name.
func (p *provider) each(do func(*C.struct_ibv_device)) error {
	lib, err := p.library()
	if err != nil {
		return err
	}
	var n C.int
	list, err := C.hw_get_device_list(lib, &n)
	if list == nil {
		if err := p.host.missing(); err != nil {
			return err
		}
		return refused("ibv_get_device_list", "", err)
	}
	defer C.hw_free_device_list(lib, list)
	for _, d := range unsafe.Slice(list, n) {
		do(d)
	}
	return nil
}

func (p *provider) Open(name string) (verbs.Device, error) {
	const call = "ibv_open_device"
	var d *device
	failed := refused(call, name, syscall.ENODEV)
	err := p.each(func(c *C.struct_ibv_device) {
		if C.GoString(&c.name[0]) == name {
			d, failed = p.open(name, c)
		}
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

func (p *provider) open(name string, c *C.struct_ibv_device) (*device, error) {
	if err := p.host.accessible(C.GoString(&c.dev_name[0])); err != nil {
		return nil, err
	}
	context, err := C.hw_open_device(p.lib, c)
	if context == nil {
		return nil, refused("ibv_open_device", name, err)
	}
	d := &device{lib: p.lib, host: p.host, name: name, context: context}
	if d.events, err = newWaiter(int(context.async_fd), name+" events"); err != nil {
		C.hw_close_device(p.lib, context)
		return nil, refused("ibv_open_device", name, err)
	}
	return d, nil
}

// refused says which call failed. A call that failed without a number is EIO.
func refused(call, object string, err error) error {
	if err == nil {
		err = syscall.EIO
	}
	return &verbs.CallError{Call: call, Object: object, Err: err}
}

// check is refused for calls that return a number.
func check(call, object string, rc C.int) error {
	if rc == 0 {
		return nil
	}
	return refused(call, object, syscall.Errno(rc))
}
