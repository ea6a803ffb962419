package tcptransport

import "github.com/hawser-transport/hawser/sdk"

// What Send and the abilities return often; made once.
var (
	errClosed   = sdk.Errorf(sdk.Closed, "the endpoint is closed")
	errFull     = sdk.Errorf(sdk.Backpressure, "the endpoint's send buffer is full")
	errTooLarge = sdk.Errorf(sdk.TooLarge, "the frame is larger than %d bytes", maxFrame)
	errDraining = sdk.Errorf(sdk.Closed, "the transport is draining")
	errShut     = sdk.Errorf(sdk.Closed, "the transport is closed")
	errUnready  = sdk.Errorf(sdk.InvalidArgument, "the transport is not configured")
)
