package control

import (
	"github.com/hawser-transport/hawser/sdk"
)

// maxCalls bounds the calls that one engine serves at a time, so that a peer
// that floods it costs goroutines and memory of a known size.
const maxCalls = 256

func tooManyCalls() error {
	return sdk.Errorf(sdk.Busy, "%d calls are being served, try again", maxCalls)
}

func addressInUse(address string, cause error) error {
	return &sdk.Error{
		Code: sdk.Busy,
		Message: "listen on " + address + ": the address is in use; stop the process that holds it, " +
			"or set control.listen to another port (port 0 takes a free one)",
		Cause: cause,
	}
}
