package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ended waits for a started program, which must end soon.
func ended(t *testing.T, c interface {
	Wait() error
}, within time.Duration) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	select {
	case <-done:
	case <-time.After(within):
		t.Errorf("still there after %v", within)
	}
}

// TestInterruptedInput: one signal ends a command that waits for input.
func TestInterruptedInput(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"send", "127.0.0.1:1", "-"}, {"send", "127.0.0.1:1", "--file", fifo}, {"send", "127.0.0.1:1", "--config", fifo},
		{"recv", "--config", fifo}, {"node", "--config", fifo}, {"config", "check", fifo}, {"config", "show", fifo},
		{"plugin", "list", "--config", fifo},
	} {
		for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
			c := hawser(t, args...)
			in, err := c.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			var w io.Closer = in
			if slices.Contains(args, "-") {
				// More than a pipe holds: it is written once some was read.
				if _, err := in.Write(make([]byte, 1<<20)); err != nil {
					t.Fatal(err)
				}
			} else {
				until(t, "the file to be opened", func() (open bool) {
					f, err := os.OpenFile(fifo, os.O_WRONLY|syscall.O_NONBLOCK, 0)
					w = f
					return err == nil
				})
			}
			_ = c.Process.Signal(s)
			ended(t, c, 10*time.Second)
			_, _ = w.Close(), in.Close()
			if code := c.ProcessState.ExitCode(); code != 130 {
				t.Errorf("%v, %v: exit code %d", args, s, code)
			}
		}
	}
	until(t, "all processes to be gone", func() bool { return processes(t) == 0 })
}

// TestInterruptedUnread: nobody reads what recv prints.
func TestInterruptedUnread(t *testing.T) {
	n := start(t, "recv")
	if _, errs, code := output(t, hawser(t, "send", n.address, "--size", "20000", "--count", "20", "--wait", "5s")); code != 0 {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	until(t, "recv to print", func() bool {
		waiting, err := unix.IoctlGetInt(int(n.out.Fd()), unix.TIOCINQ)
		return err == nil && waiting > 0
	})
	began := time.Now()
	_ = n.Process.Signal(syscall.SIGINT)
	ended(t, n.Cmd, 10*time.Second)
	// Whoever waited for acknowledgements would take all of recvDrain, 2 s.
	if code, took := n.ProcessState.ExitCode(), time.Since(began); code != 130 || took >= 2*time.Second {
		t.Errorf("exit code %d after %v", code, took)
	}
	until(t, "all processes to be gone", func() bool { return processes(t) == 0 })
}

// TestFullOutput: what cannot be written is said, and is exit code 3, also of
// commands that would otherwise not end: those are killed after a minute.
func TestFullOutput(t *testing.T) {
	dir := t.TempDir()
	cfg := filepath.Join(dir, "c.yaml")
	if err := os.WriteFile(cfg, []byte("node: {name: x}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	peer := start(t, "recv")
	for _, args := range [][]string{
		{"send", peer.address}, {"send", peer.address, "-o", "json"}, {"config", "check", cfg}, {"config", "check", cfg, "-o", "json"},
		{"plugin", "list"}, {"plugin", "verify"}, {"plugin", "describe", "tcp"}, {"demo", "--list"}, {"demo", "--row", "1"},
		{"demo", "--row", "1", "-o", "json"}, {"node", "--print"}, {"node", "-o", "json"}, {"recv", "-o", "json"}, {"--help"},
		{"send", "--help"}, {"version"}, {"config", "schema"}, {"config", "show", cfg},
	} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatalf("/dev/full, which Linux has: %v", err)
		}
		c := hawser(t, args...)
		var errs strings.Builder
		c.Stdout, c.Stderr = full, &errs
		err = c.Run()
		_ = full.Close()
		if code := c.ProcessState.ExitCode(); code != 3 || !strings.Contains(errs.String(), "standard output cannot be written") {
			t.Errorf("%v: exit code %d, %v: %s", args, code, err, errs.String())
		}
	}
}

// TestDemoLeavesNoDirectory: neither its nodes' nor those of nodes it killed.
func TestDemoLeavesNoDirectory(t *testing.T) {
	// The nodes of earlier tests were killed and may have left some.
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	left := func() []string {
		dirs, err := filepath.Glob(filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "hawser-run-*"))
		if err != nil {
			t.Fatal(err)
		}
		return dirs
	}
	for _, after := range []time.Duration{50, 150, 300, 600, 1200} {
		for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
			c := hawser(t, "demo", "--row", "1")
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(after * time.Millisecond) // whatever it does then
			if err := c.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
				t.Fatal(err)
			}
			ended(t, c, 10*time.Second)
			if dirs := left(); len(dirs) > 0 {
				t.Errorf("after %v, %v: left %v", after*time.Millisecond, s, dirs)
			}
		}
	}
}

// TestListBesideAStoppedNode: it hides nobody else.
func TestListBesideAStoppedNode(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	dir := t.TempDir()
	named := func(name string) *node {
		cfg := filepath.Join(dir, name+".yaml")
		if err := os.WriteFile(cfg, []byte("node: {name: "+name+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return start(t, "node", "--config", cfg)
	}
	stopped := named("stopped")
	named("well")
	if err := stopped.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer stopped.Process.Signal(syscall.SIGCONT) //nolint:errcheck // it is killed
	out, errs, code := output(t, hawser(t, "plugin", "list"))
	if code != 0 || !strings.Contains(out, "does not answer") || !strings.Contains(out, "well") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}
