package sdk

import (
	"fmt"
	"math"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// inherited is what the host left to this process.
type inherited struct {
	handshake *os.File
	link      *net.UnixConn // nil: the link runs over gRPC
	parent    *os.File      // nil: nobody watches
	// stdout and stderr both lead to standard error. They are kept here
	// because go-plugin overwrites the variables, and the collector closes
	// the descriptors of files that nobody holds.
	stdout, stderr *os.File
}

// sealDescriptors keeps what was inherited from this process's own children.
func sealDescriptors() error {
	return unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
}

// inherit takes over the descriptors named by the environment, and folds
// standard output into standard error.
func inherit() (*inherited, error) {
	// A crash in a driver would write gigabytes of mapped memory, keys too.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return nil, fmt.Errorf("RLIMIT_CORE: %w", err)
	}
	in := &inherited{stdout: os.Stdout, stderr: os.Stderr}
	var err error
	if in.handshake, err = claim(EnvHandshakeFD); err != nil {
		return nil, err
	}
	if in.handshake == nil {
		if in.handshake, err = dupStdout(); err != nil {
			return nil, err
		}
	}
	if in.link, err = claimLink(); err != nil {
		return nil, err
	}
	if in.parent, err = claim(EnvParentFD); err != nil {
		return nil, err
	}
	if err := foldStdout(); err != nil {
		return nil, err
	}
	// go-plugin prints its handshake to os.Stdout, the variable.
	os.Stdout = in.handshake
	return in, nil
}

// dupStdout returns standard output under another descriptor.
func dupStdout() (*os.File, error) {
	fd, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("standard output: %w", err)
	}
	return os.NewFile(uintptr(fd), "stdout"), nil
}

// foldStdout makes standard output lead to standard error.
func foldStdout() error {
	if err := unix.Dup3(2, 1, 0); err != nil {
		return fmt.Errorf("folding standard output into standard error: %w", err)
	}
	return nil
}

// claim takes the descriptor that an environment variable names, or returns
// nil if there is no such variable. The variable is removed, since the number
// means nothing to children.
func claim(env string) (*os.File, error) {
	value, ok := os.LookupEnv(env)
	if !ok || value == "" {
		return nil, nil
	}
	_ = os.Unsetenv(env)
	fd, err := strconv.Atoi(value)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s=%q is no number of an inherited descriptor", env, value)
	}
	// Non-blocking, so that waiting for it holds no thread; the other end has
	// an open file description of its own.
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("%s=%d: %w", env, fd, err)
	}
	return os.NewFile(uintptr(fd), env), nil
}

func claimLink() (*net.UnixConn, error) {
	f, err := claim(EnvLinkFD)
	if f == nil || err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", EnvLinkFD, err)
	}
	u, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close()
		return nil, fmt.Errorf("%s is not a unix socket", EnvLinkFD)
	}
	return u, nil
}
