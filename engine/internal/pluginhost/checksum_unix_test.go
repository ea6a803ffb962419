//go:build unix

package pluginhost

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What is no file has no checksum, and is not waited for: a reload takes the
// sum of what is at a plugin's path by then.
func TestChecksumOfWhatIsNoFile(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, os.DevNull, t.TempDir()} {
		got := make(chan error, 1)
		go func() {
			_, err := Checksum(path)
			got <- err
		}()
		select {
		case err := <-got:
			if err == nil || !strings.Contains(err.Error(), "not a regular file") {
				t.Errorf("%s: %v", path, err)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: it waits for somebody who writes", path)
			if w, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
				defer unix.Close(w) //nolint:errcheck // the test's own
			}
			<-got
		}
	}
}
