//go:build linux

package pluginhost

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/sdk"
)

// Scenario 57, and its like: what a bad binary costs is its transport, and the
// error says what is wrong and where.
func TestScenario57BadBinaries(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "nothing")
	for _, c := range []struct {
		name string
		spec Spec
		code sdk.Code
		want []string
	}{
		{"not there", Spec{Path: missing}, sdk.InvalidArgument, []string{"no plugin binary at", missing}},
		{"unnamed", Spec{}, sdk.InvalidArgument, []string{"no plugin binary is named"}},
		{"a directory", Spec{Path: dir}, sdk.InvalidArgument, []string{"is a directory"}},
		{"not executable", Spec{Path: write(t, dir, "plain", "#!/bin/sh\n", 0o600)}, sdk.InvalidArgument, []string{"not executable", "chmod +x"}},
		{"no program", Spec{Path: write(t, dir, "text", "just text", 0o700)}, sdk.InvalidArgument, []string{"not a program for this machine"}},
		{"empty", Spec{Path: write(t, dir, "empty", "", 0o700)}, sdk.InvalidArgument, []string{"not a program for this machine"}},
		{"no interpreter", Spec{Path: write(t, dir, "script", "#!/no/such/interpreter\n", 0o700)}, sdk.InvalidArgument, []string{"interpreter or dynamic loader that is missing"}},
		{"missing library", Spec{Path: write(t, dir, "lib", "#!/bin/sh\necho 'error while loading shared libraries: libibverbs.so.1' >&2\nexit 127\n", 0o700)},
			sdk.PluginExited, []string{"status 127", "libibverbs.so.1"}},
		{"wrong checksum", Spec{Path: self(t), SHA256: strings.Repeat("ab", 32)}, sdk.InvalidArgument,
			[]string{strings.Repeat("ab", 32), "hawser plugin verify --update"}},
		{"wrong cookie", actor(t, "cookie"), sdk.InvalidArgument, []string{"status 1", "a Hawser transport"}},
		{"older contract at the handshake", actor(t, "old"), sdk.InvalidArgument, []string{"version", "99"}},
		{"other contract in its description", actor(t, "contract"), sdk.InvalidArgument, []string{"99"}},
		{"serves elsewhere", actor(t, "elsewhere"), sdk.InvalidArgument, []string{"must be a unix socket"}},
		{"an endless handshake", actor(t, "endless"), sdk.InvalidArgument, nil},
		{"never ready", actor(t, "silent"), sdk.DeadlineExceeded, []string{"not ready within 1s"}},
		{"no device", actor(t, "no device"), sdk.Unsupported, []string{"no RDMA device here"}},
		{"dies while configuring", actor(t, "dies"), sdk.PluginExited, []string{"status 3", "oh no"}},
		{"killed while starting", actor(t, "killed"), sdk.PluginExited, []string{"killed by signal 9 (killed) while starting"}},
		{"ended while starting", actor(t, "ended"), sdk.PluginExited, []string{"killed by signal 15 (terminated) while starting"}},
		{"killed after its handshake", actor(t, "killed late"), sdk.PluginExited, []string{"killed by signal 9 (killed) while starting"}},
		{"lets go of its handshake", actor(t, "lets go"), sdk.InvalidArgument, nil},
		{"reserved variable", Spec{Path: self(t), Env: map[string]string{"PLUGIN_X": "1"}}, sdk.InvalidArgument, []string{"PLUGIN_X", "reserved"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.spec.Name = "t"
			o := Options{CrashBudget: 1}
			if c.code == sdk.DeadlineExceeded {
				o.StartTimeout = time.Second
			}
			tr := troupeOf(t, c.spec, o)
			err := tr.fault(t)
			if c.code != 0 && !errors.Is(err, c.code) {
				t.Errorf("code %v, want %v: %v", sdk.CodeOf(err), c.code, err)
			}
			for _, want := range append(c.want, "transport t: ") {
				if strings.Count(err.Error(), want) < 1 {
					t.Errorf("no %q in: %v", want, err)
				}
			}
			told := "quarantined: " + sdk.CodeOf(err).Error()
			if errors.Is(err, sdk.Unsupported) {
				told = "unsupported: unsupported"
			}
			tr.rec.wait(t, told, 1)
			expect(t, tr.rec, told)
		})
	}
}

