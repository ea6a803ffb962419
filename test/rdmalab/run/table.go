//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/agent"
	"github.com/hawser-transport/hawser/test/rdmalab"
)

// smokeRows and smokeTests are what the short form runs.
var smokeRows = []string{"no fault", "rail cut"}

const (
	smokeCount = "400"
	smokeTests = "^TestMachineConformance$"
	allTests   = "^TestMachine"
	none       = "none"
)

// smokeShares are the parts of the suite that each host has in the short form.
var smokeShares = []string{"^(describe|configure|close|paths|connect|accept)-|^move-(bytes|flush|peer-closes)$", "^(send|load|complete|done|handler|hold|end|successor|drain)-"}

// use does in the lab what was asked for.
func use(ctx context.Context, l *rdmalab.Lab, o options, work string) error {
	switch {
	case o.keep:
		fmt.Printf("lab: %s; interrupt to end it\n", l.HostsFile)
		<-ctx.Done()
		return nil
	case len(o.command) > 0:
		return both(l, func(n int, h agent.Host) error {
			out, err := h.Run(ctx, o.command...)
			fmt.Printf("host %d:\n%s\n", n, out)
			return err
		})
	}
	if o.smoke {
		o.rows, o.tests, o.scenarios = smokeRows, smokeTests, none
	}
	if err := warm(ctx, l, o); err != nil {
		return err
	}
	var errs []error
	if o.tests != none {
		errs = append(errs, tests(ctx, l, o, work))
	}
	if o.scenarios != none {
		errs = append(errs, scenarios(ctx, l, o, work))
	}
	if !slices.Contains(o.rows, none) {
		errs = append(errs, rows(ctx, l, o))
	}
	return errors.Join(errs...)
}

// both does something with both hosts at once.
func both(l *rdmalab.Lab, do func(n int, h agent.Host) error) error {
	errs := make([]error, len(l.Hosts))
	var wg sync.WaitGroup
	for i, h := range l.Hosts {
		wg.Go(func() {
			if err := do(i+1, h); err != nil {
				errs[i] = fmt.Errorf("host %d: %w", i+1, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// warm lets the hosts read the binaries: they are slow at it, and the first
// start of each would be.
func warm(ctx context.Context, l *rdmalab.Lab, o options) error {
	return both(l, func(_ int, h agent.Host) error {
		_, err := h.Run(ctx, "sh", "-c", "cat "+o.bin+"/hawser* >/dev/null")
		return err
	})
}

// testsIn bounds the plugin's tests in a host.
const testsIn = 20 * time.Minute

// tests runs the plugin's own tests, its binary's conformance among them, in
// both hosts on their devices.
func tests(ctx context.Context, l *rdmalab.Lab, o options, work string) error {
	binary := filepath.Join(work, "rdma.test")
	if _, err := output(ctx, nil, "go", "test", "-c", "-o", binary, "./plugins/rdma"); err != nil {
		return err
	}
	pattern := o.tests
	if pattern == "" {
		pattern = allTests
	}
	ctx, cancel := context.WithTimeout(ctx, testsIn)
	defer cancel()
	return both(l, func(n int, h agent.Host) error {
		began := time.Now()
		pattern := pattern
		if o.smoke {
			pattern += "/" + smokeShares[n-1]
		}
		out, err := runTests(ctx, h, agent.Command{
			Args: []string{binary, "-test.run", pattern, "-test.v", "-test.timeout", testsIn.String()},
			Env: []string{
				"HAWSER_TEST_RDMA_PLUGIN=" + filepath.Join(o.bin, "hawser-rdma"),
				// A rail of its own each: Soft-RoCE reaches none of the host's other.
				fmt.Sprintf(`HAWSER_TEST_RDMA_SETTINGS={"devices": ["rxe%d"]}`, n-1),
			},
		})
		passed, failed := tally(out)
		fmt.Printf("%s  the rdma plugin's tests on host %d's devices  %d passed, %d failed  %.0f s\n",
			map[bool]string{true: "ok  ", false: "FAIL"}[err == nil && passed > 0], n, passed, len(failed), time.Since(began).Seconds())
		if err != nil || passed == 0 {
			return fmt.Errorf("tests: %w\n%s", errors.Join(err, ctx.Err()), lastLines(out, 60))
		}
		return nil
	})
}

// runTests runs a binary of tests on a host, until ctx ends, and returns what it printed.
func runTests(ctx context.Context, h agent.Host, c agent.Command) (string, error) {
	var out bytes.Buffer
	p, err := h.Start(ctx, c, &out, io.Discard)
	if err != nil {
		return "", err
	}
	defer context.AfterFunc(ctx, p.Kill)()
	err = p.Wait()
	return out.String(), err
}

// tally counts what `go test -v` says passed, and lists what failed.
func tally(out string) (passed int, failed []string) {
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "--- PASS:") {
			passed++
		} else if strings.HasPrefix(line, "--- FAIL:") {
			failed = append(failed, line)
		}
	}
	return passed, failed
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// rows runs the demo's rows of rdma between the hosts.
func rows(ctx context.Context, l *rdmalab.Lab, o options) error {
	args := []string{"demo", "--set", "rdma", "--hosts", l.HostsFile, "--plugins-dir", o.bin}
	if o.smoke {
		args = append(args, "--count", smokeCount)
	}
	for _, name := range o.rows {
		args = append(args, "--row", name)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(o.bin, "hawser"), args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("hawser %s: %w", strings.Join(args, " "), err)
	}
	return nil
}
