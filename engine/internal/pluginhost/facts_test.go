//go:build linux

package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	goplugin "github.com/hashicorp/go-plugin/runner"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/sdk"
)

// One test per item of the list of ways in which go-plugin, used plainly, hangs
// or crashes its host. Each was seen to fail with its guard removed; which
// guard that is stands above it. Item 2 has two guards, this package's deadline
// and the proxy's: TestHungIsKilled fails without ours alone.

// Without finish's kill after StopTimeout, Stop does not return.
func TestFact01StopOfAStoppedProcessReturns(t *testing.T) {
	tr := troupeOf(t, actor(t, "good"), Options{StopTimeout: 300 * time.Millisecond, HealthInterval: time.Hour})
	tr.up(t)
	pidfd := hold(t, tr.Status().PID)
	stop(t, tr.Status().PID)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := tr.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if !gone(t, pidfd, time.Millisecond) {
		t.Fatal("the process is still there")
	}
	expect(t, tr.rec, "up 1", "down 1")
}

// Without callHealth's deadline the hung plugin stays.
func TestFact02HealthOfAStoppedProcessHasADeadline(t *testing.T) {
	tr := troupeOf(t, actor(t, "good"), Options{HealthInterval: 50 * time.Millisecond, HealthTimeout: 300 * time.Millisecond})
	tr.up(t)
	pidfd := hold(t, tr.Status().PID)
	stop(t, tr.Status().PID)
	if !gone(t, pidfd, 10*time.Second) {
		t.Fatal("the hung process lives")
	}
	tr.rec.wait(t, "up 2", 1)
	if err := tr.Status().LastError; err == nil || !strings.Contains(err.Error(), "hung") {
		t.Fatalf("last error: %v", err)
	}
}

func TestFact03CertificatesCannotPanicTheHost(t *testing.T) {
	t.Run("a certificate in the handshake", func(t *testing.T) {
		// With AutoMTLS off and startClient's recover removed this crashes
		// the test binary.
		tr := troupeOf(t, actor(t, "cert"), Options{StartTimeout: time.Second})
		if err := tr.fault(t); !errors.Is(err, sdk.DeadlineExceeded) {
			t.Fatal(err)
		}
	})
	t.Run("no certificate, but something", func(t *testing.T) {
		tr := troupeOf(t, actor(t, "bad cert"), Options{})
		if err := tr.fault(t); !strings.Contains(err.Error(), "cert") {
			t.Fatal(err)
		}
	})
	t.Run("no certificate", func(t *testing.T) {
		tr := troupeOf(t, actor(t, "plain"), Options{})
		if err := tr.fault(t); !errors.Is(err, sdk.InvalidArgument) {
			t.Fatal(err)
		}
	})
	t.Run("host environment", func(t *testing.T) {
		// Without SkipHostEnv the plugin finds the host's variables.
		t.Setenv("PLUGIN_CLIENT_CERT", "the host's own")
		t.Setenv("MY_SECRET", "hunter2")
		tr := troupeOf(t, actor(t, "environ"), Options{CrashBudget: 1})
		err := tr.fault(t)
		if !errors.Is(err, sdk.PluginExited) || !strings.Contains(err.Error(), "status 9") {
			t.Fatal(err)
		}
		found := map[string]int{}
		for _, r := range tr.log.records(t) {
			name, value, _ := strings.Cut(fmt.Sprint(r["msg"]), "=")
			found[name]++
			if value == "the host's own" || name == "MY_SECRET" {
				t.Fatalf("the plugin sees %s=%s", name, value)
			}
		}
		if found["PLUGIN_CLIENT_CERT"] != 1 || found["PATH"] != 1 || found[actorEnv] != 1 {
			t.Fatalf("the plugin sees %v", found)
		}
	})
	t.Run("reserved variables", func(t *testing.T) {
		for _, name := range []string{"PLUGIN_CLIENT_CERT", sdk.PluginCookieKey, sdk.EnvLinkFD, "A=B", ""} {
			if _, err := userEnvironment(map[string]string{name: "x"}); !errors.Is(err, sdk.InvalidArgument) {
				t.Errorf("%q: %v", name, err)
			}
		}
	})
	t.Run("recover", func(t *testing.T) {
		c := plugin.NewClient(&plugin.ClientConfig{
			Logger: hclog.NewNullLogger(), UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: shortDir(t)},
			RunnerFunc: func(hclog.Logger, *exec.Cmd, string) (goplugin.Runner, error) { panic("nil map") },
		})
		if _, err := startClient(c); err == nil || !strings.Contains(err.Error(), "panic: nil map") {
			t.Fatal(err)
		}
	})
}

