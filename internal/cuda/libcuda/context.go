//go:build linux && (amd64 || arm64)

package libcuda

import "github.com/hawser-transport/hawser/internal/cuda"

// context makes the calls of one device. All of them run on its thread.
type context struct {
	lib     *library
	number  int32 // the driver's for the device
	ordinal int
	hosts   *hosts // the driver's

	module, busy uint64 // Busy's, loaded by its first call
}

func (c *context) location() location { return location{locationDevice, c.number} }

func (c *context) prop(kinds cuda.Kind) *allocationProp {
	return &allocationProp{kind: allocationPinned, handleKinds: int32(kinds), location: c.location()}
}

// Memory implements [cuda.Context].
func (c *context) Memory() (free, total uint64, err error) {
	var f, t uintptr
	err = check(c.lib.MemInfo(&f, &t), "cuMemGetInfo", "GPU %d", c.ordinal)
	return uint64(f), uint64(t), err
}

// CreateStream implements [cuda.Context].
func (c *context) CreateStream() (cuda.Stream, error) {
	var s uint64
	err := check(c.lib.StreamCreate(&s, streamNonBlocking), "cuStreamCreate", "GPU %d", c.ordinal)
	return cuda.Stream(s), err
}

// DestroyStream implements [cuda.Context].
func (c *context) DestroyStream(s cuda.Stream) error {
	return check(c.lib.StreamDestroy(uint64(s)), "cuStreamDestroy", "")
}

// QueryStream implements [cuda.Context].
func (c *context) QueryStream(s cuda.Stream) (bool, error) {
	return ready(c.lib.StreamQuery(uint64(s)), "cuStreamQuery")
}

// ready reads the answer of a query.
func ready(r code, call string) (bool, error) {
	if cuda.Result(r) == cuda.NotReady {
		return false, nil
	}
	return r == 0, check(r, call, "")
}

// SyncStream implements [cuda.Context].
func (c *context) SyncStream(s cuda.Stream) error {
	return check(c.lib.StreamSync(uint64(s)), "cuStreamSynchronize", "")
}

// Set implements [cuda.Context].
func (c *context) Set(dst cuda.Ptr, value byte, n uint64, s cuda.Stream) error {
	return check(c.lib.Set(uint64(dst), value, uintptr(n), uint64(s)),
		"cuMemsetD8Async", "%d bytes at %#x", n, uint64(dst))
}

// Wait implements [cuda.Context].
func (c *context) Wait(s cuda.Stream, e cuda.Event) error {
	return check(c.lib.StreamWait(uint64(s), uint64(e), 0), "cuStreamWaitEvent", "")
}

// CreateEvent implements [cuda.Context].
func (c *context) CreateEvent(interprocess bool) (cuda.Event, error) {
	flags := uint32(eventNoTiming)
	if interprocess {
		flags |= eventInterprocess
	}
	var e uint64
	err := check(c.lib.EventCreate(&e, flags), "cuEventCreate", "GPU %d", c.ordinal)
	return cuda.Event(e), err
}

// DestroyEvent implements [cuda.Context].
func (c *context) DestroyEvent(e cuda.Event) error {
	return check(c.lib.EventDestroy(uint64(e)), "cuEventDestroy", "")
}

// Record implements [cuda.Context].
func (c *context) Record(e cuda.Event, s cuda.Stream) error {
	return check(c.lib.EventRecord(uint64(e), uint64(s)), "cuEventRecord", "")
}

// QueryEvent implements [cuda.Context].
func (c *context) QueryEvent(e cuda.Event) (bool, error) {
	return ready(c.lib.EventQuery(uint64(e)), "cuEventQuery")
}

// SyncEvent implements [cuda.Context].
func (c *context) SyncEvent(e cuda.Event) error {
	return check(c.lib.EventSync(uint64(e)), "cuEventSynchronize", "")
}

// ExportEvent implements [cuda.Context].
func (c *context) ExportEvent(e cuda.Event) (cuda.EventHandle, error) {
	var h cuda.EventHandle
	err := check(c.lib.EventGet(&h, uint64(e)), "cuIpcGetEventHandle", "")
	return h, err
}

// OpenEvent implements [cuda.Context].
func (c *context) OpenEvent(h cuda.EventHandle) (cuda.Event, error) {
	var e uint64
	err := check(c.lib.EventOpen(&e, words(h)), "cuIpcOpenEventHandle", "")
	return cuda.Event(e), err
}
