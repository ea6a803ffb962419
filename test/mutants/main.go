// Command mutants removes one guard of the engine at a time and wants a named
// test to turn red: a guard that no test misses is not known to work. It runs
// on a copy of the tree, prints a table, and fails if a mutant survives or its
// text is no longer in the code.
//
//	go run ./test/mutants            # all
//	go run ./test/mutants room hello # those with one of these in their name
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// mutant is one guard and the test that must miss it.
type mutant struct {
	name     string
	file     string // from the root
	old, new string // old is in the file exactly once
	pkg      string // where the test is, from the root
	test     string // a regular expression
	race     bool
}

const (
	testTimeout = 60 * time.Second
	// buildTimeout is what building and running the test may take.
	buildTimeout = 5 * time.Minute
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(names []string) error {
	var list []mutant
	for _, m := range mutants {
		if len(names) == 0 || matches(m.name, names) {
			list = append(list, m)
		}
	}
	workers := max(1, min(runtime.NumCPU(), 4))
	work := make(chan int)
	results := make([]string, len(list))
	dirs := make([]string, workers)
	var wg sync.WaitGroup
	for i := range workers {
		dir, err := copyTree()
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir) //nolint:errcheck // of a temporary copy
		dirs[i] = dir
	}
	var mu sync.Mutex
	for _, dir := range dirs {
		wg.Go(func() {
			for i := range work {
				begun := time.Now()
				results[i] = try(dir, list[i])
				mu.Lock()
				fmt.Printf("%-42s %-34s %-9s %4.0fs\n", list[i].name, list[i].test, results[i], time.Since(begun).Seconds())
				mu.Unlock()
			}
		})
	}
	for i := range list {
		work <- i
	}
	close(work)
	wg.Wait()
	bad := 0
	for _, r := range results {
		if r != red {
			bad++
		}
	}
	fmt.Printf("%d mutants, %d found\n", len(list), len(list)-bad)
	if bad > 0 || len(list) == 0 {
		return fmt.Errorf("%d of %d guards are not shown to work", bad, len(list))
	}
	return nil
}

func matches(name string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(name, p) {
			return true
		}
	}
	return false
}

// What becomes of a mutant.
const (
	red      = "found"
	survived = "SURVIVED"
	stale    = "STALE"   // its text is not in the file, or not once
	broken   = "INVALID" // it does not compile
	empty    = "NO TEST" // nothing has that name
)

// try applies a mutant in a copy, runs its test, and takes it back.
func try(dir string, m mutant) string {
	file := filepath.Join(dir, m.file)
	src, err := os.ReadFile(file)
	if err != nil || strings.Count(string(src), m.old) != 1 {
		return stale
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(src), m.old, m.new, 1)), 0o644); err != nil {
		return err.Error()
	}
	defer os.WriteFile(file, src, 0o644) //nolint:errcheck // the next one on this file is stale then
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	args := []string{"test", "-count=1", "-v", "-timeout", testTimeout.String(), "-run", "^(" + m.test + ")$"}
	if m.race {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+m.pkg)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case bytes.Contains(out, []byte("[build failed]")) || bytes.Contains(out, []byte("[setup failed]")):
		return broken
	case !bytes.Contains(out, []byte("=== RUN")):
		return empty
	case err == nil:
		return survived
	case errors.As(err, &exit):
		return red
	}
	return err.Error()
}

// copyTree copies what the tests need.
func copyTree() (string, error) {
	dir, err := os.MkdirTemp("", "hawser-mutants-")
	if err != nil {
		return "", err
	}
	for _, part := range []string{"go.mod", "go.sum", "engine", "sdk", "plugins"} {
		err := filepath.WalkDir(part, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			to := filepath.Join(dir, path)
			if d.IsDir() {
				return os.MkdirAll(to, 0o755)
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(to, b, 0o644)
		})
		if err != nil {
			return dir, fmt.Errorf("copy the tree (run it from the root): %w", err)
		}
	}
	return dir, nil
}
