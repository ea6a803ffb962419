package tcptransport

import "github.com/hawser-transport/hawser/sdk"

// What Send returns, made once: it is called for each frame.
var (
	errClosed   = sdk.Errorf(sdk.Closed, "the endpoint is closed")
	errFull     = sdk.Errorf(sdk.Backpressure, "the endpoint's send buffer is full")
	errTooLarge = sdk.Errorf(sdk.TooLarge, "the frame is larger than %d bytes", maxFrame)
)
