// Command testlog turns the output of `go test -json` into what a person
// reads: one line per package, the whole output of tests that failed, and
// every skipped test with its reason, which it also appends to a file. It ends
// with a count, and fails if a test failed or none ran.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

type key struct{ pkg, test string }

// log is what is known of a run.
type log struct {
	output                  map[key][]string
	passed, failed, skipped int
	lines                   []string // packages
	failures                []key
	skips                   []string
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: testlog LOG SKIPPED")
		os.Exit(2)
	}
	l, err := read(os.Args[1])
	if err == nil {
		err = l.print(os.Args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testlog:", err)
		os.Exit(1)
	}
}

func read(file string) (*log, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	l := &log{output: map[key][]string{}}
	s := bufio.NewScanner(f)
	s.Buffer(nil, 64<<20)
	for s.Scan() {
		var e event
		if json.Unmarshal(s.Bytes(), &e) != nil {
			l.lines = append(l.lines, s.Text()) // a build error, say
			continue
		}
		l.take(e)
	}
	return l, s.Err()
}

func (l *log) take(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "output", "build-output":
		l.output[k] = append(l.output[k], e.Output)
		return
	case "pass", "fail", "skip":
	default:
		return
	}
	if e.Test == "" {
		if e.Action != "skip" { // skip: no test files
			l.lines = append(l.lines, fmt.Sprintf("%-5s %7.1f s  %s", e.Action, e.Elapsed, e.Package))
		}
		if e.Action == "fail" {
			l.failures = append(l.failures, k)
		}
		return
	}
	switch e.Action {
	case "pass":
		l.passed++
		delete(l.output, k)
	case "fail":
		l.failed++
		l.failures = append(l.failures, k)
	case "skip":
		l.skipped++
		l.skips = append(l.skips, fmt.Sprintf("%s %s: %s", e.Package, e.Test, reason(l.output[k])))
	}
}

// reason is what the test said when it skipped.
func reason(output []string) string {
	for _, line := range output {
		if t := strings.TrimSpace(line); t != "" && !strings.HasPrefix(t, "===") && !strings.HasPrefix(t, "---") {
			return t
		}
	}
	return "no reason given"
}

func (l *log) print(skippedFile string) error {
	for _, line := range l.lines {
		fmt.Println(line)
	}
	for _, k := range l.failures {
		fmt.Printf("---- FAILED %s %s\n%s", k.pkg, k.test, strings.Join(l.output[k], ""))
	}
	for k, out := range l.output {
		if k.pkg == "" || k.test == "" && slices.ContainsFunc(out, func(s string) bool { return strings.Contains(s, "[build failed]") }) {
			fmt.Print(strings.Join(out, ""))
		}
	}
	for _, s := range l.skips {
		fmt.Println("skipped:", s)
	}
	if len(l.skips) > 0 {
		f, err := os.OpenFile(skippedFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		fmt.Fprintln(f, strings.Join(l.skips, "\n"))
		if err := f.Close(); err != nil {
			return err
		}
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", l.passed, l.failed, l.skipped)
	if l.failed > 0 || len(l.failures) > 0 || l.passed == 0 {
		return fmt.Errorf("%d tests failed, %d packages or tests in all; %d passed", l.failed, len(l.failures), l.passed)
	}
	return nil
}
