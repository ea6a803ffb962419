package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// testTimeout is for one mutant's tests. Many guards keep something from
	// waiting for ever, so that reaching it is a way to be found.
	testTimeout = 60 * time.Second
	// partTimeout is for a part of a test at full length.
	partTimeout = 10 * testTimeout
)

// result is what becomes of a mutant.
type result string

const (
	found    result = "found"
	hung     result = "found/hung" // its test did not end
	survived result = "SURVIVED"
	mute     result = "RED, MUTE" // without saying what it should
	stale    result = "STALE"     // its text is not in the file, or not once
	broken   result = "INVALID"   // it does not compile
	empty    result = "NO TEST"   // nothing has that name
	untried  result = "NOT TRIED" // its package's tests do not build, or are red anyway
)

func (r result) good() bool { return r == found || r == hung }

// group is the mutants that one build serves: those whose tests are in one
// package.
type group struct {
	pkg  string
	race bool
	ms   []numbered
	bin  string
}

// groups divides the mutants, in order.
func groups(list []mutant) (gs []*group) {
	for i, m := range list {
		at := slices.IndexFunc(gs, func(g *group) bool { return g.pkg == m.pkg && g.race == m.race })
		if at < 0 {
			at = len(gs)
			gs = append(gs, &group{pkg: m.pkg, race: m.race})
		}
		gs[at].ms = append(gs[at].ms, numbered{i + 1, m})
	}
	return gs
}

// build makes the group's tests with all of its mutants woven in. Mutants that
// cannot be are taken out and returned with the reason.
func (g *group) build(dir string) (out map[int]result, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	out = map[int]result{}
	replace := map[string]string{}
	put := func(path string, content []byte) error {
		abs, err := filepath.Abs(path)
		if err != nil {
			return err
		}
		to := filepath.Join(dir, fmt.Sprintf("%d-%s", len(replace), filepath.Base(path)))
		replace[abs] = to
		return os.WriteFile(to, content, 0o600)
	}
	files, in := byFile(g.ms)
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err != nil {
			src = nil // then its mutants are stale
		}
		var good []numbered
		for _, m := range in[name] {
			switch _, err := weave(src, []numbered{m}); {
			case err == nil:
				good = append(good, m)
			case errors.Is(err, errStale) || src == nil:
				out[m.n] = stale
			default:
				out[m.n] = broken
			}
		}
		if len(good) == 0 {
			continue
		}
		woven, err := weave(src, good)
		if err != nil {
			return nil, err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.PackageClauseOnly)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(put(name, woven), put(filepath.Join(filepath.Dir(name), "zz_mutant.go"), switchFile(f.Name.Name))); err != nil {
			return nil, err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		return nil, err
	}
	g.bin = filepath.Join(dir, "tests")
	// Without vet and the linker's debugging tables, which only take time.
	args := []string{"test", "-c", "-o", g.bin, "-vet=off", "-ldflags=-s -w", "-overlay=" + list}
	if g.race {
		args = append(args, "-race")
	}
	if said, err := exec.Command("go", append(args, "./"+g.pkg)...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build %s with its mutants: %w (`go test ./test/mutants` says which does not compile)\n%s", g.pkg, err, said)
	}
	g.ms = slices.DeleteFunc(g.ms, func(m numbered) bool { return out[m.n] != "" })
	return out, g.sound()
}

// sound runs all tests that the group's mutants name with none of them on: one
// that is red anyway shows nothing.
func (g *group) sound() error {
	var tests []string
	for _, m := range g.ms {
		names, _, _ := m.aim()
		tests = append(tests, names...)
	}
	slices.Sort(tests)
	if said, err := g.run(0, pattern(slices.Compact(tests)), 10*testTimeout); err != nil {
		return fmt.Errorf("without any mutant %s is red: %w\n%s", g.pkg, err, said)
	}
	return nil
}

// pattern is what names tests, and nothing else, for -test.run.
func pattern(tests []string) string { return "^(" + strings.Join(tests, "|") + ")$" }

// run runs tests with one mutant on, or none.
func (g *group) run(n int, pattern string, limit time.Duration, env ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*limit)
	defer cancel()
	program := g.bin
	if n > 0 {
		program += switchMark + strconv.Itoa(n)
		if err := os.Link(g.bin, program); err != nil {
			return nil, err
		}
		defer os.Remove(program) //nolint:errcheck // its folder goes, too
	}
	cmd := exec.CommandContext(ctx, program, "-test.failfast", "-test.timeout", limit.String(), "-test.run", pattern)
	cmd.Dir, cmd.Env = g.pkg, append(os.Environ(), env...)
	cmd.WaitDelay = time.Second // what it leaves behind may hold its output
	return cmd.CombinedOutput()
}

// try runs a mutant's tests.
func (g *group) try(m numbered) (result, string) {
	tests, part, says := m.aim()
	of, limit, env := pattern(tests), testTimeout, []string(nil)
	if part != "" {
		of, limit, env = of+"/"+part, partTimeout, []string{"HAWSER_LONG=1"}
	}
	said, err := g.run(m.n, of, limit, env...)
	switch {
	case bytes.Contains(said, []byte("no tests to run")):
		return empty, string(said)
	case says == "" && bytes.Contains(said, []byte("panic: test timed out")):
		return hung, string(said)
	case err == nil:
		return survived, string(said)
	case !bytes.Contains(said, []byte(says)):
		return mute, string(said)
	}
	return found, string(said)
}
