package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
)

// Finding is one thing that was found of a machine: of what, what it means, how
// it is, and what to do about it.
type Finding = sdk.Finding

// What findings mean.
const (
	FindingOK      = sdk.FindingOK
	FindingWarning = sdk.FindingWarning
	FindingProblem = sdk.FindingProblem
	FindingAbsent  = sdk.FindingAbsent
)

// Examination is what was found of a machine and one transport.
type Examination struct {
	// Transport is the configured name, Path the plugin's binary, empty if
	// there is none, and Version the plugin's own.
	Transport, Path, Version string
	// Optional: nobody has listed the transport. It is tried by default, and
	// costs nothing where there is nothing for it.
	Optional bool
	Findings []Finding
}

// Carries reports whether nothing was found that keeps the transport from
// carrying.
func (x Examination) Carries() bool {
	return !slices.ContainsFunc(x.Findings, func(f Finding) bool {
		return f.State == FindingProblem || f.State == FindingAbsent
	})
}

// Troubled reports whether the transport cannot carry and a person should know:
// not if it is optional and this machine merely lacks what it is for.
func (x Examination) Troubled() bool {
	return slices.ContainsFunc(x.Findings, func(f Finding) bool {
		return f.State == FindingProblem || f.State == FindingAbsent && !x.Optional
	})
}

// Examine finds out what an engine of this configuration would meet on this
// machine: what concerns every transport, and for each of them its binary, its
// settings, its addresses and what its plugin finds, which is run for that. It
// starts no transport and takes nothing from engines that run. What is found
// holds for the user and the limits of this process. An error means that there
// is nothing to examine: the configuration or the lock file is no good.
func Examine(ctx context.Context, cfg Config) (here []Finding, transports []Examination, err error) {
	if cfg, err = cfg.Effective(); err != nil {
		return nil, nil, err
	}
	finder, err := newFinder(cfg.Plugins)
	if err != nil {
		return nil, nil, err
	}
	opts := pluginhost.Options{
		StartTimeout: cfg.Plugins.StartTimeout(), RunDir: cfg.Plugins.RunDir, CheckListen: cfg.Security.checkListen(),
	}
	here = append(pluginhost.ExamineHost(opts), Finding{Subject: "plugins", State: FindingOK, Found: strings.Join(finder.dirs, ", ")})
	if cfg.Security.secured() {
		keys, f := cfg.Security.examine(time.Now())
		here = append(here, f)
		opts.Keys = func() *sdk.Keys { return keys }
	}
	transports = make([]Examination, len(cfg.Transports))
	var all sync.WaitGroup
	for i, c := range cfg.Transports {
		all.Go(func() { transports[i] = finder.examine(ctx, c, opts) })
	}
	all.Wait()
	return here, transports, nil
}

func (f *finder) examine(ctx context.Context, c TransportConfig, opts pluginhost.Options) Examination {
	x := Examination{Transport: c.Name, Optional: c.optional}
	spec, err := f.spec(c)
	if err != nil {
		state := FindingProblem
		if c.leavesOut(err) {
			state = FindingAbsent
		}
		x.Findings = []Finding{{Subject: "plugin", State: state, Found: strings.TrimPrefix(err.Error(), "transport "+c.Name+": ")}}
		return x
	}
	var d sdk.Description
	d, x.Findings = pluginhost.Examine(ctx, spec, opts)
	x.Path, x.Version = spec.Path, d.Version
	return x
}

// examine reads the keys, which may be nil, and says how they are.
func (c SecurityConfig) examine(now time.Time) (*sdk.Keys, Finding) {
	keys, ring, wrong := c.load()
	if wrong != nil {
		return nil, Finding{Subject: wrong.Key, State: FindingProblem, Found: wrong.Message}
	}
	f := Finding{Subject: "security", State: FindingOK, Found: fmt.Sprintf("the certificate of %s, until %s",
		strings.Join(ring.Names(), ", "), ring.NotAfter().UTC().Format(time.RFC3339))}
	if ring.NotAfter().Sub(now) < expiryWarning {
		f.State, f.Do = FindingWarning, "renew the certificate"
	}
	return keys, f
}
