//go:build linux

package scenarios

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// demoRow is what `hawser demo -o json` says of a row.
type demoRow struct {
	Name         string
	Holds        bool
	Skipped      string
	Problems     []string
	Expected     int
	Received     int
	Transfers    int
	Standalone   int
	Duplicates   int
	Damaged      int
	Strangers    int
	Early        int
	Acknowledged int
	Taken        int
	Failed       map[string]int
	By           map[string]int `json:"by_transport"`
	EndLast      bool           `json:"end_last"`
	Resent       uint64
	Suppressed   uint64
	Gap          float64 `json:"longest_gap_ms"`
	Faults       []struct {
		Fault string
		At    int
		Proof string
	}
	Stats map[string]struct{ OpsDone int }
	Logs  map[string]string
}

// special is what is special about a row.
type special struct {
	faults  int
	carries []string // transports that must have carried something
	partial bool     // what was pending when something died may have failed
	moved   bool     // something must have been sent twice
	taken   bool     // acknowledged only by the peer's transport
	idle    bool     // mostly waits, and may run beside others that do
	alone   bool     // no notification goes with a transfer
}

// demoRows are the rows of plain transports. A row that is not here fails.
var demoRows = map[string]special{
	"no fault":           {carries: []string{"tcp"}},
	"transport disabled": {faults: 1, carries: []string{"tcp", "rpcfallback"}},
	"tcp killed":         {faults: 6, carries: []string{"tcp", "rpcfallback"}},
	"tcp stopped":        {faults: 1, carries: []string{"tcp", "rpcfallback"}, moved: true},
	"all killed":         {faults: 10, moved: true},
	"receiver restarted": {faults: 2, partial: true},
	"faulty tcp":         {faults: 2, carries: []string{"tcp"}, moved: true},
	"tcp cut":            {idle: true, faults: 1, carries: []string{"tcp", "rpcfallback"}, moved: true},
	"tcp half cut":       {idle: true, faults: 2, carries: []string{"tcp", "rpcfallback"}, moved: true},
	"oversize":           {carries: []string{"tcp", "rpcfallback"}},
	"reader away":        {faults: 1, carries: []string{"tcp"}, alone: true},
	"frozen peer":        {idle: true, faults: 4, carries: []string{"tcp"}},
	"frozen mid-stream":  {idle: true, faults: 2, carries: []string{"tcp"}, moved: true},
	"protocol 0":         {faults: 4, carries: []string{"tcp", "rpcfallback"}, partial: true, taken: true, alone: true},
	"protocol 1":         {faults: 4, carries: []string{"tcp", "rpcfallback"}, moved: true, taken: true, alone: true},
}

const (
	demoCount = 4000
	longRow   = "a million"
)

// Scenarios 5, 11, 13, 16, 17, 18, 19 and 21, and frozen peers and older
// protocols: the demo, as a user runs it.
func TestScenarioDemo(t *testing.T) {
	var list []struct{ Name string }
	if err := json.Unmarshal(hawser(t, "demo", "--list", "-o", "json"), &list); err != nil || len(list) < len(demoRows) {
		t.Fatalf("%v: %v", list, err)
	}
	for i, row := range list {
		t.Run(row.Name, func(t *testing.T) {
			if testing.Short() && i > 0 {
				t.Skip("-short runs the first row only")
			}
			if row.Name == longRow {
				t.Skip("it takes half a minute: make demo")
			}
			want, known := demoRows[row.Name]
			if !known {
				t.Fatalf("nothing is known of row %q", row.Name)
			}
			if want.idle {
				t.Parallel()
			}
			out, _, _ := bytes.Cut(hawser(t, "demo", "--row", row.Name, "-o", "json"), []byte("\n"))
			var r demoRow
			if err := json.Unmarshal(out, &r); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			r.check(t, row.Name, want)
		})
	}
}

func (r demoRow) check(t *testing.T, name string, want special) {
	t.Helper()
	if r.Skipped != "" {
		t.Fatalf("row %q was skipped: %s", name, r.Skipped)
	}
	if r.Name != name || !r.Holds || len(r.Problems) > 0 {
		t.Errorf("row %q: holds %v: %s\n%v", r.Name, r.Holds, strings.Join(r.Problems, "\n"), r.Logs)
	}
	expected := demoCount
	if want.partial {
		lost := 0
		for code, n := range r.Failed {
			lost += n
			if code != "delivery unknown" && code != "not sent" {
				t.Errorf("%d failed as %q", n, code)
			}
		}
		if lost == 0 || lost > demoCount/2 || r.Acknowledged+lost != demoCount {
			t.Errorf("%d acknowledged, %v failed", r.Acknowledged, r.Failed)
		}
		expected = r.Expected
	} else if len(r.Failed) > 0 || r.Acknowledged != demoCount || r.Transfers != demoCount/2 || r.Standalone != demoCount/2 {
		t.Errorf("%d acknowledged, %v failed, %d of transfers and %d standing alone", r.Acknowledged, r.Failed, r.Transfers, r.Standalone)
	}
	if r.Expected != expected || r.Received != expected || expected < demoCount/2 {
		t.Errorf("%d of %d arrived", r.Received, r.Expected)
	}
	if r.Duplicates != 0 || r.Damaged != 0 || r.Strangers != 0 || !r.EndLast {
		t.Errorf("%d twice, %d damaged, %d that nobody sent, END last: %v", r.Duplicates, r.Damaged, r.Strangers, r.EndLast)
	}
	if written := r.Stats["sender"].OpsDone; r.Early != 0 || want.alone != (written == 0) || !want.alone && written < r.Transfers {
		t.Errorf("%d of transfers arrived, %d of them without the bytes; %d were written", r.Transfers, r.Early, written)
	}
	if want.taken && r.Taken != r.Acknowledged || !want.taken && r.Taken > 0 {
		t.Errorf("of %d it is known only that the peer's transport has them", r.Taken)
	}
	for _, transport := range want.carries {
		if r.By[transport] == 0 {
			t.Errorf("nothing went over %s: %v", transport, r.By)
		}
	}
	if want.moved && r.Resent == 0 {
		t.Error("nothing was resent: nothing was on its way when the fault came")
	}
	if len(r.Faults) != want.faults {
		t.Errorf("%d faults fired, want %d", len(r.Faults), want.faults)
	}
	for _, f := range r.Faults {
		if f.At <= 0 || f.At >= demoCount || f.Proof == "" {
			t.Errorf("%s: at %d of %d, proof %q", f.Fault, f.At, demoCount, f.Proof)
		}
	}
}

// command prepares a run of the program.
func command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, filepath.Join(bin, "hawser"), args...)
	c.Env = slices.Concat(os.Environ(), []string{"HAWSER_PLUGIN_PATH=", "HAWSER_CONFIG="})
	return c
}

// hawser runs the program and returns what it prints. Exit code 2 says that a
// row does not hold, which its output says better.
func hawser(t *testing.T, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	c := command(ctx, args...)
	var errs bytes.Buffer
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil && c.ProcessState.ExitCode() != 2 {
		t.Fatalf("hawser %s: %v\n%s%s", strings.Join(args, " "), err, out, &errs)
	}
	return out
}
