package simverbs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stop stops a process, and returns once all of its threads stand still: the
// signal does not wait for them.
func stop(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		states, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		stopped := err == nil && len(states) > 0
		for _, name := range states {
			b, _ := os.ReadFile(name)
			_, state, _ := strings.Cut(string(b), ") ")
			stopped = stopped && strings.HasPrefix(state, "T")
		}
		if stopped {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d does not stand still", pid)
		}
	}
}