// If go-plugin reads stderr (runner.Stderr returns the pipe) this crashes the
// test binary.
func TestFact04StderrCannotPanicTheHost(t *testing.T) {
	tr := troupeOf(t, actor(t, "chatty"), Options{})
	tr.up(t)
	waitForLog(t, tr, `{"@message": 1, "@level": "info"}`)
}

// With fd 1 as the handshake's this does not start; and if nobody read it, the
// plugin would hang in its megabyte.
func TestFact05StdoutIsFree(t *testing.T) {
	tr := troupeOf(t, actor(t, "noisy"), Options{})
	tr.up(t)
	waitForLog(t, tr, "UCX says hello")
	waitForLog(t, tr, "and goes on")
}

func TestFact06WhatWasCheckedIsExecuted(t *testing.T) {
	t.Run("a file that changes after the check", func(t *testing.T) {
		// Fails if the path, or the file itself, is executed.
		path := copyFile(t, "/bin/true", filepath.Join(t.TempDir(), "program"))
		img, err := openImage(path, "", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer img.close()
		if !img.sealed {
			t.Skip("this kernel executes no memory files")
		}
		content, err := os.ReadFile("/bin/false")
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0) // the same inode
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.Write(content)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		said, err := runBriefly(t.Context(), img, path, nil, nil)
		if err != nil || said.state.ExitCode() != 0 {
			t.Fatalf("%v, %v: what was checked was not what ran", said.state, err)
		}
		if _, err := img.file.WriteAt([]byte{0}, 0); !errors.Is(err, unix.EPERM) {
			t.Fatalf("writing to the image: %v", err)
		}
		if err := img.file.Truncate(0); !errors.Is(err, unix.EPERM) {
			t.Fatalf("truncating the image: %v", err)
		}
	})
	t.Run("the checksum is checked at every start", func(t *testing.T) {
		path := copyFile(t, self(t), filepath.Join(t.TempDir(), "hawser-t"))
		sum, err := Checksum(path)
		if err != nil {
			t.Fatal(err)
		}
		spec := actor(t, "good")
		spec.Path, spec.SHA256 = path, strings.ToUpper(sum)
		tr := troupeOf(t, spec, Options{})
		tr.up(t)
		if err := tr.Restart(t.Context()); err != nil {
			t.Fatalf("second start with the same checksum: %v", err)
		}
		copyFile(t, "/bin/true", path)
		err = tr.Restart(t.Context())
		if !errors.Is(err, sdk.InvalidArgument) || !strings.Contains(err.Error(), sum) {
			t.Fatalf("start of another binary: %v", err)
		}
		if st := tr.Status(); st.State != Up || st.Instance != 2 {
			t.Fatalf("the old instance did not stay: %+v", st)
		}
	})
}

