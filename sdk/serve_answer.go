package sdk

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// answer is what a plugin says to a person. It returns the exit code.
func answer(d Description, args []string, stdout, stderr io.Writer) int {
	if len(args) == 1 {
		switch args[0] {
		case "--version", "-version":
			return printed(fmt.Fprintf(stdout, "%s %s (contract %d)\n", d.Name, d.Version, d.Contract))
		case "--describe", "-describe":
			enc := json.NewEncoder(stdout)
			enc.SetIndent("", "  ")
			return printed(0, enc.Encode(described(d)))
		}
	}
	if len(args) > 0 && !isHelp(args) {
		_, _ = fmt.Fprintf(stderr, "%s: unknown: %s\n\n", d.Name, strings.Join(unknown(args), " "))
	}
	_, _ = fmt.Fprintf(stderr, `This is %s %s, a Hawser transport. A Hawser engine runs it as a plugin, in a
process of its own; it does nothing by itself. To use it, name this file under
"transports" in the engine's configuration.

  --version    print its name and version
  --describe   print what it can do, as JSON
`, d.Name, d.Version)
	if isHelp(args) {
		return 0
	}
	return 1
}

func isHelp(args []string) bool {
	return len(args) == 1 && (args[0] == "--help" || args[0] == "-help" || args[0] == "-h")
}

// unknown quotes the arguments that are nothing to a plugin: all of them, if
// each would do alone.
func unknown(args []string) []string {
	var bad, all []string
	for _, a := range args {
		quoted := strconv.Quote(a)
		all = append(all, quoted)
		if !slices.Contains([]string{"--version", "-version", "--describe", "-describe"}, a) && !isHelp([]string{a}) {
			bad = append(bad, quoted)
		}
	}
	if len(bad) == 0 {
		return all
	}
	return bad
}

func printed(_ int, err error) int {
	if err != nil {
		return 1
	}
	return 0
}

// describedJSON is the output of --describe: for programs, with names where
// the contract has numbers.
type describedJSON struct {
	Name         string              `json:"name"`
	Version      string              `json:"version"`
	Contract     int                 `json:"contract"`
	Features     []string            `json:"features"`
	Limits       describedLimits     `json:"limits"`
	Move         *describedMove      `json:"move,omitempty"`
	ConfigSchema json.RawMessage     `json:"config_schema,omitempty"`
	SharedDevice bool                `json:"shared_device"`
	Listeners    []describedListener `json:"listeners"`
}

type describedLimits struct {
	MaxFrame       int `json:"max_frame"`
	InflightFrames int `json:"inflight_frames"`
	InflightBytes  int `json:"inflight_bytes"`
}

type describedMove struct {
	MaxOp         int      `json:"max_op"`
	Inflight      int      `json:"inflight"`
	InflightBytes int      `json:"inflight_bytes"`
	Local         []string `json:"local"`
	Remote        []string `json:"remote"`
	NeedsFlush    bool     `json:"needs_flush"`
	TargetWrites  bool     `json:"target_writes"`
	Parallel      int      `json:"parallel"`
}

type describedListener struct {
	Name    string `json:"name"`
	Key     string `json:"key"`
	Default string `json:"default"`
}

func described(d Description) describedJSON {
	limits := d.Limits.WithDefaults()
	out := describedJSON{
		Name: d.Name, Version: d.Version, Contract: d.Contract,
		Features:     make([]string, 0, len(d.Features)),
		Limits:       describedLimits(limits),
		ConfigSchema: d.ConfigSchema,
		SharedDevice: d.SharedDevice,
		Listeners:    make([]describedListener, 0, len(d.Listeners)),
	}
	for _, f := range d.Features {
		out.Features = append(out.Features, f.String())
	}
	if d.Has(FeatureMove) {
		l := d.Move.WithDefaults()
		out.Move = &describedMove{
			MaxOp: l.MaxOp, Inflight: l.Inflight, InflightBytes: l.InflightBytes,
			NeedsFlush: l.NeedsFlush, TargetWrites: l.TargetWrites, Parallel: l.Parallel,
		}
		for _, k := range l.Local {
			out.Move.Local = append(out.Move.Local, k.String())
		}
		for _, k := range l.Remote {
			out.Move.Remote = append(out.Move.Remote, k.String())
		}
	}
	for _, l := range d.Listeners {
		out.Listeners = append(out.Listeners, describedListener(l))
	}
	return out
}
