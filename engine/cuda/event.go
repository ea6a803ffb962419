package cuda

import (
	"errors"

	driver "github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/sdk"
)

// ExportEvent makes the handle of an event (a CUevent or cudaEvent_t) for
// [engine.Op.Event]. The event must be of that GPU's primary context, where the
// application has made it with CU_EVENT_INTERPROCESS and CU_EVENT_DISABLE_TIMING;
// without these flags it is refused as InvalidArgument. The driver believes the
// rest: it crashes the process for an event of another GPU, and for what is no
// event.
//
// The handle is good for the event's life, however often that is recorded.
// Record the event before the op is submitted, and destroy it after the op has
// ended.
func (g *GPUs) ExportEvent(device int, event uintptr) (*[sdk.EventBytes]byte, error) {
	var h driver.EventHandle
	d, err := g.use(device)
	if err == nil {
		err = d.do(func(c driver.Context) (err error) {
			h, err = c.ExportEvent(driver.Event(event))
			return err
		})
	}
	switch {
	case errors.Is(err, driver.InvalidHandle):
		return nil, failed(err, "export event %#x: it is none of this process's, or was made without CU_EVENT_INTERPROCESS and CU_EVENT_DISABLE_TIMING", event)
	case err != nil:
		return nil, failed(err, "export event %#x of GPU %d", event, device)
	}
	return (*[sdk.EventBytes]byte)(&h), nil
}