// With either end at grpc's default of 4 MiB the frame does not arrive.
func TestFact07LargestFrameOverGRPC(t *testing.T) {
	// Sixteen megabytes in one piece may take a busy machine longer than a
	// health call has; that is not what this is about.
	tr := troupeOf(t, actor(t, "grpc link"), Options{HealthInterval: time.Hour})
	tr.up(t)
	if c := tr.Status().Carrier; c != "grpc" {
		t.Fatalf("carrier %q", c)
	}
	h := &catcher{received: make(chan []byte, 1), completed: make(chan sdk.Completion, 1), ended: make(chan error, 1)}
	ep, err := tr.rec.insts[1].Notifier.Connect(t.Context(), sdk.Target{
		Local: sdk.Incarnation{15: 1}, Peer: sdk.Incarnation{15: 2}, Path: "only", Generation: 1,
	}, func(context.Context, []byte) ([]byte, error) { return nil, sdk.Refused }, h)
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	big := make([]byte, sdk.MaxFrameLimit)
	big[0], big[len(big)-1] = 1, 2
	if n, err := ep.Send([]sdk.Frame{{ID: 1, Data: big}}, false); n != 1 {
		t.Fatalf("Send: %d, %v", n, err)
	}
	select {
	case got := <-h.received:
		if len(got) != len(big) || got[0] != 1 || got[len(got)-1] != 2 {
			t.Fatalf("%d bytes came back", len(got))
		}
	case err := <-h.ended:
		t.Fatalf("the endpoint ended: %v", err)
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came back")
	}
}

func TestFact08NothingOutlivesTheHost(t *testing.T) {
	t.Run("SIGKILL of the host", func(t *testing.T) {
		// One of the two processes does not watch the pipe: without
		// Pdeathsig it stays.
		dir := shortDir(t)
		host := exec.Command(self(t))
		host.Env = append(os.Environ(), actorEnv+"=host", "TEST_RUN_DIR="+dir)
		out, err := host.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := host.Start(); err != nil {
			t.Fatal(err)
		}
		var a, b int
		if n, err := fmt.Fscan(out, &a, &b); n != 2 {
			_ = host.Process.Kill()
			t.Fatalf("the host says no pids: %v", err)
		}
		plugins := []int{hold(t, a), hold(t, b)}
		_ = host.Process.Kill()
		_, _ = io.Copy(io.Discard, out)
		_ = host.Wait()
		for i, p := range plugins {
			if !gone(t, p, time.Second) {
				t.Errorf("plugin %d is still there", i)
			}
		}
		left, _ := os.ReadDir(dir)
		if len(left) != 1 {
			t.Fatalf("%d run directories of the dead host: nothing to clean", len(left))
		}
		// Without the janitor the directory stays.
		next := troupeOf(t, actor(t, "good"), Options{RunDir: dir})
		next.up(t)
		now, _ := os.ReadDir(dir)
		if len(now) != 1 || now[0].Name() == left[0].Name() {
			t.Fatalf("run directories after the next start: %v", now)
		}
	})
	t.Run("the forking thread lives", func(t *testing.T) {
		// If spawn forked on the caller's thread, the child would die with
		// it.
		img, err := openImage("/bin/sleep", "", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		defer img.close()
		result := make(chan *child)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with us
			c, err := spawn(img, "sleep", []string{"1000"}, nil, make([]*os.File, 3))
			if err != nil {
				t.Error(err)
			}
			result <- c
		}()
		c := <-result
		defer func() { c.kill(); <-c.reaped }()
		if gone(t, hold(t, c.pid), 300*time.Millisecond) {
			t.Fatal("the child died with the thread of whoever asked for it")
		}
	})
	t.Run("the janitor leaves the living alone", func(t *testing.T) {
		dir := shortDir(t)
		log := slog.New(slog.DiscardHandler)
		mine, err := makeRunDir(dir, log)
		if err != nil {
			t.Fatal(err)
		}
		other, err := makeRunDir(dir, log)
		if err != nil {
			t.Fatal(err)
		}
		defer other.close()
		st, err := os.Stat(mine.path)
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode().Perm() != 0o700 {
			t.Fatalf("mode %v", st.Mode())
		}
		mine.close()
	})
	t.Run("its children go with it", func(t *testing.T) {
		// If only the process, not its group, is killed, the child stays.
		tr := troupeOf(t, actor(t, "family"), Options{})
		tr.up(t)
		var pid int
		for _, r := range tr.log.records(t) {
			_, _ = fmt.Sscanf(fmt.Sprint(r["msg"]), "child %d", &pid)
		}
		if pid == 0 {
			t.Fatal("the plugin has no child")
		}
		pidfd := hold(t, pid)
		if err := tr.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !gone(t, pidfd, 5*time.Second) {
			t.Fatal("the plugin's child is still there")
		}
	})
}

