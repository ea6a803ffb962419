package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/hawser-transport/hawser/engine/internal/freeze"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/remote"
)

// exitGrace is how long after its link a plugin's process may end, for its
// exit status to be the reason rather than the link's end; and how long the
// log of a dead plugin may still be read, if others hold it open.
const exitGrace = 200 * time.Millisecond

// plugged is one plugin process.
type plugged struct {
	name  string
	path  string
	opts  Options
	froze *freeze.Detector
	log   *slog.Logger

	out    *lines
	pumped chan struct{} // the log has been read to its end
	host   *ends         // our ends of what the child inherited
	run    *runner
	conn   *grpc.ClientConn
	proxy  *remote.Transport

	exited context.Context // ends when the process has been reaped
	noted  context.CancelFunc

	once sync.Once
	why  error
	end  chan struct{}
	left chan struct{}
}

// ends are this process's ends of what a child inherits.
type ends struct {
	stderr    *os.File // read
	handshake *os.File // read
	parent    *os.File // write; its closing tells the child that we are gone
	link      *net.UnixConn
}

// start starts a plugin up to the point where it can be configured.
func start(ctx context.Context, opts Options, froze *freeze.Detector, log *slog.Logger, img *image, dir string, spec Spec, env []string) (*plugged, error) {
	p := &plugged{
		name: spec.Name, path: spec.Path, opts: opts, froze: froze, log: log,
		out: newLines(log), pumped: make(chan struct{}),
		end: make(chan struct{}), left: make(chan struct{}),
	}
	p.exited, p.noted = context.WithCancel(context.Background())
	host, files, err := inheritance()
	if err != nil {
		return nil, sdk.Errorf(sdk.Unavailable, "prepare a plugin process: %w", err)
	}
	p.host = host
	p.run = newRunner(img, spec, files, append(env, ownEnvironment(log)...), host.handshake)
	err = p.greet(ctx, dir)
	if p.run.child == nil {
		// It was never started; nothing else refers to these.
		files.close()
		host.close()
		p.noted()
		return nil, p.startFault(ctx, err)
	}
	if err == nil {
		err = p.proxy.Open(ctx, p.host.link, log)
	}
	if err != nil {
		err = p.startFault(ctx, err)
		p.fail(err)
		p.finish(ctx, false)
		return nil, withLines(p, sdk.Errorf(codeOr(err, sdk.Unavailable), "%w", err))
	}
	p.run.settle()
	go p.watchLink()
	return p, nil
}

// greet starts the process and does go-plugin's handshake with it, under ctx:
// go-plugin's own calls have no deadline, so the process is killed when ctx
// ends, and that ends them.
func (p *plugged) greet(ctx context.Context, dir string) error {
	// Ours ends first, and says what it is.
	cfg := clientConfig(p.name, dir, 2*p.opts.StartTimeout+time.Minute, p.run)
	p.run.started = func() {
		go p.pump()
		go p.guard()
	}
	var addr net.Addr
	result := make(chan error, 1)
	go func() {
		var err error
		addr, err = startClient(plugin.NewClient(cfg))
		result <- err
	}()
	var err error
	select {
	case err = <-result:
	case <-ctx.Done():
		p.run.abort()
		if err = <-result; err == nil {
			err = ctx.Err()
		}
	}
	if err != nil {
		return err
	}
	if p.conn, err = dial(addr, cfg.TLSConfig); err != nil {
		return err
	}
	p.proxy, err = proxyOf(p.exited, cfg.Plugins, p.conn)
	return err
}

// pump reads the plugin's stderr, and stdout, which is the same, to the end.
func (p *plugged) pump() {
	defer close(p.pumped)
	_, _ = io.Copy(p.out, p.host.stderr)
	p.out.finish()
}

// guard buries the process: only when it has been reaped is anything released
// that it may still have used.
func (p *plugged) guard() {
	<-p.run.child.reaped
	_ = p.host.stderr.SetReadDeadline(time.Now().Add(exitGrace))
	<-p.pumped
	p.fail(p.exitStatus())
	p.noted()
	// From here on the proxy hands over what the plugin had sent before.
	<-p.run.settled
	if p.proxy != nil {
		<-p.proxy.Done()
	}
	if p.conn != nil {
		_ = p.conn.Close()
	}
	p.host.close()
	p.run.removeSockets()
	close(p.left)
}

// watchLink ends the instance when its link has: without it a plugin is of no
// use. If the process is ending too, its status says more.
func (p *plugged) watchLink() {
	select {
	case <-p.proxy.Done():
	case <-p.end:
		return
	}
	t := time.NewTimer(exitGrace)
	defer t.Stop()
	select {
	case <-p.end:
	case <-t.C:
		p.fail(p.proxy.Err())
	}
}

// exitStatus says how the process ended. Valid once it is reaped.
func (p *plugged) exitStatus() error {
	c := p.run.child
	if c.state == nil {
		return sdk.Errorf(sdk.PluginExited, "the process has ended")
	}
	if sig := c.signal(); sig != 0 {
		return sdk.Errorf(sdk.PluginExited, "the process was ended by signal %d (%v)", int(sig), sig)
	}
	return sdk.Errorf(sdk.PluginExited, "the process exited with status %d", c.state.ExitCode())
}

// notOurs recognises what a plugin says whose cookie is another one: the sdk's
// words, or go-plugin's own.
func notOurs(said string) bool {
	return strings.Contains(said, "a Hawser transport, which a Hawser engine runs") || strings.Contains(said, "This binary is a plugin")
}

