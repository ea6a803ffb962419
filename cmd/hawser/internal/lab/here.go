package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/proc"
)

// Here is this machine.
type Here struct{}

// Address implements [Host].
func (Here) Address() string { return "127.0.0.1" }

// Shift implements [Host]: all its processes have one clock.
func (Here) Shift() time.Duration { return 0 }

// Hold implements [Host].
func (Here) Hold(_ context.Context, pid, parent int) (Handle, error) {
	if parent == 0 {
		parent = os.Getpid()
	}
	h, err := proc.Open(pid, parent)
	if err != nil {
		return nil, err
	}
	return h, nil
}

// Run implements [Host].
func (Here) Run(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	said := strings.TrimSpace(string(out))
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, said)
	}
	return said, err
}

// Read implements [Host].
func (Here) Read(_ context.Context, path string) ([]byte, error) { return os.ReadFile(path) }

// List implements [Host].
func (Here) List(_ context.Context, path string) (names []string, err error) {
	entries, err := os.ReadDir(path)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (Here) start(o Options, exe string, stderr io.Writer) (*spawned, error) {
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, inR.Close(), inW.Close())
	}
	cmd := exec.Command(exe, o.Args...)
	cmd.Env = append(os.Environ(), o.Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, stderr
	cmd.WaitDelay = time.Second
	ownGroup(cmd)
	started := make(chan error, 1)
	reaped := make(chan struct{})
	go func() {
		// The parent-death signal is sent when the thread that forked dies.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(reaped)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	err = <-started
	_ = inR.Close()
	_ = outW.Close()
	if err != nil {
		return nil, errors.Join(err, inW.Close(), outR.Close())
	}
	return &spawned{pid: cmd.Process.Pid, in: inW, out: outR, kill: func() { _ = cmd.Process.Kill() }, reaped: reaped}, nil
}
