//go:build linux

package mnnvltransport

import (
	"errors"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/sdk"
)

// What Send fails with, made once.
var (
	errClosed = sdk.Errorf(sdk.Closed, "the endpoint has ended")
	errFull   = sdk.Errorf(sdk.Backpressure, "no room for more ops until some have an outcome")
)

// coded gives a driver's error a code. An error that has one keeps it.
func coded(err error) error {
	if err == nil || sdk.CodeOf(err) != 0 {
		return err
	}
	return sdk.Errorf(codeOf(err), "%w", err)
}

func codeOf(err error) sdk.Code {
	var missing *cuda.MissingError
	is := func(rs ...cuda.Result) bool {
		for _, r := range rs {
			if errors.Is(err, r) {
				return true
			}
		}
		return false
	}
	switch {
	case sdk.CodeOf(err) != 0:
		return sdk.CodeOf(err)
	case errors.As(err, &missing), is(cuda.PeerUnsupported, cuda.NotSupported, cuda.NotPermitted, cuda.InvalidDevice):
		return sdk.Unsupported
	case is(cuda.OutOfMemory):
		return sdk.Busy
	case is(cuda.InvalidValue, cuda.InvalidHandle, cuda.MapFailed):
		return sdk.StaleCapability // the handle leads nowhere any more
	case is(cuda.AlreadyMapped):
		return sdk.Busy
	default:
		return sdk.Unavailable
	}
}
