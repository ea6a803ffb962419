//go:build !linux

package sdktest

import "testing"

const memfdName = "hawser-sdktest"

// HostMemory is for Linux: it skips the test.
func HostMemory(t testing.TB, _ int) Memory {
	t.Helper()
	t.Skip("host memory is a memfd, which this system does not have")
	return nil
}
