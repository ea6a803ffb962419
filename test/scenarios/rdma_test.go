//go:build linux

package scenarios

import (
	"bytes"
	"encoding/json"
	"testing"
)

// rdmaRows are the rows of rdma, on the simulated provider. A row that is not
// here fails.
var rdmaRows = map[string]special{
	"no fault":                       {carries: []string{"rdma"}},
	"sender to err":                  {faults: 3, carries: []string{"rdma"}, moved: true},
	"receiver to err":                {faults: 3, carries: []string{"rdma"}, moved: true},
	"receiver to reset":              {faults: 1, carries: []string{"rdma"}, moved: true},
	"retired while completions wait": {faults: 1, carries: []string{"rdma"}, taken: true, alone: true},
	"rail cut":                       {faults: 1, carries: []string{"rdma"}},
	"rails cut":                      {faults: 1, carries: []string{"rdma", "tcp"}, moved: true},
	"rails cut, no other way":        {faults: 1, carries: []string{"rdma"}, partial: true},
	"rdma killed":                    {faults: 4, carries: []string{"rdma"}, moved: true},
	"frozen mid-stream":              {faults: 2, carries: []string{"rdma"}},
	"dead path":                      {faults: 1, carries: []string{"rdma", "tcp"}, moved: true},
	"flooded reader":                 {faults: 1, carries: []string{"rdma"}},
	"node restarted":                 {faults: 2, carries: []string{"rdma"}, partial: true},
}

// The table of rdma, as a user runs it.
func TestScenarioRDMA(t *testing.T) {
	if testing.Short() {
		t.Skip("-short runs the demo's first row only")
	}
	var list []struct{ Name string }
	if err := json.Unmarshal(hawser(t, "demo", "--set", "rdma", "--list", "-o", "json"), &list); err != nil || len(list) < len(rdmaRows) {
		t.Fatalf("%v: %v", list, err)
	}
	for _, row := range list {
		t.Run(row.Name, func(t *testing.T) {
			want, known := rdmaRows[row.Name]
			if !known {
				t.Fatalf("nothing is known of row %q", row.Name)
			}
			t.Parallel() // they are paced, and mostly wait
			out, _, _ := bytes.Cut(hawser(t, "demo", "--set", "rdma", "--simulate", "--row", row.Name, "-o", "json"), []byte("\n"))
			var r demoRow
			if err := json.Unmarshal(out, &r); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			r.check(t, row.Name, want)
		})
	}
}
