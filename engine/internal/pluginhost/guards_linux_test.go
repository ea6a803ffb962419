package pluginhost

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// Guards that no other test misses; see test/mutants.

// A plugin must not make its host connect to somewhere else.
func TestWhereAPluginServes(t *testing.T) {
	dir := shortDir(t)
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	other := filepath.Join(shortDir(t), "s")
	o, err := net.Listen("unix", other)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	r := &runner{socketDir: dir}
	for _, c := range []struct {
		network, address string
		ok               bool
	}{
		{"unix", socket, true},
		{"tcp", "127.0.0.1:1", false},
		{"unix", other, false},
		{"unix", filepath.Join(dir, "..", filepath.Base(filepath.Dir(other)), "s"), false},
		{"unix", write(t, dir, "file", "x", 0o600), false},
		{"unix", filepath.Join(dir, "nothing"), false},
	} {
		if _, _, err := r.PluginToHost(c.network, c.address); (err == nil) != c.ok {
			t.Errorf("%s %s: %v", c.network, c.address, err)
		}
	}
}

func TestTheHandshakeIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		in   io.Reader
		want int
	}{
		"one line":          {strings.NewReader("1|2|3\n"), 6},
		"what follows it":   {strings.NewReader("1|2|3\nrubbish\nrubbish"), 6},
		"no line":           {strings.NewReader("1|2"), 3},
		"a line of its own": {bytes.NewReader(bytes.Repeat([]byte{'x'}, 1<<20)), maxHandshake},
	} {
		got, err := io.ReadAll(&firstLine{r: io.NopCloser(sips{c.in})})
		if err != nil || len(got) != c.want {
			t.Errorf("%s: %d bytes, want %d, %v", name, len(got), c.want, err)
		}
	}
}

// sips reads a few bytes at a time, as a pipe may.
type sips struct{ r io.Reader }

func (s sips) Read(p []byte) (int, error) { return s.r.Read(p[:min(len(p), 5)]) }

func TestAPlainImageIsChecked(t *testing.T) {
	path := copyFile(t, "/bin/true", filepath.Join(t.TempDir(), "program"))
	f, err := openProgram(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	owner := f
	if _, err := plainImage(f, &owner, imageID{path: path, want: strings.Repeat("0", 64)}); !errors.Is(err, sdk.InvalidArgument) || owner == nil {
		t.Errorf("%v, the file's owner is %v", err, owner)
	}
}

// The janitor removes what dead owners left, and nothing else.
func TestTheJanitorLeavesWhatIsNotItsOwn(t *testing.T) {
	base := shortDir(t)
	long := time.Now().Add(-time.Hour)
	for name, old := range map[string]bool{
		runDirPrefix + "dead": false, newDirPrefix + "dead": true, newDirPrefix + "made": false, "somebody-elses": true,
	} {
		path := filepath.Join(base, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if old {
			if err := os.Chtimes(path, long, long); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(t, base, runDirPrefix+"file", "x", 0o600)
	clean(base, slog.New(slog.DiscardHandler))
	var left []string
	entries, err := os.ReadDir(base)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if got, want := strings.Join(left, " "), newDirPrefix+"made "+runDirPrefix+"file somebody-elses"; got != want {
		t.Errorf("left: %s, want %s", got, want)
	}
}

// A name may resolve to anything: what was bound is checked, too.
func TestABoundAddressIsCheckedToo(t *testing.T) {
	asked := 0
	l := listeners{transport: "tcp", open: map[string]listening{}, check: func(string) error {
		if asked++; asked == 2 {
			return errors.New("not a loopback address")
		}
		return nil
	}}
	defer l.close()
	lent, err := l.lend([]sdk.ListenerSpec{{Name: "main", Key: "listen", Default: "127.0.0.1:0"}}, nil)
	if err == nil || asked != 2 || len(lent)+len(l.open) != 0 {
		closeAll(lent)
		t.Errorf("%v, asked %d times, %d are open", err, asked, len(l.open))
	}
}

// A program that says nothing is given up after the start timeout, and killed.
func TestAMuteProgramIsGivenUp(t *testing.T) {
	mute := write(t, t.TempDir(), "hawser-mute", "#!/bin/sh\nexec sleep 1000\n", 0o700)
	tr := troupeOf(t, Spec{Name: "t", Path: mute}, Options{StartTimeout: 300 * time.Millisecond, CrashBudget: 1})
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	err := tr.Ready(ctx)
	if ctx.Err() != nil || !errors.Is(err, sdk.DeadlineExceeded) || !strings.Contains(err.Error(), "not ready within 300ms") {
		t.Errorf("%v", err)
	}
}

// Without its link a plugin is of no use, whatever its process does.
func TestWithoutItsLinkAPluginEnds(t *testing.T) {
	tr := troupeOf(t, actor(t, "good"), Options{HealthInterval: time.Hour})
	tr.up(t)
	stop(t, tr.Status().PID)
	tr.rec.insts[1].Transport.(interface{ Abort(error) }).Abort(errors.New("given up by the test"))
	tr.rec.wait(t, "up 2", 1)
}
