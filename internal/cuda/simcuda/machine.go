//go:build linux

package simcuda

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// machine is what its processes share, in a directory:
//
//	lock              held while the rest is changed
//	process/NAME      locked by the process of that name while it lives
//	memory/DEVICE.ID  an allocation: its size. Locked, shared, by every process
//	                  that holds it; one that nobody locks is free
//	handle/HEX        where a fabric, IPC or event handle leads to
//	exclusive/DEVICE  locked by the process that has the device for itself
//	hold              copies wait while it exists
//	faults            those of all processes, a line each
//
// Locks are the kernel's and go with their process.
type machine string

func (m machine) path(parts ...string) string {
	return filepath.Join(append([]string{string(m)}, parts...)...)
}

func (m machine) make() error {
	for _, d := range []string{"process", "memory", "handle", "exclusive"} {
		if err := os.MkdirAll(m.path(d), 0o700); err != nil {
			return err
		}
	}
	return nil
}

// lock opens a file and locks it. It fails with EWOULDBLOCK if how has LOCK_NB
// and another has the lock.
func lock(file string, flags, how int) (*os.File, error) {
	f, err := os.OpenFile(file, flags|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// locked runs do while no other process of the machine is in locked.
func (m machine) locked(do func() error) error {
	l, err := lock(m.path("lock"), os.O_CREATE, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer l.Close()
	return do()
}

// enter says that a process lives, until the file is closed.
func (m machine) enter(process string) (*os.File, error) {
	return lock(m.path("process", process), os.O_CREATE, unix.LOCK_EX|unix.LOCK_NB)
}

// lives reports whether a process does.
func (m machine) lives(process string) bool {
	l, err := lock(m.path("process", process), 0, unix.LOCK_SH|unix.LOCK_NB)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	l.Close()
	return false
}

func memoryPrefix(device int) string { return strconv.Itoa(device) + "." }

// used is the memory of a device that any process holds. It forgets the rest.
// The lock is held.
func (m machine) used(device int) (uint64, error) {
	entries, err := os.ReadDir(m.path("memory"))
	if err != nil {
		return 0, err
	}
	var sum uint64
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), memoryPrefix(device)) {
			continue
		}
		file := m.path("memory", e.Name())
		if l, err := lock(file, 0, unix.LOCK_EX|unix.LOCK_NB); err == nil {
			os.Remove(file)
			l.Close()
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		size, err := strconv.ParseUint(string(b), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		sum += size
	}
	return sum, nil
}

// errFull is a device without that much memory.
var errFull = errors.New("out of memory")

// hold counts an allocation for a process that creates (limit is the device's
// memory) or imports it (limit 0), until the file is closed.
func (m machine) hold(device int, id string, size, limit uint64) (held *os.File, err error) {
	err = m.locked(func() error {
		if limit > 0 {
			used, err := m.used(device)
			if err != nil {
				return err
			}
			if size > limit || used > limit-size {
				return errFull
			}
		}
		file := m.path("memory", memoryPrefix(device)+id)
		if held, err = lock(file, os.O_CREATE, unix.LOCK_SH); err != nil {
			return err
		}
		_, err := held.WriteAt(strconv.AppendUint(nil, size, 10), 0)
		return err
	})
	if err != nil && held != nil {
		held.Close()
		held = nil
	}
	return held, err
}

// place is where a handle leads to: a descriptor of a process.
type place struct {
	Process string // its name
	PID, FD int
	File    string // the descriptor's name: another one of the same number is not it
}

func (m machine) handle(h [64]byte) string { return m.path("handle", hex.EncodeToString(h[:32])) }

func (m machine) publish(h [64]byte, p place) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	next := m.handle(h) + ".next"
	if err := os.WriteFile(next, b, 0o600); err != nil {
		return err
	}
	return os.Rename(next, m.handle(h))
}

func (m machine) withdraw(h [64]byte) { os.Remove(m.handle(h)) }

// resolve opens what a handle leads to.
func (m machine) resolve(h [64]byte) (place, *os.File, error) {
	var p place
	b, err := os.ReadFile(m.handle(h))
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil {
		return p, nil, err
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/%d", p.PID, p.FD), os.O_RDWR, 0)
	if err != nil {
		return p, nil, err
	}
	if name := fileName(int(f.Fd())); name != p.File {
		f.Close()
		return p, nil, fmt.Errorf("the handle is stale: %s is not %s", name, p.File)
	}
	return p, f, nil
}

// newFile makes a memfd.
func newFile(name string, size uint64, seals int) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	err = f.Truncate(int64(size))
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// fileName is the name that newFile gave to what a descriptor leads to, empty if
// it did not.
func fileName(fd int) string {
	to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	name, isMemfd := strings.CutPrefix(to, "/memfd:")
	if err != nil || !isMemfd {
		return ""
	}
	return strings.TrimSuffix(name, " (deleted)")
}

// Hold makes the copies that have not begun wait, in every process of the
// machine of that directory.
func Hold(dir string) error { return os.WriteFile(machine(dir).path("hold"), nil, 0o600) }

// Resume ends Hold.
func Resume(dir string) error { return os.Remove(machine(dir).path("hold")) }

func (m machine) isHeld() bool {
	_, err := os.Stat(m.path("hold"))
	return err == nil
}

// note adds a fault to those of all processes, as long as the machine is there.
func (m machine) note(fault string) {
	f, err := os.OpenFile(m.path("faults"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, _ = fmt.Fprintf(f, "process %d: %s\n", os.Getpid(), fault)
		_ = f.Close()
	}
}

// Faults are those that all processes of the machine of that directory have
// recorded.
func Faults(dir string) ([]string, error) {
	b, err := os.ReadFile(machine(dir).path("faults"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n"), err
}
