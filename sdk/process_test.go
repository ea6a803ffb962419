//go:build linux

package sdk_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/remote"
)

// bigFrame is over the 4 MiB that grpc takes by default.
const bigFrame = 6 << 20

// asPlugin makes the test binary a plugin.
const asPlugin = "SDK_TEST_PLUGIN"

func TestMain(m *testing.M) {
	switch os.Getenv(asPlugin) {
	case "echo":
		sdk.Serve(newEcho())
	case "big":
		e := newEcho()
		e.maxFrame = bigFrame
		sdk.Serve(e)
	}
	goleak.VerifyTestMain(m)
}

// child is a plugin process, started the way a host does it.
type child struct {
	t      *testing.T
	cmd    *exec.Cmd
	client *plugin.Client
	remote *remote.Transport
	parent *os.File // closing it is the host's death
	stderr *testWriter
	exited chan struct{}
}

// handshakeRunner runs a command whose handshake comes on a descriptor of its
// own.
type handshakeRunner struct {
	cmd    *exec.Cmd
	hand   *os.File
	theirs []*os.File
	stderr *os.File
	exited chan struct{}
}

func (r *handshakeRunner) Start(context.Context) error {
	err := r.cmd.Start()
	for _, f := range r.theirs {
		_ = f.Close()
	}
	return err
}
func (r *handshakeRunner) Wait(context.Context) error {
	err := r.cmd.Wait()
	close(r.exited)
	return err
}
func (r *handshakeRunner) Kill(context.Context) error      { return r.cmd.Process.Kill() }
func (r *handshakeRunner) Stdout() io.ReadCloser           { return r.hand }
func (r *handshakeRunner) Stderr() io.ReadCloser           { return r.stderr }
func (r *handshakeRunner) Name() string                    { return "echo" }
func (r *handshakeRunner) ID() string                      { return "echo" }
func (r *handshakeRunner) Diagnose(context.Context) string { return "" }
func (r *handshakeRunner) PluginToHost(n, a string) (string, string, error) {
	return n, a, nil
}
func (r *handshakeRunner) HostToPlugin(n, a string) (string, string, error) {
	return n, a, nil
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}

func startChild(t *testing.T, kind string, withSocket bool) *child {
	t.Helper()
	c := &child{t: t, stderr: &testWriter{}, exited: make(chan struct{})}
	handR, handW := pipe(t)
	parentR, parentW := pipe(t)
	errR, errW := pipe(t)
	c.parent = parentW
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c.cmd = exec.Command(self)
	c.cmd.Env = []string{asPlugin + "=" + kind, "GORACE=atexit_sleep_ms=0", sdk.EnvHandshakeFD + "=3", sdk.EnvParentFD + "=4", sdk.EnvLogLevel + "=DEBUG"}
	c.cmd.Stdout, c.cmd.Stderr = errW, errW
	c.cmd.ExtraFiles = []*os.File{handW, parentR}
	var host *net.UnixConn
	if withSocket {
		var theirs *os.File
		if host, theirs, err = remote.SocketPair(); err != nil {
			t.Fatal(err)
		}
		c.cmd.Env = append(c.cmd.Env, sdk.EnvLinkFD+"=5")
		c.cmd.ExtraFiles = append(c.cmd.ExtraFiles, theirs)
	}
	c.client = plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  remote.Handshake(),
		Plugins:          remote.Plugins("echo"),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		AutoMTLS:         true,
		SkipHostEnv:      true,
		StartTimeout:     10 * time.Second,
		Stderr:           c.stderr,
		Logger:           hclog.New(&hclog.LoggerOptions{Level: hclog.Off}),
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, _ string) (runner.Runner, error) {
			c.cmd.Env = append(c.cmd.Env, cmd.Env...)
			theirs := append([]*os.File{errW}, c.cmd.ExtraFiles...)
			return &handshakeRunner{cmd: c.cmd, hand: handR, theirs: theirs, stderr: errR, exited: c.exited}, nil
		},
	})
	t.Cleanup(func() {
		c.client.Kill()
		_ = parentW.Close()
		_, _ = handR.Close(), errR.Close()
		c.await(c.exited, "exit")
	})
	protocol, err := c.client.Client()
	if err != nil {
		t.Fatalf("%v\n%s", err, c.stderr)
	}
	raw, err := protocol.Dispense(remote.Name)
	if err != nil {
		t.Fatal(err)
	}
	c.remote = raw.(*remote.Transport)
	if err := c.remote.Open(testContext(t), host, nil); err != nil {
		t.Fatalf("%v\n%s", err, c.stderr)
	}
	return c
}

