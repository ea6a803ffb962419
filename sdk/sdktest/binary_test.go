package sdktest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A binary that is no plugin fails the test, and shows what it printed.
func TestBinaryThatIsNoPlugin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plugin")
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho out of order >&2\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	rec := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		Binary(rec, path)
	}()
	<-done
	for _, f := range rec.cleanups {
		f()
	}
	if !rec.Failed() || !strings.Contains(rec.log.String(), "out of order") {
		t.Errorf("failed %v: %s", rec.Failed(), rec.log.String())
	}
}