func TestFact09LongDirectories(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Run("configured", func(t *testing.T) {
		_, err := makeRunDir(long, slog.New(slog.DiscardHandler))
		if !errors.Is(err, sdk.InvalidArgument) || !strings.Contains(err.Error(), "107") {
			t.Fatal(err)
		}
	})
	t.Run("from the environment", func(t *testing.T) {
		// Without the check in chooseBase this fails with "bind: invalid
		// argument".
		t.Setenv("TMPDIR", long)
		t.Setenv("XDG_RUNTIME_DIR", long)
		s := New(actor(t, "good"), Options{}, newRecorder())
		s.Start()
		defer s.Stop(context.Background())
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := s.Ready(ctx); err != nil {
			t.Fatal(err)
		}
	})
}

func TestFact10EachStartIsFresh(t *testing.T) {
	tr := troupeOf(t, actor(t, "good"), Options{})
	tr.up(t)
	seen := map[int]bool{}
	for n := 1; n <= 3; n++ {
		tr.rec.wait(t, fmt.Sprintf("up %d", n), 1)
		pid := tr.Status().PID
		if seen[pid] {
			t.Fatalf("pid %d again", pid)
		}
		seen[pid] = true
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	tr.rec.wait(t, "up 4", 1)

	// A number that was reaped may be somebody else's by now: without the
	// look at reaped, kill hits them.
	img, err := openImage("/bin/sleep", "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer img.close()
	other, err := spawn(img, "sleep", []string{"1000"}, nil, make([]*os.File, 3))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { other.kill(); <-other.reaped }()
	dead := &child{pid: other.pid, reaped: make(chan struct{})}
	dead.mu.reaped = true
	dead.kill()
	if gone(t, hold(t, other.pid), 100*time.Millisecond) {
		t.Fatal("killed a process by a number that was reaped")
	}
}

// With go-plugin's own client (Client, Dispense, Kill) the broker's and the
// stdio's goroutines are still there.
func TestFact11NoBroker(t *testing.T) {
	before := goleak.IgnoreCurrent()
	for range 2 {
		tr := troupeOf(t, actor(t, "good"), Options{})
		tr.up(t)
		buf := make([]byte, 1<<20)
		stacks := string(buf[:runtime.Stack(buf, true)])
		for _, name := range []string{"GRPCBroker", "grpcStdio", "grpcmux"} {
			if strings.Contains(stacks, name) {
				t.Fatalf("%s runs in the host", name)
			}
		}
		if err := tr.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// What go-plugin still has to end ends soon after. goleak waits half a second.
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if err = goleak.Find(before); err == nil {
			return
		}
	}
	t.Error(err)
}

// catcher is a handler that hands on what it gets.
type catcher struct {
	received  chan []byte
	completed chan sdk.Completion
	ended     chan error
}

func (c *catcher) Completed(cs []sdk.Completion) {
	for _, x := range cs {
		select {
		case c.completed <- x:
		default:
		}
	}
}

func (c *catcher) Received(frames [][]byte) {
	for _, f := range frames {
		c.received <- append([]byte(nil), f...)
	}
}

func (c *catcher) Ended(err error) { c.ended <- err }

// waitForLog waits until a line with the text is in the host's log.
func waitForLog(t *testing.T, tr *troupe, text string) map[string]any {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, r := range tr.log.records(t) {
			if strings.Contains(fmt.Sprint(r["msg"]), text) {
				return r
			}
		}
	}
	t.Fatalf("%q is not in the log", text)
	return nil
}