// A plugin that is killed while it starts has crashed, as one that is killed
// later has: it is started again, within the crash budget.
func TestKilledWhileStartingIsACrash(t *testing.T) {
	spec := actor(t, "killed twice")
	deaths := t.TempDir()
	spec.Env["TEST_DEATHS"] = deaths
	tr := troupeOf(t, spec, Options{BackoffMin: time.Millisecond, BackoffMax: time.Millisecond})
	if err := tr.fault(t); !errors.Is(err, sdk.PluginExited) || !strings.Contains(err.Error(), "killed by signal 9 (killed) while starting") {
		t.Error(err)
	}
	tr.rec.wait(t, "up 3", 1)
	expect(t, tr.rec, "up 3")
	if list, err := os.ReadDir(deaths); len(list) != 2 {
		t.Errorf("it has died %d times, %v", len(list), err)
	}
}

// What a person has to mend is final at its first failure.
func TestWhatNoRestartMendsIsFinal(t *testing.T) {
	for _, c := range []Spec{
		actor(t, "cookie"), actor(t, "contract"), actor(t, "old"), actor(t, "no device"), {Name: "t", Path: self(t), SHA256: strings.Repeat("ab", 32)},
	} {
		tr := troupeOf(t, c, Options{BackoffMin: time.Hour, BackoffMax: time.Hour})
		_ = tr.fault(t)
		if s := tr.Status(); s.State != Quarantined && s.State != Unsupported {
			t.Errorf("%v: %+v", c.Env, s)
		}
	}
}

// Scenario 59.
func TestScenario59LongAndBinaryLogLines(t *testing.T) {
	tr := troupeOf(t, actor(t, "binary log"), Options{})
	tr.up(t)
	long := waitForLog(t, tr, "xxxx")["msg"].(string)
	if len(long) > maxLine+100 || !strings.Contains(long, fmt.Sprintf("(%d more bytes)", 1<<20-maxLine)) {
		t.Fatalf("a line of a megabyte became one of %d bytes that ends %q", len(long), long[len(long)-50:])
	}
	waitForLog(t, tr, `\x00\xff\x1b[31mred\xf0`)
	own := waitForLog(t, tr, "configured")
	if own["answer"] != "42" || own["transport"] != "t" || own["instance"] != 1.0 || own["level"] != "INFO" {
		t.Fatalf("the plugin's own record became %v", own)
	}
}

func TestFloodIsBounded(t *testing.T) {
	tr := troupeOf(t, actor(t, "babble"), Options{})
	tr.up(t)
	if err := tr.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(tr.log.records(t)); n > lineBurst+30*linesPerSecond {
		t.Fatalf("%d lines of 50000 got into the log", n)
	}
	waitForLog(t, tr, "writes too much")
}

