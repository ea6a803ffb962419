package rdmatransport

import (
	"errors"
	"syscall"

	"github.com/hawser-transport/hawser/sdk"
)

// What Send fails with, made once.
var (
	errClosed   = sdk.Errorf(sdk.Closed, "the endpoint has ended")
	errFull     = sdk.Errorf(sdk.Backpressure, "no room for more frames until some are completed")
	errPassive  = sdk.Errorf(sdk.InvalidArgument, "ops are of the side that connected the endpoint")
	errTooLarge = sdk.Errorf(sdk.TooLarge, "the frame is larger than %d bytes", maxFrame)
)

// noMemory says whether a call failed for want of memory, which a limit may
// have caused.
func noMemory(err error) bool {
	return errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EPERM)
}
