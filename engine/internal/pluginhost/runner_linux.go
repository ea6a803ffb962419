package pluginhost

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	goplugin "github.com/hashicorp/go-plugin/runner"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/remote"
)

// maxHandshake bounds the one line of go-plugin's handshake; a certificate
// takes about a kilobyte of it.
const maxHandshake = 16 << 10

// clientConfig is how go-plugin is used: for the handshake and the
// certificates, and for nothing else. Its own reading of stderr, its broker,
// its health call and its Kill each can hang or crash the host.
func clientConfig(label, dir string, timeout time.Duration, r *runner) *plugin.ClientConfig {
	return &plugin.ClientConfig{
		HandshakeConfig:  remote.Handshake(),
		Plugins:          remote.Plugins(label),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		AutoMTLS:         true,
		SkipHostEnv:      true,
		StartTimeout:     timeout,
		Logger:           hclog.New(&hclog.LoggerOptions{Level: hclog.Off, Output: io.Discard}),
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: dir},
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, socketDir string) (goplugin.Runner, error) {
			r.take(cmd.Env, socketDir)
			return r, nil
		},
	}
}

// startClient starts the plugin. What it writes decides what go-plugin does,
// so a panic there is the plugin's fault and costs the plugin.
func startClient(c *plugin.Client) (_ net.Addr, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = sdk.Errorf(sdk.InvalidArgument, "the handshake made go-plugin panic: %v", r)
		}
	}()
	return c.Start()
}

// dial connects to the plugin's gRPC server. It does not wait.
func dial(addr net.Addr, conf *tls.Config) (*grpc.ClientConn, error) {
	if conf == nil || conf.RootCAs == nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "the plugin's handshake carries no certificate: it must support AutoMTLS")
	}
	return grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(credentials.NewTLS(conf)),
		grpc.WithIdleTimeout(0),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, addr.Network(), addr.String())
		}))
}

// proxyOf makes the host's end of the plugin on a connection of our own: no
// broker is made, whose goroutines would outlive the plugin.
func proxyOf(exited context.Context, set plugin.PluginSet, conn *grpc.ClientConn) (*remote.Transport, error) {
	p, ok := set[remote.Name].(plugin.GRPCPlugin)
	if !ok {
		return nil, errors.New("no gRPC plugin named " + remote.Name)
	}
	raw, err := p.GRPCClient(exited, nil, conn)
	if err != nil {
		return nil, err
	}
	return raw.(*remote.Transport), nil
}

// runner is go-plugin's view of a process of ours.
type runner struct {
	img       *image
	path      string
	files     *inherited
	env       []string
	handshake io.ReadCloser
	started   func() // called once the process runs

	socketDir string
	mu        struct {
		sync.Mutex
		aborted bool
	}
	child *child

	settleOnce, forsakeOnce sync.Once
	// settled is closed when the start is over, one way or the other.
	settled chan struct{}
	// forsaken is closed when the process will not be waited for any more.
	forsaken chan struct{}
}

var _ goplugin.Runner = (*runner)(nil)

func newRunner(img *image, spec Spec, files *inherited, env []string, handshake io.ReadCloser) *runner {
	r := &runner{
		img: img, path: spec.Path, files: files, env: env,
		settled: make(chan struct{}), forsaken: make(chan struct{}),
	}
	r.handshake = &firstLine{r: handshake, ended: r.awaitEnd}
	return r
}

// awaitEnd waits a moment for a process to be reaped that has let go of its
// handshake: go-plugin kills it for that, and why it died by itself says more.
func (r *runner) awaitEnd() {
	select {
	case <-r.child.reaped:
	case <-time.After(deathGrace):
	}
}

// take receives what go-plugin wants the plugin to find.
func (r *runner) take(env []string, socketDir string) {
	r.socketDir = socketDir
	// The last of two equal names counts, and that is go-plugin's.
	r.env = append(append(hostEnvironment(), r.env...), env...)
}

// Start executes the image.
func (r *runner) Start(context.Context) error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.aborted {
		return context.DeadlineExceeded
	}
	c, err := spawn(r.img, r.path, nil, r.env, r.files.list(null))
	if err != nil {
		r.removeSockets()
		return &execError{err}
	}
	r.child = c
	r.files.close()
	r.started()
	return nil
}

// abort ends a start that takes too long, whether the process runs yet or not.
func (r *runner) abort() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.aborted = true
	if r.child != nil {
		r.child.kill()
	}
}

// settle says that the start is over: what it made may be released.
func (r *runner) settle() { r.settleOnce.Do(func() { close(r.settled) }) }

// forsake lets go-plugin's goroutine go, which waits for the process.
func (r *runner) forsake() { r.forsakeOnce.Do(func() { close(r.forsaken) }) }

func (r *runner) removeSockets() {
	if r.socketDir != "" {
		_ = os.RemoveAll(r.socketDir)
	}
}

// Wait returns when the process has been reaped, or is given up.
func (r *runner) Wait(context.Context) error {
	select {
	case <-r.child.reaped:
	case <-r.forsaken:
	}
	return nil
}

// Kill kills the process group.
func (r *runner) Kill(context.Context) error {
	if r.child != nil {
		r.child.kill()
	}
	return nil
}

// Stdout is where go-plugin looks for the handshake.
func (r *runner) Stdout() io.ReadCloser { return r.handshake }

// Stderr is empty: the real one is read by us.
func (r *runner) Stderr() io.ReadCloser { return io.NopCloser(bytes.NewReader(nil)) }

// Name is the path, for go-plugin's messages.
func (r *runner) Name() string { return r.path }

// ID is the process's number.
func (r *runner) ID() string {
	if r.child == nil {
		return ""
	}
	return strconv.Itoa(r.child.pid)
}

// Diagnose adds nothing: we explain failures ourselves.
func (r *runner) Diagnose(context.Context) string { return "" }

// PluginToHost checks the address from the handshake: a plugin must not make
// its host connect to somewhere else.
func (r *runner) PluginToHost(network, address string) (string, string, error) {
	if network != "unix" || filepath.Dir(filepath.Clean(address)) != filepath.Clean(r.socketDir) {
		return "", "", fmt.Errorf("the plugin serves at %s %q: it must be a unix socket in %s (see %s)",
			clip(network, 16), clip(address, 200), r.socketDir, plugin.EnvUnixSocketDir)
	}
	var st unix.Stat_t
	if err := unix.Lstat(address, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return "", "", fmt.Errorf("the plugin serves at %q, which is not a socket", clip(address, 200))
	}
	return network, address, nil
}

// HostToPlugin is for addresses that we would give to a plugin; there are
// none.
func (r *runner) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}

// firstLine reads one line of bounded length, and then nothing.
type firstLine struct {
	r     io.ReadCloser
	ended func() // called before the end is told that came without a line; or nil
	n     int
	done  bool
}

func (f *firstLine) Read(p []byte) (int, error) {
	if f.done || f.n >= maxHandshake {
		return 0, io.EOF
	}
	n, err := f.r.Read(p[:min(len(p), maxHandshake-f.n)])
	f.n += n
	if i := bytes.IndexByte(p[:n], '\n'); i >= 0 {
		f.done = true
		return i + 1, nil
	}
	if err != nil && f.ended != nil {
		f.ended()
	}
	return n, err
}

func (f *firstLine) Close() error { return f.r.Close() }
