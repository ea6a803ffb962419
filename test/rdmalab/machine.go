//go:build linux

package rdmalab

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/agent"
)

const (
	qemu = "qemu-system-x86_64"
	// endIn is how long QEMU may take to end.
	endIn = 5 * time.Second
	// knockEvery is how often an agent is asked whether it is there.
	knockEvery = 500 * time.Millisecond
)

// machine is a QEMU process.
type machine struct {
	cmd  *exec.Cmd
	log  string
	gone chan struct{}
}

// startMachine starts QEMU. What the host's console and QEMU print goes to the
// file log.
func startMachine(args []string, log string) (*machine, error) {
	f, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m := &machine{cmd: exec.Command(qemu, args...), log: log, gone: make(chan struct{})}
	m.cmd.Stdout, m.cmd.Stderr = f, f
	// Of its own group: an interrupt at the terminal is this program's to handle.
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // its death is what Pdeathsig is about
		defer runtime.UnlockOSThread()
		defer close(m.gone)
		err := m.cmd.Start()
		started <- err
		if err == nil {
			_ = m.cmd.Wait()
		}
	}()
	return m, <-started
}

// await waits until the host's agent answers.
func (m *machine) await(ctx context.Context, h agent.Host) error {
	tick := time.NewTicker(knockEvery)
	defer tick.Stop()
	for {
		knock, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err := h.Ask(knock, agent.Request{Stat: &agent.Target{PID: 1}})
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-m.gone:
			return fmt.Errorf("%s ended", qemu)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// console is the end of what the host has printed.
func (m *machine) console() string {
	b, _ := os.ReadFile(m.log)
	const most = 4 << 10
	return strings.TrimSpace(string(bytes.ToValidUTF8(b[max(0, len(b)-most):], nil)))
}

// close ends QEMU: all that it has is thrown away.
func (m *machine) close() error {
	_ = m.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-m.gone:
		return nil
	case <-time.After(endIn):
		_ = m.cmd.Process.Kill()
		<-m.gone
		return fmt.Errorf("%s, process %d, did not end within %s: it was killed", qemu, m.cmd.Process.Pid, endIn)
	}
}
