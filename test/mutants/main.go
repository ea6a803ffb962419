// Command mutants removes one guard of the engine at a time and wants a named
// test to turn red: a guard that no test misses is not known to work. It
// changes no file: one build per package holds all of its mutants, woven in
// beside the originals, and a run of the tests turns one of them on. It prints
// its progress and then what to repair, and fails if a mutant survives or its
// text is no longer in the code. `go test ./test/mutants` tells within seconds
// whether all of them can be tried at all.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
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
	test     string // see aim
	race     bool
}

// aim is what is to turn red: tests, whose names are in m.test with | between
// them. After a / follows the part of one that is run alone, and after a colon
// what that has to say: where processes are killed on a busy machine, red may
// mean something else. Such a part is run at full length.
func (m mutant) aim() (tests []string, part, says string) {
	names, says, _ := strings.Cut(m.test, ": ")
	names, part, _ = strings.Cut(names, "/")
	return strings.Split(names, "|"), part, says
}

// mutants are all of them.
var mutants = slices.Concat(frames, outboxes, inboxes, healths, engines, silences, holds, plugins, securities, identities, rdmas, rdmaMoves, moves, mappings, gpus, helpers, transfers, streamMoves, scenarios)

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
		return errors.New("none has such a name or file; see -list")
	}
	dir, err := os.MkdirTemp("", "hawser-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	begun := time.Now()
	r := report{total: len(list), verbose: verbose}
	type job struct {
		g *group
		m numbered
	}
	work := make(chan job)
	var wg sync.WaitGroup
	for range jobs {
		wg.Go(func() {
			for j := range work {
				begun := time.Now()
				result, said := j.g.try(j.m)
				r.add(j.m.mutant, result, time.Since(begun), said)
			}
		})
	}
	// While one package's mutants are tried the next one is built.
	for i, g := range groups(list) {
		began := time.Now()
		out, err := g.build(filepath.Join(dir, strconv.Itoa(i)))
		for n, result := range out {
			r.add(list[n-1], result, 0, "")
		}
		if err != nil {
			fmt.Println(err)
			for _, m := range g.ms {
				r.add(m.mutant, untried, 0, "")
			}
			continue
		}
		fmt.Printf("%s is built, and its tests pass without a mutant (%.0fs)\n", g.pkg, time.Since(began).Seconds())
		for _, m := range g.ms {
			work <- job{g, m}
		}
	}
	close(work)
	wg.Wait()
	fmt.Printf("\n%d mutants, %d found, %.0fs\n", len(list), len(list)-len(r.bad), time.Since(begun).Seconds())
	if len(r.bad) > 0 {
		return fmt.Errorf("%d of %d guards are not shown to work:\n%s", len(r.bad), len(list), strings.Join(r.bad, "\n"))
	}
	return nil
}

// report prints results as they come.
type report struct {
	total   int
	verbose bool

	mu   sync.Mutex
	done int
	bad  []string
}

func (r *report) add(m mutant, result result, took time.Duration, said string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done++
	line := fmt.Sprintf("%-50s %-40s %-10s %5.1fs", m.name, m.test, result, took.Seconds())
	fmt.Printf("[%*d/%d] %s\n", len(strconv.Itoa(r.total)), r.done, r.total, line)
	if result.good() {
		return
	}
	r.bad = append(r.bad, line)
	if r.verbose {
		fmt.Println(said)
	}
}
