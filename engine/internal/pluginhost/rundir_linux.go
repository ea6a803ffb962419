package pluginhost

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/sdk"
)

const (
	// runDirPrefix begins the name of a run directory whose owner lives as
	// long as its lock is held; newDirPrefix that of one being made.
	runDirPrefix = "hawser-run-"
	newDirPrefix = "hawser-new-"
	// socketNameBytes is what go-plugin adds: "/plugin-dir" and "/plugin",
	// each with up to ten digits.
	socketNameBytes = len("/plugin-dir") + 10 + len("/plugin") + 10
	// maxSocketPath is the kernel's limit, less the final NUL.
	maxSocketPath = 107
	// staleAfter is how old a half-made directory must be to be removed.
	staleAfter = time.Minute
)

// runDir is a private directory for sockets. Its lock says that its owner
// lives: the kernel drops it with the process, however that ended.
type runDir struct {
	path string
	lock *os.File
}

// makeRunDir makes a run directory, after removing those of dead owners.
func makeRunDir(base string, log *slog.Logger) (*runDir, error) {
	base, err := chooseBase(base)
	if err != nil {
		return nil, err
	}
	clean(base, log)
	temp, err := os.MkdirTemp(base, newDirPrefix)
	if err != nil {
		return nil, sdk.Errorf(sdk.Unavailable, "make a run directory: %w", err)
	}
	lock, err := lockDir(temp)
	if err != nil {
		_ = os.Remove(temp)
		return nil, sdk.Errorf(sdk.Unavailable, "lock run directory %s: %w", temp, err)
	}
	// Only a locked directory gets the name that the janitor looks for.
	path := filepath.Join(base, runDirPrefix+strings.TrimPrefix(filepath.Base(temp), newDirPrefix))
	if err := os.Rename(temp, path); err != nil {
		_ = lock.Close()
		_ = os.Remove(temp)
		return nil, sdk.Errorf(sdk.Unavailable, "make run directory %s: %w", path, err)
	}
	return &runDir{path: path, lock: lock}, nil
}

// checkRunDir returns the directory in which run directories would be made, or
// why none can be.
func checkRunDir(base string) (string, error) {
	base, err := chooseBase(base)
	if err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(base, newDirPrefix)
	if err != nil {
		return base, sdk.Errorf(sdk.Unavailable, "make a run directory: %w", err)
	}
	return base, os.Remove(temp)
}

func (d *runDir) close() {
	_ = os.RemoveAll(d.path)
	_ = d.lock.Close()
}

// chooseBase returns the directory to make run directories in.
func chooseBase(base string) (string, error) {
	if base != "" {
		abs, err := filepath.Abs(base)
		if err != nil {
			return "", sdk.Errorf(sdk.InvalidArgument, "run directory: %w", err)
		}
		if n := pathBytes(abs); n > maxSocketPath {
			return "", sdk.Errorf(sdk.InvalidArgument,
				"run directory %s is too long: a socket in it would have a name of %d bytes, and the kernel takes %d; choose a shorter one",
				clip(abs, 200), n, maxSocketPath)
		}
		return abs, nil
	}
	for _, dir := range []string{os.Getenv("XDG_RUNTIME_DIR"), os.TempDir(), "/tmp"} {
		if filepath.IsAbs(dir) && pathBytes(dir) <= maxSocketPath && unix.Access(dir, unix.W_OK|unix.X_OK) == nil {
			return dir, nil
		}
	}
	return "", sdk.Errorf(sdk.Unavailable, "no writable directory with a short name was found for sockets: configure one")
}

func pathBytes(base string) int {
	return len(base) + 1 + len(runDirPrefix) + 10 + socketNameBytes
}

// clean removes the run directories of owners that are gone. The base may be
// writable by others: only directories of our own, that are no links, count.
func clean(base string, log *slog.Logger) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, e := range entries {
		name := e.Name()
		if !e.IsDir() || !strings.HasPrefix(name, runDirPrefix) && !strings.HasPrefix(name, newDirPrefix) {
			continue
		}
		path := filepath.Join(base, name)
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil || int(st.Uid) != os.Geteuid() {
			continue
		}
		if strings.HasPrefix(name, newDirPrefix) && time.Since(time.Unix(st.Mtim.Unix())) < staleAfter {
			continue
		}
		lock, err := lockDir(path)
		if err != nil {
			continue // its owner lives
		}
		if err := os.RemoveAll(path); err == nil {
			log.Info("removed the run directory of a process that is gone", "path", path)
		}
		_ = lock.Close()
	}
}

// lockDir takes the lock on a directory, or fails at once.
func lockDir(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("locked by a living process: %w", err)
		}
		return nil, err
	}
	return f, nil
}
