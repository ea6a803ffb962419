//go:build unix

package admin

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// own reports whether a file belongs to this user.
func own(st fs.FileInfo) bool {
	s, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(s.Uid) == os.Geteuid()
}

func refused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
