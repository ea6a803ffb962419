//go:build linux

package scenarios

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var (
	// root is in the arguments or the environment of every process that the
	// tests start.
	root string
	// bin holds the built binaries, runs the run directories. Both names are
	// short: sockets are made below.
	bin, runs string
)

func TestMain(m *testing.M) {
	if name := os.Getenv(roleVariable); name != "" {
		play(name)
		return
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	if err := build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(root)
	code := m.Run()
	if onHardware() {
		if m, err := ownGPUs(); err == nil {
			_ = m.close()
		}
	}
	// Nodes leave the folder of their admin sockets; a socket in it would stay.
	_ = os.Remove(filepath.Join(runs, "hawser"))
	if err := leftovers(); err != nil {
		fmt.Fprintln(os.Stderr, "left behind:", err)
		code = 1
	}
	return code
}

// build makes the binaries as users have them, without the race detector.
func build() (err error) {
	if root, err = os.MkdirTemp("", "hws"); err != nil {
		return err
	}
	bin, runs = filepath.Join(root, "bin"), filepath.Join(root, "run")
	if err := os.Mkdir(runs, 0o700); err != nil {
		return err
	}
	// Where processes that are not told otherwise make their run directories.
	if err := os.Setenv("XDG_RUNTIME_DIR", runs); err != nil {
		return err
	}
	if onHardware() {
		return takeBuilt(os.Getenv(builtVariable))
	}
	c := exec.Command("go", "build", "-o", bin+string(filepath.Separator), "../../cmd/hawser")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("build hawser: %w\n%s", err, out)
	}
	for name, dir := range map[string]string{
		"tcp": "../../plugins/tcp", "rpcfallback": "../../plugins/rpcfallback", "faulty": "../faulty",
		"rdma": "../../plugins/rdma", "rdma-faulty": "../../plugins/rdma/faulty", "mnnvl": "../../plugins/mnnvl",
	} {
		c := exec.Command("go", "build", "-o", filepath.Join(bin, "hawser-"+name), dir)
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	// One that does not look at capabilities, to show that this is seen.
	c = exec.Command("go", "build", "-tags", "hawser_address_only", "-o", filepath.Join(bin, "hawser-"+addressOnly), "../../plugins/mnnvl")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", addressOnly, err, out)
	}
	return nil
}

// addressOnly is a build of mnnvl for tests, see docs/mnnvl.md.
const addressOnly = "mnnvl-address-only"

// takeBuilt links the binaries of a folder into bin, so that their processes
// are found by root.
func takeBuilt(dir string) error {
	if err := os.Mkdir(bin, 0o700); err != nil {
		return err
	}
	all, err := filepath.Glob(filepath.Join(dir, "hawser*"))
	if err != nil || len(all) == 0 {
		return fmt.Errorf("%s=%s: no hawser binaries there (%v)", builtVariable, dir, err)
	}
	for _, file := range all {
		if file, err = filepath.Abs(file); err != nil {
			return err
		}
		if err := os.Symlink(file, filepath.Join(bin, filepath.Base(file))); err != nil {
			return err
		}
	}
	return nil
}

// leftovers looks for what outlived the tests.
func leftovers() error {
	var found []string
	clean := func() bool {
		found = processes(root)
		dirs, _ := filepath.Glob(filepath.Join(runs, "*"))
		found = append(found, dirs...)
		return len(found) == 0
	}
	for end := time.Now().Add(5 * time.Second); !clean(); time.Sleep(pollEvery) {
		if time.Now().After(end) {
			return fmt.Errorf("%s", strings.Join(found, "; "))
		}
	}
	return goleak.Find()
}
