package pluginhost

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/sdk"
)

// image is a plugin's program, ready to be executed: a sealed copy in memory
// whose checksum was taken from that copy, so that nobody can change it
// between the check and the use.
type image struct {
	file *os.File
	id   imageID
	sum  string
	// sealed is false for the file itself, used where the kernel forbids
	// executing memory files.
	sealed bool
}

// imageID tells whether a path still holds the file that an image was made of.
type imageID struct {
	path, want   string
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

// openImage makes an image of the file at the path, and checks that it has the
// wanted checksum, if there is one.
func openImage(path, want string, log *slog.Logger) (*image, error) {
	f, err := openProgram(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if f != nil {
			_ = f.Close()
		}
	}()
	id, err := identify(f, path, want)
	if err != nil {
		return nil, err
	}
	copied, sum, err := sealedCopy(f, filepath.Base(path))
	if errors.Is(err, errNoExec) {
		log.Warn("the kernel forbids executing memory files: the plugin is executed from its file, which may change after it was checked", "path", path, "err", err)
		return plainImage(f, &f, id)
	}
	if err != nil {
		return nil, sdk.Errorf(sdk.Unavailable, "copy %s: %w", path, err)
	}
	if err := compareSums(path, sum, want); err != nil {
		_ = copied.Close()
		return nil, err
	}
	return &image{file: copied, id: id, sum: sum, sealed: true}, nil
}

// plainImage hashes the file and executes it from the same descriptor. It
// takes the file over from the owner.
func plainImage(f *os.File, owner **os.File, id imageID) (*image, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return nil, sdk.Errorf(sdk.Unavailable, "read %s: %w", id.path, err)
	}
	sum := hex.EncodeToString(h.Sum(nil))
	if err := compareSums(id.path, sum, id.want); err != nil {
		return nil, err
	}
	*owner = nil
	return &image{file: f, id: id, sum: sum}, nil
}

func (i *image) close() { _ = i.file.Close() }

// current reports whether the path still holds what the image was made of.
func (i *image) current(path, want string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && i.id == idOf(&st, path, want)
}

// errNoExec: the kernel executes no memory files.
var errNoExec = errors.New("memory files cannot be executed")

// sealedCopy copies a file into a sealed memory file and returns its checksum.
func sealedCopy(f *os.File, name string) (*os.File, string, error) {
	fd, err := unix.MemfdCreate("hawser:"+clip(name, 64), unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("hawser:"+clip(name, 64), unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if transient(err) {
		return nil, "", fmt.Errorf("make a memory file: %w", err)
	}
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", errNoExec, err)
	}
	m := os.NewFile(uintptr(fd), "memfd:"+name)
	h := sha256.New()
	if _, err = io.Copy(m, f); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS,
			unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err == nil {
		_, err = m.Seek(0, io.SeekStart)
	}
	if err == nil {
		_, err = io.Copy(h, m)
	}
	if err != nil {
		_ = m.Close()
		return nil, "", err
	}
	return m, hex.EncodeToString(h.Sum(nil)), nil
}

// openProgram opens a file that is meant to be executed, and tells apart what
// may be wrong with it.
func openProgram(path string) (*os.File, error) {
	if path == "" {
		return nil, sdk.Errorf(sdk.InvalidArgument, "no plugin binary is named")
	}
	// Non-blocking: a FIFO must not hold us.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, sdk.Errorf(sdk.InvalidArgument, "no plugin binary at %s: %w", path, err)
	case errors.Is(err, os.ErrPermission):
		return nil, sdk.Errorf(sdk.InvalidArgument, "plugin binary %s cannot be read: give the user that runs Hawser read permission: %w", path, err)
	case transient(err):
		return nil, sdk.Errorf(sdk.Unavailable, "plugin binary: %w", err)
	case err != nil:
		return nil, sdk.Errorf(sdk.InvalidArgument, "plugin binary: %w", err)
	}
	if err := executable(f, path); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func executable(f *os.File, path string) error {
	st, err := f.Stat()
	switch {
	case err != nil:
		return sdk.Errorf(sdk.InvalidArgument, "plugin binary: %w", err)
	case st.IsDir():
		return sdk.Errorf(sdk.InvalidArgument, "plugin binary %s is a directory: name the file in it", path)
	case !st.Mode().IsRegular():
		return sdk.Errorf(sdk.InvalidArgument, "plugin binary %s is not a regular file (%s)", path, st.Mode().Type())
	case st.Mode()&0o111 == 0:
		return sdk.Errorf(sdk.InvalidArgument, "plugin binary %s is not executable: chmod +x it", path)
	}
	return nil
}

func identify(f *os.File, path, want string) (imageID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return imageID{}, sdk.Errorf(sdk.Unavailable, "stat %s: %w", path, err)
	}
	return idOf(&st, path, want), nil
}

func idOf(st *unix.Stat_t, path, want string) imageID {
	return imageID{path: path, want: want, dev: st.Dev, ino: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim}
}

// execFault explains why the kernel would not execute an image.
func execFault(path string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOEXEC):
		return sdk.Errorf(sdk.InvalidArgument, "plugin binary %s is not a program for this machine (%s): %w", path, machine(), err)
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ELIBBAD), errors.Is(err, syscall.ELIBACC):
		return sdk.Errorf(sdk.InvalidArgument, "plugin binary %s needs a program interpreter or dynamic loader that is missing on this machine (see `readelf -l`): %w", path, err)
	default:
		return sdk.Errorf(sdk.Unavailable, "execute plugin binary %s: %w", path, err)
	}
}
