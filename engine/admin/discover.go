package admin

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// socketSuffix ends the names of sockets in Dir.
const socketSuffix = ".sock"

// Dir is where sockets are whose place is not configured: hawser in the user's
// runtime directory, else hawser-UID in the temporary one.
func Dir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			return filepath.Join(dir, "hawser")
		}
	}
	return filepath.Join(os.TempDir(), "hawser-"+strconv.Itoa(os.Geteuid()))
}

// MakeDir makes Dir if need be, and refuses one that is not the user's alone.
func MakeDir() (string, error) {
	dir := Dir()
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return "", err
	}
	return dir, checkDir(dir)
}

func checkDir(dir string) error {
	st, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !st.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case st.Mode().Perm()&0o077 != 0 || !own(st):
		return fmt.Errorf("%s is not a directory of this user alone (mode 0700)", dir)
	}
	return nil
}

// Default is the socket in Dir of the process with this id.
func Default(pid int) string { return filepath.Join(Dir(), strconv.Itoa(pid)+socketSuffix) }

// Discover returns the sockets in Dir on which an engine listens, in the order
// of their names. A directory that others may write to has none.
func Discover() []string {
	live, _ := sockets()
	return live
}

// Sweep removes the sockets in Dir that engines which were killed have left.
func Sweep() {
	_, dead := sockets()
	for _, path := range dead {
		_ = os.Remove(path)
	}
}

func sockets() (live, dead []string) {
	dir := Dir()
	if checkDir(dir) != nil {
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil
	}
	for _, e := range entries {
		if e.Type()&os.ModeSocket == 0 || !strings.HasSuffix(e.Name(), socketSuffix) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		switch alive, err := Alive(path); {
		case alive:
			live = append(live, path)
		case err == nil:
			dead = append(dead, path)
		}
	}
	slices.Sort(live)
	return live, dead
}

// Alive reports whether anybody listens on a socket. An error means that it
// cannot be told.
func Alive(path string) (bool, error) {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return true, nil
	}
	if refused(err) {
		return false, nil
	}
	return false, err
}
