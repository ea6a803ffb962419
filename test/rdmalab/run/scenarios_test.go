//go:build linux

package main

import (
	"slices"
	"testing"
)

func TestNotesAreATestsOwnWords(t *testing.T) {
	out := `=== RUN   TestX/rdma
    memory_test.go:75: the RDMA devices sent 79 packets
time=2026-11-30T18:00:00Z level=WARN msg="x_test.go:1: not a test's"
    memory_ops_test.go:76: the first took 1s: unavailable
        memory_fence_test.go:139: 2 rounds
--- PASS: TestX (0.00s)
    --- PASS: TestX/rdma (0.01s)
`
	want := []string{"the RDMA devices sent 79 packets", "the first took 1s: unavailable", "2 rounds"}
	if got := notes(out); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if passed, failed := tally(out); passed != 2 || len(failed) != 0 {
		t.Errorf("%d passed, %v failed", passed, failed)
	}
}
