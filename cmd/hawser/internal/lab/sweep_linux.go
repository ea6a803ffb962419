package lab

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Sweep removes the run directories of nodes that were killed. An engine would
// do it at its next start; here there may be none. A directory whose owner
// lives is locked.
func Sweep() {
	for _, base := range []string{os.Getenv("XDG_RUNTIME_DIR"), os.TempDir(), "/tmp"} {
		if !filepath.IsAbs(base) {
			continue
		}
		dirs, _ := filepath.Glob(filepath.Join(base, "hawser-run-*"))
		for _, dir := range dirs {
			sweep(dir)
		}
	}
}

// sweep removes a directory of our own that is no link and has no owner.
func sweep(dir string) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && int(st.Uid) == os.Geteuid() && unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
		_ = os.RemoveAll(dir)
	}
}
