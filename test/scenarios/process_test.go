//go:build linux

package scenarios

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const pollEvery = 5 * time.Millisecond

// patience is for what should take a fraction of it.
var patience = 20 * time.Second * slow

// until waits for f to hold.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(pollEvery) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// processes lists the living processes that have the text among their
// arguments or in their environment, other than this one. A plugin runs from a
// memory file; its path is its first argument.
func processes(text string) (list []string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(d))
		if pid == os.Getpid() || !alive(pid) {
			continue
		}
		args, _ := os.ReadFile(d + "/cmdline")
		env, _ := os.ReadFile(d + "/environ")
		if bytes.Contains(args, []byte(text)) || bytes.Contains(env, []byte(text)) {
			list = append(list, fmt.Sprintf("process %d: %s", pid, bytes.ReplaceAll(args, []byte{0}, []byte(" "))))
		}
	}
	return list
}

// alive reports whether there is a process, other than as a zombie.
func alive(pid int) bool {
	state := field(pid, "State:")
	return state != "" && state[0] != 'Z' && state[0] != 'X'
}

// field reads a line of a process's status, or nothing.
func field(pid int, name string) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// resident is how many bytes of memory a process holds.
func resident(pid int) int {
	kilobytes, _ := strconv.Atoi(strings.TrimSuffix(field(pid, "VmRSS:"), " kB"))
	return kilobytes << 10
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// files counts what is below a directory.
func files(dir string) (n int) {
	_ = filepath.WalkDir(dir, func(string, os.DirEntry, error) error { n++; return nil })
	return n
}

// held is a process that is held on to, until it is released: a signal cannot
// reach another one that was given its number since.
type held struct{ pid, fd int }

func holdOn(pid int) (held, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return held{}, fmt.Errorf("hold process %d: %w", pid, err)
	}
	return held{pid, fd}, nil
}

func hold(t *testing.T, pid int) held {
	t.Helper()
	h, err := holdOn(pid)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (h held) release() { _ = unix.Close(h.fd) }

// kill kills the process, waits until it has ended, and lets go of it.
func (h held) kill(t *testing.T) {
	t.Helper()
	defer h.release()
	if err := unix.PidfdSendSignal(h.fd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatalf("kill process %d: %v", h.pid, err)
	}
	until(t, fmt.Sprintf("process %d to end", h.pid), h.gone)
}

func (h held) gone() bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}, 0)
	return err == nil && n == 1
}
