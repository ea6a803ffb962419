package simverbs

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// A queue pair's number is a symbolic link, q/HOST/DEVICE/NUMBER, to the name
// of the process that owns it: made in one step, read in one step.

func numbersDir(dir, host, device string) string { return filepath.Join(dir, "q", host, device) }

// takeNumber takes the lowest free number. Numbers of processes that are gone
// are free, as a kernel would have it.
func takeNumber(dir, host, device, owner string, first uint32) (uint32, error) {
	at := numbersDir(dir, host, device)
	if err := os.MkdirAll(at, 0o700); err != nil {
		return 0, err
	}
	var num uint32
	err := locked(dir, func() error {
		alive := map[string]bool{owner: true}
		for num = first; ; num++ {
			link := filepath.Join(at, strconv.FormatUint(uint64(num), 10))
			has, err := os.Readlink(link)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return os.Symlink(owner, link)
			case err != nil:
				return err
			}
			if _, known := alive[has]; !known {
				alive[has] = isAlive(dir, has)
			}
			if alive[has] {
				continue
			}
			if err := os.Remove(link); err != nil {
				return err
			}
			return os.Symlink(owner, link)
		}
	})
	return num, err
}

func freeNumber(dir, host, device string, num uint32) {
	os.Remove(filepath.Join(numbersDir(dir, host, device), strconv.FormatUint(uint64(num), 10)))
}

// ownerOf returns the process that owns a number, "" for none.
func ownerOf(dir, host, device string, num uint32) string {
	has, _ := os.Readlink(filepath.Join(numbersDir(dir, host, device), strconv.FormatUint(uint64(num), 10)))
	return has
}

func socketOf(dir, process string) string { return filepath.Join(dir, "p", process) }

// isAlive reports whether a process still listens; a frozen one does.
func isAlive(dir, process string) bool {
	c, err := net.Dial("unix", socketOf(dir, process))
	if err != nil {
		return !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist)
	}
	c.Close()
	return true
}