// startFault says why a start failed in terms of what a person can mend. A
// process that has ended by itself has crashed, and the crash budget is for
// that: unless its last words are that it is no plugin of ours.
func (p *plugged) startFault(ctx context.Context, err error) error {
	var exec *execError
	if errors.As(err, &exec) {
		return execFault(p.path, exec.err)
	}
	if ctx.Err() != nil {
		return sdk.Errorf(sdk.DeadlineExceeded, "plugin binary %s: not ready within %v", p.path, p.opts.StartTimeout)
	}
	if c := p.run.child; c != nil {
		// A plugin that says why and exits is about to be reaped. One that
		// was well until the handshake failed has been killed for that.
		select {
		case <-c.reaped:
			<-p.pumped
			switch sig := c.signal(); {
			case sig == syscall.SIGKILL && c.killedHere(): // for what it said, or for its silence
			case sig != 0:
				return sdk.Errorf(sdk.PluginExited, "plugin binary %s: killed by signal %d (%v) while starting", p.path, int(sig), sig)
			default:
				code := sdk.PluginExited
				if notOurs(strings.Join(p.lastLines(), " ")) {
					code = sdk.InvalidArgument
				}
				return sdk.Errorf(code, "plugin binary %s: %v before it was ready (is it a Hawser plugin? are its libraries there?)", p.path, p.exitStatus())
			}
		case <-time.After(exitGrace):
		}
	}
	if transient(err) {
		return sdk.Errorf(sdk.Unavailable, "plugin binary %s: cannot be started now: %w", p.path, err)
	}
	return sdk.Errorf(codeOr(err, sdk.InvalidArgument), "plugin binary %s: %w", p.path, err)
}

func (p *plugged) transport() sdk.Transport         { return p.proxy }
func (p *plugged) pid() int                         { return p.run.child.pid }
func (p *plugged) progress() uint64                 { return p.proxy.Progress() }
func (p *plugged) health(ctx context.Context) error { return p.proxy.Health(ctx) }
func (p *plugged) ended() <-chan struct{}           { return p.end }
func (p *plugged) cause() error                     { return p.why }
func (p *plugged) gone() <-chan struct{}            { return p.left }
func (p *plugged) fenced() <-chan struct{}          { return p.run.child.reaped }
func (p *plugged) lastLines() []string              { return p.out.tail() }

func (p *plugged) carrier() string {
	if p.proxy.CarriesFiles() {
		return "unix"
	}
	return "grpc"
}

func (p *plugged) fail(cause error) {
	p.once.Do(func() {
		if cause == nil {
			cause = sdk.Errorf(sdk.PluginExited, "the plugin ended its link")
		}
		p.why = cause
		close(p.end)
		p.run.child.kill()
		select {
		case <-p.run.settled:
			if p.proxy != nil {
				p.proxy.Abort(cause)
			}
		default: // being started: Open sees the end by itself
		}
	})
}

// finish is the watchdog of every stop: whatever the plugin does with an
// orderly request, its process group is killed after StopTimeout.
func (p *plugged) finish(ctx context.Context, orderly bool) bool {
	if orderly {
		ctx, cancel := context.WithTimeout(ctx, p.opts.StopTimeout)
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			if err := p.proxy.Close(ctx); err != nil {
				p.log.Warn("the plugin did not close in order", "err", err)
			}
		}()
		select {
		case <-closed:
			select {
			case <-p.exited.Done():
			case <-ctx.Done():
			}
		case <-ctx.Done():
		}
		cancel()
		p.fail(sdk.Errorf(sdk.Closed, "stopped"))
		<-closed
	}
	p.run.child.kill()
	p.run.settle()
	if p.froze.Wait(p.left, p.opts.AbandonAfter) {
		return true
	}
	p.run.forsake()
	if p.proxy != nil {
		// Its endpoints end all the same.
		p.froze.Wait(p.proxy.Done(), p.opts.AbandonAfter)
	}
	return false
}

// inheritance makes what a child inherits, and our ends of it.
func inheritance() (_ *ends, _ *inherited, err error) {
	var e ends
	var in inherited
	defer func() {
		if err != nil {
			e.close()
			in.close()
		}
	}()
	if e.stderr, in.stderr, err = os.Pipe(); err != nil {
		return nil, nil, err
	}
	if e.handshake, in.handshake, err = os.Pipe(); err != nil {
		return nil, nil, err
	}
	if in.parent, e.parent, err = os.Pipe(); err != nil {
		return nil, nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	ours := os.NewFile(uintptr(pair[0]), "link")
	in.link = os.NewFile(uintptr(pair[1]), "link")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, nil, err
	}
	e.link = conn.(*net.UnixConn)
	return &e, &in, nil
}

func (e *ends) close() {
	for _, f := range []*os.File{e.stderr, e.handshake, e.parent} {
		if f != nil {
			_ = f.Close()
		}
	}
	if e.link != nil {
		_ = e.link.Close()
	}
}

// inherited are the child's ends.
type inherited struct{ stderr, handshake, parent, link *os.File }

func (in *inherited) close() {
	for _, f := range []*os.File{in.stderr, in.handshake, in.parent, in.link} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// list returns the child's descriptors from 0 on. What it prints to stdout
// goes where its stderr goes: the handshake has a descriptor of its own.
func (in *inherited) list(null *os.File) []*os.File {
	return []*os.File{null, in.stderr, in.stderr, in.handshake, in.link, in.parent}
}

// execError is the kernel's answer to execve.
type execError struct{ err error }

func (e *execError) Error() string { return fmt.Sprintf("execute: %v", e.err) }
func (e *execError) Unwrap() error { return e.err }
