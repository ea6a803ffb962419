package pluginhost

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/hawser-transport/hawser/sdk"
)

// Checksum returns the SHA-256 of a plugin's binary in hexadecimal.
func Checksum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", sdk.Errorf(sdk.InvalidArgument, "plugin binary: %w", err)
	}
	defer f.Close()
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
