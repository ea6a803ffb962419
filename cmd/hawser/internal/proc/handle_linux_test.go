package proc

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestHandle(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	if _, err := Open(cmd.Process.Pid, os.Getppid()); err == nil {
		t.Error("somebody else's child was taken")
	}
	h, err := Open(cmd.Process.Pid, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if h.Gone() {
		t.Fatal("gone")
	}
	if err := h.Signal(syscall.SIGSTOP); err != nil || !h.WaitStopped(ctx) {
		t.Fatalf("not stopped: %v", err)
	}
	if err := h.Signal(syscall.SIGKILL); err != nil || !h.WaitGone(ctx) {
		t.Fatalf("not gone: %v", err)
	}
	if h.WaitStopped(closed()) {
		t.Error("a dead process counts as stopped")
	}
}

func closed() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
