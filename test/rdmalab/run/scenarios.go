//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/agent"
	"github.com/hawser-transport/hawser/test/rdmalab"
)

const (
	// allScenarios are those of memory that run over each transport.
	allScenarios = "^Test(Memory|Scenario(29|4))"
	// scenarioIn bounds one of them in a host.
	scenarioIn = 40 * time.Minute
	// emulated is how much longer things take in a host that is emulated on a
	// machine that does other things, too.
	emulated = 10
)

// scenarios runs the scenarios of memory over rdma on real verbs. Each has both
// its engines on one host, on one of its rails; the hosts take the next one in
// turn. HAWSER_LONG has them at full length.
func scenarios(ctx context.Context, l *rdmalab.Lab, o options, work string) error {
	binary := filepath.Join(work, "scenarios.test")
	if _, err := output(ctx, nil, "go", "test", "-c", "-o", binary, "./test/scenarios"); err != nil {
		return err
	}
	pattern := o.scenarios
	if pattern == "" {
		pattern = allScenarios
	}
	list, err := output(ctx, []string{"HAWSER_SCENARIO_BIN=" + o.bin}, binary, "-test.list", pattern)
	if err != nil {
		return err
	}
	names := make(chan string, strings.Count(list, "\n"))
	for name := range strings.FieldsSeq(list) {
		if strings.HasPrefix(name, "Test") {
			names <- name
		}
	}
	close(names)
	if len(names) == 0 {
		return fmt.Errorf("no scenario matches %q", pattern)
	}
	return both(l, func(n int, h agent.Host) (err error) {
		for name := range names {
			if ctx.Err() != nil {
				return errors.Join(err, ctx.Err())
			}
			err = errors.Join(err, scenario(ctx, n, h, o, binary, name))
		}
		return err
	})
}

// scenario runs one of them, and prints how it went and what it counted.
func scenario(ctx context.Context, n int, h agent.Host, o options, binary, name string) error {
	ctx, cancel := context.WithTimeout(ctx, scenarioIn)
	defer cancel()
	began := time.Now()
	out, err := runTests(ctx, h, agent.Command{
		Args: []string{binary, "-test.run", "^" + name + "$/^rdma$", "-test.v", "-test.timeout", scenarioIn.String()},
		Env: []string{
			"HAWSER_SCENARIO_BIN=" + o.bin, fmt.Sprint("HAWSER_SCENARIO_SLOW=", emulated), "HAWSER_LONG=" + os.Getenv("HAWSER_LONG"),
			fmt.Sprintf(`HAWSER_TEST_RDMA_SETTINGS={"devices": ["rxe%d"]}`, n-1),
		},
	})
	passed, _ := tally(out)
	word := "ok  "
	switch {
	case err != nil:
		word = "FAIL"
	case strings.Contains(out, "--- SKIP: "):
		word = "skip"
	case passed < 2: // it and its part over rdma
		word, err = "FAIL", errors.New("it did not run")
	}
	fmt.Printf("%s  %s, on host %d's devices  %.0f s\n", word, name, n, time.Since(began).Seconds())
	for _, note := range notes(out) {
		fmt.Println("      " + note)
	}
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", name, errors.Join(err, ctx.Err()), lastLines(out, 60))
	}
	return nil
}

// notes are what `go test -v` prints of a test's own words, without the places:
// figures, and why something was skipped.
func notes(out string) (list []string) {
	for line := range strings.Lines(out) {
		place, words, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if ok && strings.Contains(place, "_test.go:") && !strings.Contains(place, " ") {
			list = append(list, strings.TrimSpace(words))
		}
	}
	return list
}
