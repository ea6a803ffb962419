//go:build linux

package mnnvltransport

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/internal/cuda/simcuda"
	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/plugins/mnnvl/internal/nvml"
	"github.com/hawser-transport/hawser/sdk"
)

// TestMissing: what the machine lacks is said at once, with what to do.
func TestMissing(t *testing.T) {
	for name, c := range map[string]struct {
		options  simcuda.Options
		settings string
		want     []string
	}{
		"no library":       {simcuda.Options{Missing: "libcuda.so.1"}, "{}", []string{"missing libcuda.so.1"}},
		"no GPU":           {simcuda.Options{}, "{}", []string{"no GPU", "--gpus"}},
		"exclusive":        {simcuda.Options{Devices: []simcuda.Device{{Mode: cuda.ModeExclusiveProcess}}}, "{}", []string{"exclusive process", "nvidia-smi -i 0 -c DEFAULT"}},
		"no VMM":           {simcuda.Options{Devices: []simcuda.Device{{NoVMM: true}}}, "{}", []string{"virtual memory management"}},
		"a GPU not there":  {simcuda.Options{Devices: []simcuda.Device{{}}}, `{"devices": ["3"]}`, []string{"devices names 3", "0 (GPU-"}},
		"one of two works": {simcuda.Options{Devices: []simcuda.Device{{Mode: cuda.ModeExclusiveProcess}, {}}}, "{}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			c.options.Dir = t.TempDir()
			d, err := simcuda.New(c.options)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close() //nolint:errcheck // test
			tr := New(d, nvml.Fake{})
			_, err = tr.Configure(rigtest.Context(t), sdk.Config{Instance: 1, Settings: json.RawMessage(c.settings)})
			if closed := tr.Close(rigtest.Context(t)); closed != nil {
				t.Error(closed)
			}
			if (err == nil) != (c.want == nil) || err != nil && !errors.Is(err, sdk.Unsupported) {
				t.Fatal(err)
			}
			findings := New(d, nvml.Fake{}).Examine(rigtest.Context(t), json.RawMessage(c.settings))
			text := fmt.Sprintf("%+v", findings)
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Configure says %q, not %q", err, want)
				}
				if want != "no GPU" && !strings.Contains(text, strings.TrimPrefix(want, "missing ")) {
					t.Errorf("the findings say %s, not %q", text, want)
				}
			}
			bad := slices.ContainsFunc(findings, func(f sdk.Finding) bool {
				return f.State == sdk.FindingProblem || f.State == sdk.FindingAbsent
			})
			if bad != (err != nil) {
				t.Errorf("Configure says %v, and the findings are %s", err, text)
			}
			if counts := d.Counts(); !counts.IsClean() {
				t.Errorf("left: %+v", counts)
			}
		})
	}
}
