//go:build linux

// Command run boots the lab and runs the rdma plugin's tests, the scenarios of
// memory and the table of RDMA's rows in it (`make lab-rdma`), its short form
// (-smoke, in `make test`), or a command in both hosts; -keep lets them stay
// until it is interrupted:
//
//	go run ./test/rdmalab/run -- ibv_devinfo
//
// Where the virtual hosts cannot run, -smoke says that it was skipped, and why,
// and succeeds.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hawser-transport/hawser/test/rdmalab"
)

func main() {
	var o options
	flag.BoolVar(&o.smoke, "smoke", false, "the short form")
	flag.BoolVar(&o.keep, "keep", false, "let the hosts stay until interrupted")
	flag.StringVar(&o.bin, "bin", "bin", "the folder of the binaries")
	flag.Func("row", "this row only, or none; as often as one likes", func(name string) error {
		o.rows = append(o.rows, name)
		return nil
	})
	flag.StringVar(&o.tests, "tests", "", "these tests of the plugin only: a pattern, or none")
	flag.StringVar(&o.scenarios, "scenarios", "", "these scenarios of memory only: a pattern, or none")
	flag.Parse()
	o.command = flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, o)
	var cannot *cannotRun
	switch {
	case errors.As(err, &cannot) && o.smoke && ctx.Err() == nil:
		fmt.Println("skipped:", cannot)
		if err := noteSkipped(cannot.Error()); err == nil {
			return
		}
	case err == nil:
		return
	}
	fmt.Fprintln(os.Stderr, "lab:", err)
	stop()
	os.Exit(1)
}

type options struct {
	smoke, keep   bool
	bin, tests    string
	scenarios     string
	rows, command []string
}

// cannotRun says why this machine runs no virtual hosts.
type cannotRun struct{ why error }

func (c *cannotRun) Error() string { return "the lab of virtual hosts: " + c.why.Error() }

// noteSkipped is for the summary of `make test`.
func noteSkipped(what string) error {
	dir := os.Getenv("HAWSER_STEPS")
	if dir == "" {
		dir = ".tmp/steps"
	}
	f, err := os.OpenFile(filepath.Join(dir, "skipped"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, strings.ReplaceAll(what, "\n", " "))
	return errors.Join(err, f.Close())
}

func run(ctx context.Context, o options) error {
	work, err := os.MkdirTemp("", "rdmalab-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	kernel, err := output(ctx, nil, "test/rdmalab/deps.sh")
	if err != nil {
		return &cannotRun{err}
	}
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return err
	}
	binary := filepath.Join(work, "agent")
	if _, err := output(ctx, []string{"CGO_ENABLED=0"}, "go", "build", "-o", binary, "./test/rdmalab/agent"); err != nil {
		return err
	}
	l, err := rdmalab.Start(ctx, rdmalab.Options{Kernel: lastLine(kernel), Agent: binary, Progress: os.Stdout})
	if err != nil {
		return &cannotRun{err}
	}
	return errors.Join(use(ctx, l, o, work), l.Close())
}

// output runs a program here. It is interrupted when ctx ends.
func output(ctx context.Context, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var words strings.Builder
	cmd.Stderr = &words
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(words.String()))
	}
	return string(out), err
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}
