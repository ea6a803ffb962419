package lab

import (
	"context"
	"io"
	"syscall"
	"time"
)

// Host is where children run: [Here], or a virtual host of the lab, see [At].
type Host interface {
	// Address is the host's own, for a node to listen at.
	Address() string
	// Hold holds on to the process with this number, which must be a child of
	// parent; 0 stands for whoever starts children there.
	Hold(ctx context.Context, pid, parent int) (Handle, error)
	// Run runs a program to its end and returns what it printed.
	Run(ctx context.Context, args ...string) (string, error)
	// Read reads a file, List a folder.
	Read(ctx context.Context, path string) ([]byte, error)
	List(ctx context.Context, path string) ([]string, error)
	// Shift is what has to be added to times that processes there tell.
	Shift() time.Duration

	start(o Options, exe string, stderr io.Writer) (*spawned, error)
}

// Handle is a process that is held on to: a signal reaches that one, and no
// other that was given its number since.
type Handle interface {
	PID() int
	Signal(syscall.Signal) error
	// WaitGone and WaitStopped wait until the process has ended, or is stopped
	// by a signal; false if ctx ended first.
	WaitGone(ctx context.Context) bool
	WaitStopped(ctx context.Context) bool
	Close()
}

// spawned is a process that was started.
type spawned struct {
	pid    int
	in     io.WriteCloser
	out    io.ReadCloser
	kill   func()
	reaped <-chan struct{}
}
