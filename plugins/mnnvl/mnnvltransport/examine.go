//go:build linux

package mnnvltransport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/plugins/internal/streams"
	"github.com/hawser-transport/hawser/plugins/mnnvl/internal/nvml"
	"github.com/hawser-transport/hawser/sdk"
)

// Examine implements [sdk.Examiner]. It opens the devices as Configure does,
// looks, and closes them again.
func (t *Transport) Examine(ctx context.Context, raw json.RawMessage) []sdk.Finding {
	s, err := parseSettings(raw)
	if err != nil {
		return []sdk.Finding{{Subject: "settings", State: sdk.FindingProblem, Found: err.Error()}}
	}
	t.settings, t.Log = s, slog.New(slog.DiscardHandler)
	x := examination{t: t}
	infos, err := t.driver.Devices()
	switch {
	case err != nil:
		x.failed("driver", sdk.FindingAbsent, err)
		return x.findings
	case len(infos) == 0:
		x.add("driver", sdk.FindingAbsent, "there is no GPU", needGPU)
		return x.findings
	}
	if t.machine, err = machineID(); err != nil {
		x.failed("machine", sdk.FindingProblem, err)
		return x.findings
	}
	chosen, absent := s.choose(infos)
	if len(absent) > 0 {
		x.add("settings", sdk.FindingProblem, fmt.Sprintf("devices names %s, and there is %s", strings.Join(absent, ", "), names(infos)),
			"correct devices, or leave it out to use all that are there")
	}
	before, err := t.fabrics()
	if err != nil {
		x.failed("NVLink", sdk.FindingWarning, err)
	}
	for _, info := range chosen {
		if ctx.Err() != nil {
			x.add("driver", sdk.FindingProblem, "interrupted before GPU "+info.UUID.String(), "")
			break
		}
		x.device(ctx, info, before)
	}
	for _, i := range x.costs { // what costs one GPU of several is a warning
		if x.usable == 0 {
			x.findings[i].State = sdk.FindingProblem
		}
	}
	return append(x.findings, streams.Examine(s.Settings, nil)...)
}

// examination collects what is found.
type examination struct {
	t        *Transport
	findings []sdk.Finding
	costs    []int // findings, each of which costs a device
	usable   int   // devices
}

func (x *examination) add(subject string, state sdk.FindingState, found, do string) {
	line := func(s string) string { return strings.ReplaceAll(s, "\n", "; ") }
	x.findings = append(x.findings, sdk.Finding{Subject: subject, State: state, Found: line(found), Do: line(do)})
}

// failed adds a failure, its advice apart.
func (x *examination) failed(subject string, state sdk.FindingState, err error) {
	var missing *cuda.MissingError
	if errors.As(err, &missing) {
		x.add(subject, state, (&cuda.MissingError{What: missing.What, Err: missing.Err}).Error(), missing.Do)
		return
	}
	x.add(subject, state, err.Error(), "")
}

func (x *examination) device(ctx context.Context, info cuda.Info, before map[cuda.UUID]nvml.GPU) {
	subject := fmt.Sprintf("GPU %d", info.Ordinal)
	gpu := before[info.UUID]
	d, err := x.t.openDevice(info, gpu.Fabric)
	if err != nil {
		x.failed(subject, sdk.FindingWarning, err)
		x.costs = append(x.costs, len(x.findings)-1)
		return
	}
	x.usable++
	found := fmt.Sprintf("%s, %s, compute mode %s", info.Name, info.UUID, info.Mode)
	if after, err := x.t.fabrics(); err == nil && gpu.Used > 0 && after[info.UUID].Used > gpu.Used {
		found += fmt.Sprintf(", this plugin's context takes %d MiB of its memory", (after[info.UUID].Used-gpu.Used)>>20)
	}
	x.add(subject, sdk.FindingOK, found, "")
	x.handles(subject, d)
	x.links(subject, gpu)
	if err := d.close(ctx); err != nil {
		x.failed(subject, sdk.FindingWarning, err)
	}
}

// handles says which kinds memory can be exported as.
func (x *examination) handles(subject string, d *device) {
	subject += " handles"
	var can, cannot []string
	for _, k := range everyKind() {
		if slices.Contains(d.grants, k) {
			can = append(can, k.String())
		} else {
			cannot = append(cannot, k.String())
		}
	}
	switch {
	case len(can) == 0:
		x.add(subject, sdk.FindingWarning, "memory cannot be exported as any kind", "use a newer driver")
	case len(cannot) == 0:
		x.add(subject, sdk.FindingOK, "memory can be exported as "+strings.Join(can, ", "), "")
	case d.info.Fabric && slices.Contains(cannot, cuda.Fabric.String()):
		x.add(subject, sdk.FindingOK, fmt.Sprintf("memory can be exported as %s; the GPU knows fabric handles, and the driver does not grant this process any", strings.Join(can, ", ")),
			"only for transfers between machines: ask the administrator for an IMEX channel (/dev/nvidia-caps-imex-channels)")
	default:
		x.add(subject, sdk.FindingOK, fmt.Sprintf("memory can be exported as %s, not as %s", strings.Join(can, ", "), strings.Join(cannot, ", ")), "")
	}
}

// links says what NVLink connects.
func (x *examination) links(subject string, gpu nvml.GPU) {
	subject += " NVLink"
	switch {
	case gpu.UUID == (cuda.UUID{}):
		x.add(subject, sdk.FindingOK, "not known", "")
		return
	case gpu.Links == 0:
		x.add(subject, sdk.FindingWarning, "no link is up: copies go over PCIe, if the GPUs reach each other at all", "see nvidia-smi topo -m")
		return
	}
	peers := "no other GPU of this machine"
	if len(gpu.Peers) > 0 {
		var s []string
		for _, p := range gpu.Peers {
			s = append(s, p.String())
		}
		peers = strings.Join(s, ", ")
	}
	found := fmt.Sprintf("%d links up, to %s; fabric: %s", gpu.Links, peers, gpu.Fabric.State)
	if f := formatFabric(gpu.Fabric); f != "" {
		found += ", cluster and clique " + f
	} else {
		found += ", no other machine"
	}
	x.add(subject, sdk.FindingOK, found, "")
}
