package cuda

import (
	"errors"
	"fmt"

	driver "github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/sdk"
)

// failed says what could not be done, with a code for the driver's reason.
func failed(err error, format string, args ...any) error {
	return sdk.Errorf(codeOf(err), "cuda: %s: %w", fmt.Sprintf(format, args...), err)
}

func codeOf(err error) sdk.Code {
	is := func(results ...driver.Result) bool {
		for _, r := range results {
			if errors.Is(err, r) {
				return true
			}
		}
		return false
	}
	var missing *driver.MissingError
	switch {
	case sdk.CodeOf(err) != 0:
		return sdk.CodeOf(err)
	case errors.Is(err, driver.ErrClosed):
		return sdk.Closed
	case is(driver.OutOfMemory):
		return sdk.Busy
	case errors.As(err, &missing), is(driver.NotSupported, driver.NotPermitted, driver.NoDevice, driver.SystemNotReady, driver.SystemDriverMismatch):
		return sdk.Unsupported
	case is(driver.InvalidValue, driver.InvalidDevice, driver.InvalidHandle, driver.NotFound):
		return sdk.InvalidArgument
	}
	return sdk.Unavailable
}
