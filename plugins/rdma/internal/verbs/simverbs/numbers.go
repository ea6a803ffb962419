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

func numberLink(dir, host, device string, num uint32) string {
	return filepath.Join(numbersDir(dir, host, device), strconv.FormatUint(uint64(num), 10))
}

// takeNumber takes the lowest free number. Numbers of processes that are gone
// are free, as a kernel would have it.
func takeNumber(dir, host, device, owner string, first uint32) (uint32, error) {
	if err := os.MkdirAll(numbersDir(dir, host, device), 0o700); err != nil {
		return 0, err
	}
	alive := map[string]bool{owner: true}
	for num := first; ; {
		link := numberLink(dir, host, device, num)
		err := os.Symlink(owner, link)
		if !errors.Is(err, fs.ErrExist) {
			return num, err
		}
		has := ownerOf(dir, host, device, num)
		if _, known := alive[has]; !known {
			alive[has] = has != "" && isAlive(dir, has)
		}
		if alive[has] {
			num++
			continue
		}
		// Two processes may find the same dead one, and the slower one must not
		// remove what the faster one took.
		err = locked(dir, func() error {
			if has != "" && ownerOf(dir, host, device, num) == has {
				return os.Remove(link)
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
}

func freeNumber(dir, host, device string, num uint32) {
	os.Remove(numberLink(dir, host, device, num))
}

// ownerOf returns the process that owns a number, "" for none.
func ownerOf(dir, host, device string, num uint32) string {
	has, _ := os.Readlink(numberLink(dir, host, device, num))
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
