package rdmalab

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// archive writes the kernel's initial file system: a cpio archive of the
// format "newc", uncompressed.
type archive struct {
	w     *bufio.Writer
	inode int
	err   error
}

const (
	folder  = 0o040755
	program = 0o100755
	private = 0o100600
)

// add adds an entry.
func (a *archive) add(name string, mode int, data []byte) {
	a.inode++
	links := 1
	if mode == folder {
		links = 2
	}
	a.print("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.inode, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	a.print("%s\x00", name)
	a.pad(110 + len(name) + 1)
	a.print("%s", data)
	a.pad(len(data))
}

func (a *archive) print(format string, args ...any) {
	if a.err == nil {
		_, a.err = fmt.Fprintf(a.w, format, args...)
	}
}

// pad fills up to a multiple of four what was n bytes.
func (a *archive) pad(n int) {
	a.print("%s", make([]byte, -n&3))
}

// writeInitrd writes a host's initial file system: the agent as the first
// process, the secret, and the modules in the order in which they are loaded.
func writeInitrd(w io.Writer, agent, secret string, modules []string) error {
	init, err := os.ReadFile(agent)
	if err != nil {
		return err
	}
	a := &archive{w: bufio.NewWriter(w)}
	for _, dir := range []string{"mods", "proc", "sys", "dev", "root", "rw", "lower"} {
		a.add(dir, folder, nil)
	}
	a.add("init", program, init)
	a.add("secret", private, []byte(secret))
	for i, path := range modules {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		a.add(fmt.Sprintf("mods/%03d-%s", i, filepath.Base(path)), private, data)
	}
	a.add("TRAILER!!!", 0, nil)
	if a.err != nil {
		return a.err
	}
	return a.w.Flush()
}
