package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Transfers are measured by `hawser bench transfer`, in whose node processes the
// plain program moves the same bytes between the same memory.

const (
	transferSize = 16 << 20
	transferAim  = 0.9 // of the plain program's rate
)

// transferred is what the program says of one transport and kind of op.
type transferred struct {
	Transport, Op  string
	Size           int
	BytesPerSecond float64 `json:"bytes_per_second"`
	PlainPerSecond float64 `json:"plain_bytes_per_second"`
	Ratio          float64
	LowestRatio    float64 `json:"lowest_ratio"`
	HighestRatio   float64 `json:"highest_ratio"`
	Memory         struct{ Highest, Growth int64 }
}

// measureTransfers has rounds measured of tcp and rpcfallback.
func measureTransfers(s settings) ([]transferred, error) {
	bin, err := filepath.Abs(s.bin)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(bin, "hawser"), "bench", "transfer", "--plugins-dir", bin, "-o", "json",
		"--transport", "tcp,rpcfallback", "--size", strconv.Itoa(transferSize), "--window", strconv.Itoa(s.transferWindow),
		"--bytes", strconv.Itoa(s.transferBytes), "--rounds", strconv.Itoa(s.transfers))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	var r struct{ Medians []transferred }
	if err := json.Unmarshal(out, &r); err != nil {
		return nil, fmt.Errorf("hawser bench transfer: %w", err)
	}
	if len(r.Medians) != 4 {
		return nil, fmt.Errorf("hawser bench transfer: %d results, not 4", len(r.Medians))
	}
	return r.Medians, nil
}

func transferReport(s settings, awake bool, list []transferred) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s; %d rounds of %d MiB for each kind of op, 16 MiB an op, %d under way; transfers and the plain copy in turns, in the same processes; cores kept awake: %v.\n\n",
		conditions(), s.transfers, s.transferBytes>>20, s.transferWindow, awake)
	b.WriteString("| 16 MiB of host memory, bytes/s of one plain TCP connection | aim | median | lowest | highest | | MB/s | plain TCP MB/s | memory of 4 processes | growth |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, m := range list {
		a := aim{}
		if m.Transport == "tcp" {
			a.least = transferAim
		}
		fmt.Fprintf(&b, "| %s %s | %s | %.2f | %.2f | %.2f | %s | %.0f | %.0f | %.1f MB | %.1f MB |\n", m.Transport, m.Op, a.wanted(),
			m.Ratio, m.LowestRatio, m.HighestRatio, a.verdict(m.Ratio), m.BytesPerSecond/1e6, m.PlainPerSecond/1e6, float64(m.Memory.Highest)/1e6, float64(m.Memory.Growth)/1e6)
	}
	return b.String()
}