func (c *child) await(ch <-chan struct{}, what string) {
	c.t.Helper()
	select {
	case <-ch:
	case <-time.After(10 * time.Second):
		c.t.Errorf("no %s\n%s", what, c.stderr)
	}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// connect configures the child and makes an endpoint.
func (c *child) connect(path string) (sdk.Endpoint, *recorder) {
	c.t.Helper()
	ctx := testContext(c.t)
	if _, err := c.remote.Configure(ctx, sdk.Config{Instance: 7, Incarnation: sdk.Incarnation{1}}); err != nil {
		c.t.Fatalf("%v\n%s", err, c.stderr)
	}
	h := newRecorder()
	ep, err := c.remote.Connect(ctx, sdk.Target{Path: path}, answering("hello"), h)
	if err != nil {
		c.t.Fatal(err)
	}
	return ep, h
}

func answering(answer string) sdk.Exchange {
	return func(context.Context, []byte) ([]byte, error) { return []byte(answer), nil }
}

func TestProcess(t *testing.T) {
	for _, withSocket := range []bool{true, false} {
		t.Run(fmt.Sprintf("socket=%t", withSocket), func(t *testing.T) {
			c := startChild(t, "big", withSocket)
			ctx := testContext(t)
			if got := c.remote.CarriesFiles(); got != withSocket {
				t.Errorf("CarriesFiles = %t", got)
			}
			ep, h := c.connect(pathPrint)
			if n, err := ep.Send([]sdk.Frame{{ID: 1, Data: []byte("ping")}}, false); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			if err := h.await(ctx, func(r *recorder) bool { return len(r.results) == 1 && len(r.frames) == 2 }); err != nil {
				t.Fatal(err)
			}
			if _, err := ep.Send([]sdk.Frame{{ID: 2, Data: make([]byte, bigFrame)}}, false); err != nil {
				t.Fatal(err)
			}
			if err := h.await(ctx, func(r *recorder) bool { return len(r.results) == 2 && len(r.frames) == 3 }); err != nil {
				t.Fatal(err)
			}
			if err := c.remote.Health(ctx); err != nil {
				t.Error(err)
			}
			if err := c.remote.Close(ctx); err != nil {
				t.Error(err)
			}
			if h.ends != 1 || !errors.Is(h.ended, sdk.Closed) {
				t.Errorf("%d ends, %v", h.ends, h.ended)
			}
			c.await(c.exited, "exit by itself")
			for _, want := range []string{"rubbish through fmt\n", "rubbish on descriptor 1\n", `"level":"INFO","msg":"configured","instance":7}`} {
				if !strings.Contains(c.stderr.String(), want) {
					t.Errorf("standard error lacks %q:\n%s", want, c.stderr)
				}
			}
		})
	}
}

// TestProcessDescriptors looks at the child from outside.
func TestProcessDescriptors(t *testing.T) {
	c := startChild(t, "echo", true)
	c.connect("main")
	dir := fmt.Sprintf("/proc/%d", c.cmd.Process.Pid)
	out, _ := os.Readlink(dir + "/fd/1")
	errOut, _ := os.Readlink(dir + "/fd/2")
	if out == "" || out != errOut {
		t.Errorf("descriptor 1 leads to %q, 2 to %q", out, errOut)
	}
	entries, err := os.ReadDir(dir + "/fdinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := os.ReadFile(dir + "/fdinfo/" + e.Name())
		if err != nil || len(e.Name()) == 1 && e.Name() < "3" {
			continue // closed meanwhile; standard ones are inherited
		}
		var flags int
		_, line, _ := strings.Cut(string(info), "flags:")
		_, _ = fmt.Sscanf(strings.TrimSpace(line), "%o", &flags)
		if flags&syscall.O_CLOEXEC == 0 {
			t.Errorf("descriptor %s is left to children:\n%s", e.Name(), info)
		}
	}
	limits, err := os.ReadFile(dir + "/limits")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(limits)) {
		if strings.HasPrefix(line, "Max core file size") && !strings.HasPrefix(strings.Fields(line)[4], "0") {
			t.Error(line)
		}
	}
	environ, _ := os.ReadFile(dir + "/environ")
	if !bytes.Contains(environ, []byte(sdk.EnvLinkFD)) {
		t.Error("the child was not started as this test believes")
	}
}

