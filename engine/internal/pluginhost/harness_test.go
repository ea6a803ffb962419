//go:build linux

package pluginhost

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// logBook keeps a log for tests to read.
type logBook struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// records returns the log, one object per line.
func (l *logBook) records(t *testing.T) []map[string]any {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []map[string]any
	for line := range strings.Lines(l.b.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("log line %q: %v", line, err)
		}
		all = append(all, m)
	}
	return all
}

// troupe is one supervised plugin process under test.
type troupe struct {
	*Supervisor
	rec *recorder
	log *logBook
}

func self(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func actor(t testing.TB, name string) Spec {
	return Spec{Name: "t", Path: self(t), Env: map[string]string{actorEnv: name}}
}

// shortDir is a directory with a short name: t.TempDir's is long.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hw")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// troupeOf makes a supervisor for a spec; it is stopped at the test's end, and
// must have left no file.
func troupeOf(t *testing.T, spec Spec, o Options) *troupe {
	t.Helper()
	tr := &troupe{rec: newRecorder(), log: &logBook{}}
	tr.rec.limit = 30 * time.Second
	if o.RunDir == "" {
		o.RunDir = shortDir(t)
	}
	o.Log = slog.New(slog.NewJSONHandler(tr.log, nil))
	tr.Supervisor = New(spec, o, tr.rec)
	tr.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := tr.Stop(ctx); err != nil {
			t.Errorf("Stop: %v", err)
		}
		if left, _ := os.ReadDir(o.RunDir); len(left) > 0 {
			t.Errorf("left in the run directory: %v", left)
		}
	})
	return tr
}

// up waits until the first start has succeeded.
func (tr *troupe) up(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := tr.Ready(ctx); err != nil {
		t.Fatal(err)
	}
}

// fault waits until the first start has failed. The status then says so.
func (tr *troupe) fault(t *testing.T) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := tr.Ready(ctx)
	if err == nil {
		t.Fatal("it has started")
	}
	if st := tr.Status(); st.State == Starting || st.LastError == nil {
		t.Errorf("after %v the status is %+v", err, st)
	}
	return err
}

// hold returns a pidfd, which stays true to its process.
func hold(t *testing.T, pid int) int {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("pidfd of %d: %v", pid, err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// gone waits until a process has ended. It looks once, however late it comes.
func gone(t *testing.T, pidfd int, limit time.Duration) bool {
	t.Helper()
	end := time.Now().Add(limit)
	for {
		left := max(time.Until(end), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if n > 0 {
			return true
		}
		if err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
		if err == nil && left == 0 {
			return false
		}
	}
}

// copyFile copies a program.
func copyFile(t *testing.T, from, to string) string {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(to)
	if err := os.WriteFile(to, content, 0o755); err != nil {
		t.Fatal(err)
	}
	return to
}

func fdCount(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func write(t *testing.T, dir, name, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return path
}