// Scenario 62.
func TestScenario62CrashCycles(t *testing.T) {
	cycles := 100
	if testing.Short() {
		cycles = 10
	}
	dir := shortDir(t)
	tr := troupeOf(t, actor(t, "good"), Options{RunDir: dir, CrashBudget: 1 << 20, BackoffMin: time.Millisecond, BackoffMax: time.Millisecond})
	tr.up(t)
	crash := func(n int) {
		tr.rec.wait(t, fmt.Sprintf("up %d", n), 1)
		_ = unix.Kill(tr.Status().PID, unix.SIGKILL)
		tr.rec.wait(t, fmt.Sprintf("up %d", n+1), 1)
	}
	for n := 1; n <= 3; n++ {
		crash(n)
	}
	runtime.GC()
	goroutines, fds, memory := runtime.NumGoroutine(), fdCount(t), heap()
	for n := 4; n <= cycles; n++ {
		crash(n)
	}
	// What go-plugin still has to end ends soon after.
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if runtime.NumGoroutine() <= goroutines+2 && fdCount(t) <= fds+2 {
			break
		}
	}
	if now := runtime.NumGoroutine(); now > goroutines+2 {
		t.Errorf("%d goroutines, before %d", now, goroutines)
	}
	if now := fdCount(t); now > fds+2 {
		t.Errorf("%d descriptors, before %d", now, fds)
	}
	runtime.GC()
	if now := heap(); now > memory+16<<20 {
		t.Errorf("%d bytes on the heap, before %d", now, memory)
	}
	files := 0
	_ = filepath.WalkDir(dir, func(string, os.DirEntry, error) error { files++; return nil })
	if files > 5 { // the base, the run directory, one instance's directory and socket
		t.Errorf("%d files in the run directory", files)
	}
	if st := tr.Status(); st.Restarts != uint64(cycles) || st.Abandoned != 0 {
		t.Errorf("status %+v", st)
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Scenario 63 is TestFact08NothingOutlivesTheHost.

func TestCrashIsSeenWithItsReason(t *testing.T) {
	tr := troupeOf(t, actor(t, "good"), Options{})
	tr.up(t)
	_ = unix.Kill(tr.Status().PID, unix.SIGSEGV)
	tr.rec.wait(t, "up 2", 1)
	if err := tr.Status().LastError; err == nil || !strings.Contains(err.Error(), "segmentation fault") && !strings.Contains(err.Error(), "status 2") {
		t.Fatalf("last error: %v", err)
	}
	expect(t, tr.rec, "up 1", "down 1: plugin exited", "up 2")
}

func TestReplaceOfAProcess(t *testing.T) {
	for name, want := range map[string][]string{
		"good":      {"up 1", "up 2", "drain 1", "down 1"},
		"exclusive": {"up 1", "drain 1", "down 1", "up 2"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := troupeOf(t, actor(t, name), Options{})
			tr.up(t)
			pidfd := hold(t, tr.Status().PID)
			if err := tr.Replace(t.Context(), actor(t, name)); err != nil {
				t.Fatal(err)
			}
			if !gone(t, pidfd, time.Millisecond) {
				t.Fatal("the old process is still there")
			}
			expect(t, tr.rec, want...)
			if err := tr.Replace(t.Context(), actor(t, "no device")); !errors.Is(err, sdk.Unsupported) {
				t.Fatalf("Replace by one that does not start: %v", err)
			}
			tr.rec.mu.Lock()
			last := tr.rec.events[len(tr.rec.events)-1]
			tr.rec.mu.Unlock()
			if name == "good" && (last != "down 1" || tr.Status().Instance != 2) {
				t.Fatalf("the old one did not stay: %s, %+v", last, tr.Status())
			}
		})
	}
}

// A process that is slow to go is counted, its endpoints' end is not waited
// for, and when it has gone after all, the count is back at zero.
func TestAbandonedProcess(t *testing.T) {
	tr := troupeOf(t, actor(t, "good"), Options{AbandonAfter: time.Nanosecond})
	tr.up(t)
	stop(t, tr.Status().PID)
	tr.rec.insts[1].Transport.(interface{ Abort(error) }).Abort(errors.New("given up by the test"))
	tr.rec.wait(t, "up 2", 1)
	expect(t, tr.rec, "up 1", "down 1: plugin exited", "up 2")
	waitForLog(t, tr, "instance abandoned")
	for end := time.Now().Add(10 * time.Second); tr.Status().Abandoned > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("still counted")
		}
	}
}

// Gone means reaped: what is stopped, or has lost its link, is not gone.
func TestAProcessIsGoneWhenItIsReaped(t *testing.T) {
	tr := troupeOf(t, actor(t, "good"), Options{})
	tr.up(t)
	inst, pid := tr.rec.insts[1], tr.Status().PID
	pidfd := hold(t, pid)
	stop(t, pid)
	select {
	case <-inst.Gone:
		t.Fatal("a stopped process is gone")
	default:
	}
	if inst.Mover != nil {
		t.Error("it moves memory, which it does not describe")
	}
	_ = unix.Kill(pid, unix.SIGKILL)
	select {
	case <-inst.Gone:
	case <-time.After(20 * time.Second):
		t.Fatal("it is not gone")
	}
	if !gone(t, pidfd, time.Millisecond) {
		t.Error("it was gone before the process")
	}
}

func TestOrderlyStopNeedsNoForce(t *testing.T) {
	tr := troupeOf(t, actor(t, "good"), Options{StopTimeout: time.Minute})
	tr.up(t)
	start := time.Now()
	if err := tr.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Fatalf("took %v", took)
	}
}