func TestProcessParentDies(t *testing.T) {
	c := startChild(t, "echo", true)
	_, h := c.connect("main")
	_ = c.parent.Close()
	c.await(c.exited, "exit")
	c.await(c.remote.Done(), "end")
	if h.ends != 1 || !errors.Is(h.ended, sdk.PluginExited) {
		t.Errorf("%d ends, %v", h.ends, h.ended)
	}
}

func TestProcessSignals(t *testing.T) {
	c := startChild(t, "echo", true)
	ep, h := c.connect("main")
	_ = c.cmd.Process.Signal(syscall.SIGINT)
	_ = c.cmd.Process.Signal(syscall.SIGPIPE)
	if _, err := ep.Send([]sdk.Frame{{ID: 1}}, false); err != nil {
		t.Fatal(err)
	}
	if err := h.await(testContext(t), func(r *recorder) bool { return len(r.results) == 1 }); err != nil {
		t.Fatal(err)
	}
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	c.await(c.exited, "exit")
	c.await(c.remote.Done(), "end")
	// SIGTERM is orderly: the transport has ended its endpoint itself.
	if h.ends != 1 || !errors.Is(h.ended, sdk.Closed) {
		t.Errorf("%d ends, %v", h.ends, h.ended)
	}
	if code := c.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestProcessPanics(t *testing.T) {
	c := startChild(t, "echo", true)
	ep, h := c.connect(pathPanic)
	_, _ = ep.Send([]sdk.Frame{{ID: 1}}, false)
	c.await(c.exited, "exit")
	c.await(c.remote.Done(), "end")
	c.remote.Abort(errors.New("last words"))
	if h.ends != 1 || !errors.Is(h.ended, sdk.PluginExited) {
		t.Errorf("%d ends, %v", h.ends, h.ended)
	}
	if err := c.remote.Err(); err == nil || !strings.Contains(err.Error(), "last words") {
		t.Errorf("Err = %v", err)
	}
	// go-plugin reads standard error to its end before it reaps.
	if !strings.Contains(c.stderr.String(), "panic: the transport is broken") {
		t.Errorf("no stack on standard error:\n%s", c.stderr)
	}
}

func TestProcessKilled(t *testing.T) {
	c := startChild(t, "echo", true)
	_, h := c.connect("main")
	_ = c.cmd.Process.Kill()
	c.await(c.remote.Done(), "end")
	if h.ends != 1 || !errors.Is(h.ended, sdk.PluginExited) {
		t.Errorf("%d ends, %v", h.ends, h.ended)
	}
}

func TestRunByAPerson(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (stdout, stderr string, code int) {
		cmd := exec.Command(self, args...)
		cmd.Env = append(os.Environ(), asPlugin+"=echo", "GORACE=atexit_sleep_ms=0")
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		_ = cmd.Run()
		return out.String(), errs.String(), cmd.ProcessState.ExitCode()
	}
	if out, errs, code := run(); code != 1 || out != "" || !strings.Contains(errs, "Hawser transport") {
		t.Errorf("plain: %d %q %q", code, out, errs)
	}
	if out, _, code := run("--version"); code != 0 || out != "echo 1.2.3 (contract 1)\n" {
		t.Errorf("--version: %d %q", code, out)
	}
	if out, errs, code := run("--nonsense"); code != 1 || out != "" || errs == "" {
		t.Errorf("--nonsense: %d %q %q", code, out, errs)
	}
	if _, errs, code := run("--help"); code != 0 || errs == "" {
		t.Errorf("--help: %d %q", code, errs)
	}
	out, _, code := run("--describe")
	var d struct {
		Name     string
		Features []string
		Limits   struct {
			MaxFrame int `json:"max_frame"`
			Frames   int `json:"inflight_frames"`
		}
	}
	if err := json.Unmarshal([]byte(out), &d); err != nil || code != 0 {
		t.Fatalf("--describe: %d %v %q", code, err, out)
	}
	if d.Name != "echo" || d.Limits.MaxFrame != 200_000 || d.Limits.Frames != 1024 || strings.Join(d.Features, " ") != "notify probe drain" {
		t.Errorf("--describe: %+v", d)
	}
}
