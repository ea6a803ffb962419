package simverbs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// Options describe a process's virtual host. They marshal to JSON, so that a
// test can hand them to a process as a file.
type Options struct {
	// Dir is the fabric's directory. Its path has to be short: it holds sockets.
	// Empty in a file that [Load] reads: the file's own directory.
	Dir string
	// Host names the virtual host. Processes of the same name share its devices
	// and have to describe them alike.
	Host    string
	Devices []Device
	// FirstQP is the first queue pair number of each device, default 17.
	FirstQP uint32 `json:",omitempty"`
	// Missing is what Devices and Open fail with, as on a machine without the
	// library; with Devices the kernel has them all the same.
	Missing string `json:",omitempty"`
}

// Device is an RDMA device of the host.
type Device struct {
	Name   string
	Driver string `json:",omitempty"` // default "sim"
	NUMA   int
	Ports  []Port
	// Limits default to generous ones, each by itself.
	Limits verbs.Limits
	// OpenError makes a device that is listed but cannot be opened.
	OpenError verbs.Errno `json:",omitempty"`
	// Memlock is how many bytes can be registered on the device, as under a
	// limit of memory that may be locked. Zero: no limit.
	Memlock int `json:",omitempty"`
	// KeepsCompletions: RESET and destroy leave the completions that were not
	// polled, as Soft-RoCE does; a number that is used again has late ones.
	KeepsCompletions bool `json:",omitempty"`
	// NoLastWQE: LastWQEReached is never raised.
	NoLastWQE bool `json:",omitempty"`
	// NoRetryLimit: what nobody acknowledges is sent again for ever, as by
	// Soft-RoCE, and a dead path is never reported.
	NoRetryLimit bool `json:",omitempty"`
}

// Port is a device's port.
type Port struct {
	Netdev string `json:",omitempty"`
	// Link defaults to Ethernet.
	Link  verbs.LinkLayer
	MTU   verbs.MTU `json:",omitempty"` // default 4096
	LID   uint16    `json:",omitempty"`
	SMLID uint16    `json:",omitempty"`
	Gbps  float64   `json:",omitempty"` // default 100
	GIDs  []verbs.GID
	// Down: the port is down from the start, until a [Controller] takes it up.
	Down bool `json:",omitempty"`
}

// Open starts a process of the host that a JSON file describes, in a directory
// that is there. Keys that it does not know are refused: what a misspelt one
// leaves out would be missed much later.
func Open(file string) (*Provider, error) {
	o, err := Load(file)
	if err != nil {
		return nil, err
	}
	if st, err := os.Stat(o.Dir); err != nil {
		return nil, fmt.Errorf("%s: Dir: %w", file, err)
	} else if !st.IsDir() {
		return nil, fmt.Errorf("%s: Dir: %s is not a directory", file, o.Dir)
	}
	p, err := New(o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return p, nil
}

// Load reads options from a JSON file.
func Load(file string) (Options, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return Options{}, err
	}
	var o Options
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return Options{}, fmt.Errorf("%s: %w", file, err)
	}
	if d.More() {
		return Options{}, fmt.Errorf("%s: there is more than one value", file)
	}
	if o.Dir == "" {
		o.Dir = filepath.Dir(file)
	}
	return o, nil
}

// complete returns a copy with the defaults filled in.
func (o Options) complete() (Options, error) {
	if o.Dir == "" || !plain(o.Host) {
		return o, fmt.Errorf("simverbs: a directory and a host without %q are needed, not %q and %q", "/ ", o.Dir, o.Host)
	}
	if o.FirstQP == 0 {
		o.FirstQP = 17
	}
	o.Devices = append([]Device(nil), o.Devices...)
	for i := range o.Devices {
		d := &o.Devices[i]
		if !plain(d.Name) {
			return o, fmt.Errorf("simverbs: device name %q", d.Name)
		}
		if d.Driver == "" {
			d.Driver = "sim"
		}
		d.Limits = completeLimits(d.Limits)
		d.Ports = append([]Port(nil), d.Ports...)
		for j := range d.Ports {
			d.Ports[j] = d.Ports[j].complete()
		}
	}
	return o, nil
}

func (p Port) complete() Port {
	if p.Link == verbs.LinkUnknown {
		p.Link = verbs.Ethernet
	}
	if p.MTU == 0 {
		p.MTU = 4096
	}
	if p.Gbps == 0 {
		p.Gbps = 100
	}
	return p
}

func completeLimits(l verbs.Limits) verbs.Limits {
	for _, f := range []struct {
		v   *int
		def int
	}{
		{&l.QPs, 4096}, {&l.CQs, 4096}, {&l.MRs, 4096}, {&l.SRQs, 256}, {&l.QPWRs, 4096},
		{&l.CQEntries, 1 << 16}, {&l.SRQWRs, 1 << 14}, {&l.RDAtomic, 16}, {&l.InitRDAtomic, 16},
	} {
		if *f.v == 0 {
			*f.v = f.def
		}
	}
	return l
}

// plain reports whether a name can be part of a port's name and of a file's.
func plain(s string) bool { return s != "" && !strings.ContainsAny(s, "/ \x00") && s[0] != '.' }
