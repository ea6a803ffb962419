package pluginhost

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"

	"github.com/hawser-transport/hawser/sdk"
)

// Checksum returns the SHA-256 of a plugin's binary in hexadecimal.
func Checksum(path string) (string, error) {
	// Non-blocking: a FIFO must not hold us, nor a device that never ends.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", sdk.Errorf(sdk.InvalidArgument, "plugin binary: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return "", sdk.Errorf(sdk.InvalidArgument, "plugin binary: %w", err)
	} else if !info.Mode().IsRegular() {
		return "", sdk.Errorf(sdk.InvalidArgument, "plugin binary %s is not a regular file (%s)", path, info.Mode().Type())
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", sdk.Errorf(sdk.InvalidArgument, "plugin binary %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// compareSums compares the checksum of what would be executed with the one it
// must have, if one is known.
func compareSums(path, got, want string) error {
	if want == "" || strings.EqualFold(got, strings.TrimSpace(want)) {
		return nil
	}
	return sdk.Errorf(sdk.InvalidArgument,
		"plugin binary %s is not the one that was approved: its SHA-256 is %s, expected %s; if the change is wanted, approve it with `hawser plugin verify --update`",
		path, got, strings.ToLower(strings.TrimSpace(want)))
}

// machine names what programs must be built for.
func machine() string { return runtime.GOOS + "/" + runtime.GOARCH }
