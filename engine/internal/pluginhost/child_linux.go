package pluginhost

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// imageFD is the number under which a child finds its own program; descriptors
// for its use begin with 3.
const (
	handshakeFD = 3 + iota
	linkFD
	parentFD
	imageFD
)

// child is one process of ours and the process group that it leads.
type child struct {
	pid   int
	pidfd int

	mu struct {
		sync.Mutex
		reaped bool
		killed bool // by kill, before it was reaped
	}
	reaped chan struct{}
	state  *os.ProcessState // valid once reaped
}

// spawn executes an image. files are the child's descriptors from 0; the
// image is put at imageFD, and the gap filled with nothing.
//
// The parent-death signal follows the thread that forked. The goroutine that
// does so stays locked to its thread until the child has been reaped.
func spawn(img *image, name string, args, env []string, files []*os.File) (*child, error) {
	for len(files) < imageFD {
		files = append(files, nil)
	}
	files = append(files, img.file)
	c := &child{reaped: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		p, err := os.StartProcess("/proc/self/fd/"+itoaFD(imageFD), append([]string{name}, args...), &os.ProcAttr{
			Env: env, Files: files,
			Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, PidFD: &c.pidfd},
		})
		if err == nil {
			c.pid = p.Pid
		}
		started <- err
		if err == nil {
			c.reap(p)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

// reap waits for the child's death and takes its process group along: nothing
// that it started outlives it, unless it left the group. The group is killed
// while the child is a zombie and holds the number.
func (c *child) reap(p *os.Process) {
	if c.pidfd >= 0 {
		for {
			err := unix.Waitid(unix.P_PIDFD, c.pidfd, nil, unix.WEXITED|unix.WNOWAIT, nil)
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
	c.mu.Lock()
	_ = unix.Kill(-c.pid, unix.SIGKILL)
	c.state, _ = p.Wait()
	c.mu.reaped = true
	if c.pidfd >= 0 {
		_ = unix.Close(c.pidfd)
	}
	c.mu.Unlock()
	close(c.reaped)
}

// kill kills the process group. A process that is reaped has no number any
// more, so that nobody else's can be meant.
func (c *child) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.reaped {
		c.mu.killed = true
		_ = unix.Kill(-c.pid, unix.SIGKILL)
	}
}

// killedHere says whether it may be kill that has ended it.
func (c *child) killedHere() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.killed
}

// signal is the one that has ended it, or 0. Valid once it is reaped.
func (c *child) signal() syscall.Signal {
	if c.state != nil {
		if ws, ok := c.state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return ws.Signal()
		}
	}
	return 0
}

func itoaFD(fd int) string { return string(rune('0' + fd)) }
