//go:build linux && (amd64 || arm64)

package libcuda

import (
	"runtime"
	"unsafe"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// busyPTX is a kernel that one thread runs for that many nanoseconds of the
// device's clock. The driver translates it for whatever device there is.
const busyPTX = `.version 6.0
.target sm_70
.address_size 64
.visible .entry busy(.param .u64 nanoseconds)
{
	.reg .pred %p;
	.reg .b64 %now, %end, %n;
	ld.param.u64 %n, [nanoseconds];
	mov.u64 %now, %globaltimer;
	add.u64 %end, %now, %n;
again:
	mov.u64 %now, %globaltimer;
	setp.lt.u64 %p, %now, %end;
	@%p bra again;
	ret;
}
` + "\x00"

// Busy implements [cuda.Busier].
func (c *context) Busy(nanoseconds uint64, s cuda.Stream) error {
	if c.busy == 0 {
		image := []byte(busyPTX)
		if err := check(c.lib.ModuleLoad(&c.module, &image[0]), "cuModuleLoadData", "the busy kernel"); err != nil {
			return err
		}
		if err := check(c.lib.ModuleFunction(&c.busy, c.module, "busy"), "cuModuleGetFunction", "the busy kernel"); err != nil {
			return err
		}
	}
	// Launching reads the parameters before it returns.
	param := unsafe.Pointer(&nanoseconds)
	err := check(c.lib.Launch(c.busy, 1, 1, 1, 1, 1, 1, 0, uint64(s), &param, nil), "cuLaunchKernel", "the busy kernel")
	runtime.KeepAlive(param)
	return err
}

// unload gives back what Busy loaded.
func (c *context) unload() error {
	if c.module == 0 {
		return nil
	}
	m := c.module
	c.module, c.busy = 0, 0
	return check(c.lib.ModuleUnload(m), "cuModuleUnload", "the busy kernel")
}