func TestStopOfAStubbornPlugin(t *testing.T) {
	tr := troupeOf(t, actor(t, "stubborn"), Options{StopTimeout: 200 * time.Millisecond})
	tr.up(t)
	if err := tr.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(t, tr.rec, "up 1", "down 1")
}

func TestListenerSurvivesRestartAndReplacement(t *testing.T) {
	tr := troupeOf(t, actor(t, "listener"), Options{})
	tr.up(t)
	at := tr.Status().Listeners["main"]
	ask := func() string {
		t.Helper()
		c, err := net.DialTimeout("tcp", at, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(line)
	}
	if who := ask(); who != "1" {
		t.Fatalf("instance %s answers", who)
	}
	_ = unix.Kill(tr.Status().PID, unix.SIGKILL)
	tr.rec.wait(t, "down 1: plugin exited", 1)
	if who := ask(); who != "2" { // a caller in the gap waits, and is not refused
		t.Fatalf("instance %s answers", who)
	}
	if err := tr.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if who := ask(); who != "3" || tr.Status().Listeners["main"] != at {
		t.Fatalf("instance %s answers at %s, was at %s", who, tr.Status().Listeners["main"], at)
	}
}

func TestDescribe(t *testing.T) {
	t.Setenv(describedEnv, "listener")
	d, err := Describe(t.Context(), self(t))
	if err != nil {
		t.Fatal(err)
	}
	want := (&player{listens: true}).Describe()
	if d.Name != want.Name || d.Version != want.Version || d.Contract != 1 || !d.SharedDevice || !d.Has(sdk.FeatureNotify) ||
		d.Limits.MaxFrame != want.Limits.MaxFrame || len(d.Listeners) != 1 || d.Listeners[0] != want.Listeners[0] || len(d.ConfigSchema) == 0 {
		t.Fatalf("described as %+v", d)
	}
	dir := t.TempDir()
	for _, c := range []struct{ name, script, want string }{
		{"no plugin", "#!/bin/sh\necho what >&2; exit 4\n", "status 4"},
		{"says it on stdout", "#!/bin/sh\necho usage: what; exit 4\n", "usage: what"},
		{"says what it is", "#!/bin/sh\necho hello\n", "it said: hello"},
		{"says so on stderr", "#!/bin/sh\necho sorry >&2\n", "it said: sorry"},
		{"no JSON", "#!/bin/sh\necho hello\n", "not what a Hawser plugin says"},
		{"too much", "#!/bin/sh\nhead -c 3000000 /dev/zero\n", "more than"},
		{"bad feature", "#!/bin/sh\necho '{\"features\":[\"x\"]}'\n", "unknown feature"},
		{"no contract", "#!/bin/sh\necho '{\"name\":\"a\"}'\n", "contract"},
	} {
		if _, err := Describe(t.Context(), write(t, dir, "hawser-x", c.script, 0o700)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	t.Setenv(describedEnv, "silent")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := Describe(ctx, self(t)); !errors.Is(err, sdk.DeadlineExceeded) {
		t.Errorf("silent: %v", err)
	}
}

// A kernel that executes no memory files costs the check's tightness, not the
// plugin.
func TestPlainImage(t *testing.T) {
	path := copyFile(t, "/bin/true", filepath.Join(t.TempDir(), "program"))
	f, err := openProgram(path)
	if err != nil {
		t.Fatal(err)
	}
	sum, err := Checksum(path)
	if err != nil {
		t.Fatal(err)
	}
	owner := f
	img, err := plainImage(f, &owner, imageID{path: path, want: sum})
	if err != nil || owner != nil {
		t.Fatal(err, owner)
	}
	defer img.close()
	if img.sealed || img.sum != sum {
		t.Fatalf("image %+v", img)
	}
	said, err := runBriefly(t.Context(), img, path, nil, nil)
	if err != nil || said.state.ExitCode() != 0 {
		t.Fatal(err, said.state)
	}
}

// A process without a free descriptor gets over it.
func TestShortageIsTransient(t *testing.T) {
	path := self(t)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := openImage(path, "", slog.New(slog.DiscardHandler))
	if restored := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); restored != nil {
		t.Fatal(restored)
	}
	if err = named("t", err); !errors.Is(err, sdk.Unavailable) || !errors.Is(err, unix.EMFILE) || hopeless(err) {
		t.Fatal(err)
	}
}
