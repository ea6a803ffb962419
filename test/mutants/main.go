// Command mutants removes one guard of the engine at a time and wants a named
// test to turn red: a guard that no test misses is not known to work. It
// changes no file: the compiler is given the changed one in the original's
// place. It prints its progress and then what to repair, and fails if a mutant
// survives or its text is no longer in the code. `go test ./test/mutants`
// tells within seconds whether all of them can be tried at all.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

const usage = `usage: go run ./test/mutants [flags] [part of a name or a file]...

  go run ./test/mutants                     # all
  go run ./test/mutants room hello          # those with one of these in their name or file
  go run ./test/mutants "inbox: duplicates" # one
  go run ./test/mutants engine/silence.go   # those of a file
  go run ./test/mutants -list pluginhost    # names, files and tests; runs nothing

Run it from the root. Flags:
`

// mutant is one guard and the test that must miss it.
type mutant struct {
	name     string
	file     string // from the root
	old, new string // old is in the file exactly once
	pkg      string // where the test is, from the root
	test     string // names of tests, with | between them
	race     bool
}

// mutants are all of them.
var mutants = slices.Concat(frames, outboxes, inboxes, healths, engines, silences, plugins, securities)

func main() {
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	list := flag.Bool("list", false, "list, run nothing")
	verbose := flag.Bool("v", false, "print what the tests of a mutant say that is not found")
	jobs := flag.Int("j", max(1, min(runtime.NumCPU(), 4)), "how many to try at a time")
	flag.Parse()
	chosen := choose(flag.Args())
	if *list {
		for _, m := range chosen {
			fmt.Printf("%-46s %-36s %s\n", m.name, m.file, m.test)
		}
		return
	}
	if err := run(chosen, max(1, *jobs), *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// choose returns the mutants with one of the parts in their name or file.
func choose(parts []string) []mutant {
	if len(parts) == 0 {
		return mutants
	}
	var chosen []mutant
	for _, m := range mutants {
		if slices.ContainsFunc(parts, func(p string) bool {
			return strings.Contains(m.name, p) || strings.Contains(m.file, p)
		}) {
			chosen = append(chosen, m)
		}
	}
	return chosen
}

// run tries the mutants and prints a line for each.
func run(list []mutant, jobs int, verbose bool) error {
	if len(list) == 0 {
		return fmt.Errorf("none has such a name or file; see -list")
	}
	dir, err := os.MkdirTemp("", "hawser-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	begun := time.Now()
	if err := sound(list); err != nil {
		return err
	}
	fmt.Printf("%d mutants; without one their tests pass (%.0fs)\n", len(list), time.Since(begun).Seconds())

	work := make(chan mutant)
	var wg sync.WaitGroup
	var mu sync.Mutex
	done := 0
	var bad []string
	for range jobs {
		wg.Go(func() {
			for m := range work {
				begun := time.Now()
				result, said := try(dir, m)
				mu.Lock()
				done++
				line := fmt.Sprintf("%-46s %-40s %-9s %4.0fs", m.name, m.test, result, time.Since(begun).Seconds())
				fmt.Printf("[%*d/%d] %s\n", len(fmt.Sprint(len(list))), done, len(list), line)
				if !result.good() {
					bad = append(bad, line)
					if verbose {
						fmt.Println(said)
					}
				}
				mu.Unlock()
			}
		})
	}
	for _, m := range list {
		work <- m
	}
	close(work)
	wg.Wait()
	fmt.Printf("\n%d mutants, %d found, %.0fs\n", len(list), len(list)-len(bad), time.Since(begun).Seconds())
	if len(bad) > 0 {
		return fmt.Errorf("%d of %d guards are not shown to work:\n%s", len(bad), len(list), strings.Join(bad, "\n"))
	}
	return nil
}
