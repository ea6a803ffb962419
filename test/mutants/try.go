package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	// testTimeout is for one mutant's tests. Many guards keep something from
	// waiting for ever, so that reaching it is a way to be found.
	testTimeout = 60 * time.Second
	// buildTimeout is what building and running the tests may take.
	buildTimeout = 5 * time.Minute
)

// result is what becomes of a mutant.
type result string

const (
	found    result = "found"
	hung     result = "found/hung" // its test did not end
	survived result = "SURVIVED"
	stale    result = "STALE"   // its text is not in the file, or not once
	broken   result = "INVALID" // it does not compile
	empty    result = "NO TEST" // nothing has that name
)

func (r result) good() bool { return r == found || r == hung }

// changed returns the mutant's file as it becomes, and false if its text is not
// in it exactly once.
func (m mutant) changed(src []byte) ([]byte, bool) {
	if m.old == m.new || bytes.Count(src, []byte(m.old)) != 1 {
		return nil, false
	}
	return bytes.Replace(src, []byte(m.old), []byte(m.new), 1), true
}

// try builds a mutant's tests with its file in the original's place, in dir,
// and runs them.
func try(dir string, m mutant) (result, string) {
	src, err := os.ReadFile(m.file)
	if err != nil {
		return stale, err.Error()
	}
	out, ok := m.changed(src)
	if !ok {
		return stale, ""
	}
	overlay, err := overlay(dir, m.file, out)
	if err != nil {
		return result(err.Error()), ""
	}
	said, err := gotest(m.pkg, m.test, m.race, "-failfast", "-overlay="+overlay)
	var exit *exec.ExitError
	switch {
	case bytes.Contains(said, []byte("[build failed]")) || bytes.Contains(said, []byte("[setup failed]")):
		return broken, string(said)
	case bytes.Contains(said, []byte("no tests to run")):
		return empty, string(said)
	case bytes.Contains(said, []byte("panic: test timed out")):
		return hung, string(said)
	case err == nil:
		return survived, string(said)
	case errors.As(err, &exit):
		return found, string(said)
	}
	return result(err.Error()), string(said)
}

// overlay writes what the compiler is to read in the file's place.
func overlay(dir, file string, content []byte) (string, error) {
	dir, err := os.MkdirTemp(dir, "")
	if err != nil {
		return "", err
	}
	from, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	to := filepath.Join(dir, filepath.Base(file))
	list, err := json.Marshal(map[string]map[string]string{"Replace": {from: to}})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, errors.Join(os.WriteFile(to, content, 0o600), os.WriteFile(path, list, 0o600))
}

// gotest runs tests of one package, without what only takes time: vet and the
// linker's debugging tables.
func gotest(pkg, tests string, race bool, more ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	args := append([]string{"test", "-count=1", "-vet=off", "-ldflags=-s -w", "-timeout", testTimeout.String(), "-run", "^(" + tests + ")$"}, more...)
	if race {
		args = append(args, "-race")
	}
	return exec.CommandContext(ctx, "go", append(args, "./"+pkg)...).CombinedOutput()
}

// sound runs all tests that the mutants name on the code as it is: one that is
// red anyway shows nothing.
func sound(list []mutant) error {
	type group struct {
		pkg  string
		race bool
	}
	tests := map[group][]string{}
	var groups []group
	for _, m := range list {
		g := group{m.pkg, m.race}
		if tests[g] == nil {
			groups = append(groups, g)
		}
		tests[g] = append(tests[g], strings.Split(m.test, "|")...)
	}
	for _, g := range groups {
		slices.Sort(tests[g])
		names := strings.Join(slices.Compact(tests[g]), "|")
		if said, err := gotest(g.pkg, names, g.race); err != nil {
			return fmt.Errorf("without any mutant %s is red: %w\n%s", g.pkg, err, said)
		}
	}
	return nil
}
