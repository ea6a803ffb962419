package pluginhost

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

const (
	describeTimeout = 5 * time.Second
	maxDescribed    = 1 << 20
)

// Describe runs a plugin's binary with --describe and returns what it says
// about itself. The binary is neither supervised nor given anything.
func Describe(ctx context.Context, path string) (sdk.Description, error) {
	d, err := describe(ctx, path)
	if err != nil {
		return sdk.Description{}, sdk.Errorf(codeOr(err, sdk.Unavailable), "describe %s: %w", path, err)
	}
	return d, checkDescription(d)
}

func describe(ctx context.Context, path string) (sdk.Description, error) {
	var none sdk.Description
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	img, err := openImage(path, "", slog.New(slog.DiscardHandler))
	if err != nil {
		return none, err
	}
	defer img.close()
	out, errs, c, err := runBriefly(ctx, img, path, "--describe")
	if err != nil {
		return none, err
	}
	if ctx.Err() != nil {
		return none, sdk.Errorf(sdk.DeadlineExceeded, "no answer to --describe in time (is it a Hawser plugin?)")
	}
	if len(out) > maxDescribed {
		return none, sdk.Errorf(sdk.InvalidArgument, "the answer to --describe has more than %d bytes", maxDescribed)
	}
	if code := c.state.ExitCode(); code != 0 {
		return none, sdk.Errorf(sdk.InvalidArgument, "exited with status %d on --describe (is it a Hawser plugin?): %s", code, lastOutput([]byte(errs), string(out)))
	}
	d, err := parseDescribed(out)
	if err != nil {
		if said := lastOutput(out, errs); said != "" {
			return none, sdk.Errorf(codeOr(err, sdk.InvalidArgument), "%w; it said: %s", err, said)
		}
	}
	return d, err
}

// lastOutput is the end of what a process wrote: to stdout, or else to stderr.
func lastOutput(out []byte, errs string) string {
	const most = 200
	text := bytes.TrimSpace(out)
	if len(text) == 0 {
		text = []byte(errs)
	}
	if len(text) > most {
		return "..." + printable(bytes.TrimSpace(text[len(text)-most:]))
	}
	return printable(text)
}

// runBriefly runs an image until it exits or ctx ends, and returns the start
// of what it wrote to stdout and, for people, to stderr.
func runBriefly(ctx context.Context, img *image, path string, args ...string) (out []byte, errs string, c *child, err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, "", nil, err
	}
	defer null.Close()
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, "", nil, err
	}
	defer outR.Close()
	errR, errW, err := os.Pipe()
	if err != nil {
		_ = outW.Close()
		return nil, "", nil, err
	}
	defer errR.Close()
	c, err = spawn(img, path, args, hostEnvironment(), []*os.File{null, outW, errW})
	_ = outW.Close()
	_ = errW.Close()
	if err != nil {
		return nil, "", nil, execFault(path, err)
	}
	words := make(chan []byte, 1)
	go func() { words <- readSome(errR, 4<<10) }()
	answer := make(chan []byte, 1)
	go func() { answer <- readSome(outR, maxDescribed+1) }()
	select {
	case <-c.reaped:
	case <-ctx.Done():
	}
	c.kill()
	<-c.reaped
	// Somebody else may hold the pipes open.
	limit := time.Now().Add(exitGrace)
	_ = outR.SetReadDeadline(limit)
	_ = errR.SetReadDeadline(limit)
	return <-answer, strings.TrimSpace(printable(bytes.TrimSpace(<-words))), c, nil
}

// readSome reads to the end and keeps the first n bytes.
func readSome(r io.Reader, n int64) []byte {
	var b bytes.Buffer
	_, _ = io.Copy(&b, io.LimitReader(r, n))
	_, _ = io.Copy(io.Discard, r)
	return b.Bytes()
}

// described is the form of --describe's answer.
type described struct {
	Name     string   `json:"name"`
	Version  string   `json:"version"`
	Contract int      `json:"contract"`
	Features []string `json:"features"`
	Limits   struct {
		MaxFrame       int `json:"max_frame"`
		InflightFrames int `json:"inflight_frames"`
		InflightBytes  int `json:"inflight_bytes"`
	} `json:"limits"`
	Move struct {
		MaxOp         int      `json:"max_op"`
		Inflight      int      `json:"inflight"`
		InflightBytes int      `json:"inflight_bytes"`
		Local         []string `json:"local"`
		Remote        []string `json:"remote"`
		NeedsFlush    bool     `json:"needs_flush"`
		TargetWrites  bool     `json:"target_writes"`
		Parallel      int      `json:"parallel"`
	} `json:"move"`
	ConfigSchema json.RawMessage `json:"config_schema"`
	SharedDevice bool            `json:"shared_device"`
	Listeners    []struct {
		Name    string `json:"name"`
		Key     string `json:"key"`
		Default string `json:"default"`
	} `json:"listeners"`
}

// parseDescribed reads --describe's answer.
func parseDescribed(text []byte) (sdk.Description, error) {
	var j described
	if err := json.Unmarshal(text, &j); err != nil {
		return sdk.Description{}, sdk.Errorf(sdk.InvalidArgument, "the answer to --describe is not what a Hawser plugin says: %w", err)
	}
	d := sdk.Description{
		Name: j.Name, Version: j.Version, Contract: j.Contract, ConfigSchema: j.ConfigSchema, SharedDevice: j.SharedDevice,
		Limits: sdk.Limits{MaxFrame: j.Limits.MaxFrame, InflightFrames: j.Limits.InflightFrames, InflightBytes: j.Limits.InflightBytes},
	}
	for _, name := range j.Features {
		f, err := featureNamed(name)
		if err != nil {
			return sdk.Description{}, err
		}
		d.Features = append(d.Features, f)
	}
	d.Move = sdk.MoveLimits{
		MaxOp: j.Move.MaxOp, Inflight: j.Move.Inflight, InflightBytes: j.Move.InflightBytes,
		NeedsFlush: j.Move.NeedsFlush, TargetWrites: j.Move.TargetWrites, Parallel: j.Move.Parallel,
	}
	var err error
	if d.Move.Local, err = kindsNamed(j.Move.Local); err == nil {
		d.Move.Remote, err = kindsNamed(j.Move.Remote)
	}
	if err != nil {
		return sdk.Description{}, err
	}
	for _, l := range j.Listeners {
		d.Listeners = append(d.Listeners, sdk.ListenerSpec{Name: l.Name, Key: l.Key, Default: l.Default})
	}
	return d, nil
}

// kindsNamed is the inverse of MemoryKind.String.
func kindsNamed(names []string) (kinds []sdk.MemoryKind, err error) {
	for _, name := range names {
		k := sdk.HostMemory
		for k.Valid() && k.String() != name {
			k++
		}
		if !k.Valid() {
			return nil, sdk.Errorf(sdk.InvalidArgument, "unknown kind of memory %q", clip(name, 64))
		}
		kinds = append(kinds, k)
	}
	return kinds, nil
}

var errFeature = errors.New("unknown feature")

// namedFeatures is well above the numbers that have names.
const namedFeatures = 256

// featureNamed is the inverse of Feature.String.
func featureNamed(name string) (sdk.Feature, error) {
	for f := sdk.Feature(1); f <= namedFeatures; f++ {
		if f.String() == name {
			return f, nil
		}
	}
	if number, ok := strings.CutPrefix(name, "feature-"); ok {
		if n, err := strconv.ParseUint(number, 10, 16); err == nil {
			return sdk.Feature(n), nil
		}
	}
	return 0, sdk.Errorf(sdk.InvalidArgument, "%w %q", errFeature, clip(name, 64))
}
