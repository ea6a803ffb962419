package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hawser-transport/hawser/engine/admin"
	"github.com/hawser-transport/hawser/sdk"
)

const (
	// adminAuto is a socket in the user's runtime directory, where the
	// command line looks.
	adminAuto = "auto"
	// adminOff is none.
	adminOff = "off"
)

// socketFile is a listening unix socket and what to remove in the end.
type socketFile struct {
	net.Listener
	path string
	made fs.FileInfo
}

// listenSocket binds the admin socket. What a killed engine left at the path
// is replaced; a live one's, and what is no socket, is not touched.
func listenSocket(path string) (*socketFile, error) {
	if path == adminAuto {
		if _, err := admin.MakeDir(); err != nil {
			return nil, sdk.Errorf(sdk.Unavailable, "admin.socket: no place for it: %w; set it to a path, or to off", err)
		}
		admin.Sweep()
		path = admin.Default(os.Getpid())
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "admin.socket: %w", err)
	}
	unlock, err := lockFolder(filepath.Dir(path))
	if err != nil {
		return nil, sdk.Errorf(sdk.Unavailable, "admin.socket: %w", err)
	}
	defer unlock()
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := listenPrivately(path)
	if err != nil {
		return nil, sdk.Errorf(sdk.Unavailable, "admin.socket: %w", err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // it may be another's by then
	}
	s := &socketFile{Listener: l, path: path}
	if s.made, err = os.Lstat(path); err != nil {
		_ = l.Close()
		return nil, sdk.Errorf(sdk.Unavailable, "admin.socket: %w", err)
	}
	return s, nil
}

func removeStale(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return sdk.Errorf(sdk.Unavailable, "admin.socket: %w", err)
	}
	if st.Mode()&os.ModeSocket == 0 {
		return sdk.Errorf(sdk.InvalidArgument, "admin.socket: %s is there and is no socket: choose another path", path)
	}
	switch alive, err := admin.Alive(path); {
	case alive:
		return sdk.Errorf(sdk.Busy, "admin.socket: %s is in use by a running process: choose another path", path)
	case err != nil:
		return sdk.Errorf(sdk.Unavailable, "admin.socket: %s is there, and whether it is in use cannot be told: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return sdk.Errorf(sdk.Unavailable, "admin.socket: the one that a dead process left cannot be replaced: %w", err)
	}
	return nil
}

// Close stops listening and removes the socket, if it is still this one.
func (s *socketFile) Close() error {
	if now, err := os.Lstat(s.path); err == nil && os.SameFile(now, s.made) {
		_ = os.Remove(s.path)
	}
	return s.Listener.Close()
}

// listenHTTP binds admin.http.
func listenHTTP(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, sdk.Errorf(sdk.Busy, "admin.http: %s is in use by another process: choose another port, or 0 for a free one", address)
	}
	if err != nil {
		return nil, sdk.Errorf(sdk.Unavailable, "admin.http: %w", err)
	}
	return l, nil
}

// checkAdminSocket says what is wrong with the key, or nothing.
func checkAdminSocket(path string) string {
	if path == "" || path == adminAuto || path == adminOff {
		return ""
	}
	if n := len(path); n > maxSocketPath {
		return fmt.Sprintf("has %d bytes, and the kernel takes %d", n, maxSocketPath)
	}
	if path[len(path)-1] == filepath.Separator {
		return "is a directory"
	}
	for _, b := range []byte(path) {
		if b == 0 {
			return "is not a path"
		}
	}
	return ""
}

// maxSocketPath is the kernel's limit on a unix socket's name.
const maxSocketPath = 107
