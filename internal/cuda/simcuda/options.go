//go:build linux

package simcuda

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// Options describe a virtual machine. They marshal to JSON, so that a test can
// hand them to a process as a file.
type Options struct {
	// Dir is the machine's directory. Empty in a file that [Load] reads: the
	// file's own directory.
	Dir     string `json:",omitempty"`
	Devices []Device
	// Missing is what Devices and Open fail with, as on a machine without the
	// library.
	Missing string `json:",omitempty"`
	// Start is what the first call of Devices takes.
	Start time.Duration `json:",omitempty"`
	// Delay and BytesPerSecond (0: no limit) are what each copy takes.
	Delay          time.Duration `json:",omitempty"`
	BytesPerSecond uint64        `json:",omitempty"`
	// Poison: an IPC mapping of freed memory reads 0xDB. Otherwise using it
	// loses the context.
	Poison bool `json:",omitempty"`
	// Inject are calls that fail from the start.
	Inject []Injection `json:",omitempty"`
}

// PoisonByte is what freed memory reads where Options.Poison says so.
const PoisonByte = 0xDB

// Device is a GPU of the machine. Its ordinal is its index.
type Device struct {
	Name string    `json:",omitempty"` // default "Simulated GPU"
	UUID cuda.UUID `json:",omitzero"`  // default from the ordinal
	// Memory defaults to 1 GiB, Granularity to 2 MiB.
	Memory, Granularity uint64 `json:",omitempty"`
	Mode                cuda.ComputeMode
	Fabric              Fabric `json:",omitempty"`
	NoPosixFD           bool   `json:",omitempty"`
	NoVMM               bool   `json:",omitempty"`
	NoEventIPC          bool   `json:",omitempty"`
	NoReadOnlyHost      bool   `json:",omitempty"`
}

// Fabric says how far fabric handles work.
type Fabric string

const (
	// NoFabric: the attribute says no, Create answers NotSupported.
	NoFabric Fabric = ""
	// FabricRefused: the attribute says yes, Create answers NotPermitted, as
	// where no IMEX channel was granted.
	FabricRefused Fabric = "refused"
	// FabricWorks: they do, for every process of the machine.
	FabricWorks Fabric = "works"
)

// Injection is a call that is to fail.
type Injection struct {
	// Call is the driver's name, "cuMemMap". Empty is any.
	Call   string `json:",omitempty"`
	Result cuda.Result
	// After is how many of these calls go well before.
	After int `json:",omitempty"`
}

// Load reads options from a JSON file. A key that it does not know is an error:
// a misspelled one would make another machine.
func Load(file string) (Options, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return Options{}, err
	}
	var o Options
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return Options{}, fmt.Errorf("%s, which describes a simulated machine: %w", file, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return Options{}, fmt.Errorf("%s, which describes a simulated machine: more than one JSON value", file)
	}
	if o.Dir == "" {
		o.Dir = filepath.Dir(file)
	}
	return o, nil
}

// complete returns a copy with the defaults filled in.
func (o Options) complete() (Options, error) {
	if o.Dir == "" {
		return o, fmt.Errorf("simcuda: a directory is needed")
	}
	o.Devices = slices.Clone(o.Devices)
	for i := range o.Devices {
		d := &o.Devices[i]
		if d.Name == "" {
			d.Name = "Simulated GPU"
		}
		if d.UUID == (cuda.UUID{}) {
			h := sha256.Sum256(fmt.Append(nil, "simulated GPU ", i))
			copy(d.UUID[:], h[:])
		}
		if d.Memory == 0 {
			d.Memory = 1 << 30
		}
		if d.Granularity == 0 {
			d.Granularity = 2 << 20
		}
		switch d.Fabric {
		case NoFabric, FabricRefused, FabricWorks:
		default:
			return o, fmt.Errorf("simcuda: device %d: fabric %q is none of %q, %q", i, d.Fabric, FabricRefused, FabricWorks)
		}
	}
	return o, nil
}

func (d Device) info(ordinal int) cuda.Info {
	return cuda.Info{
		Ordinal: ordinal, Name: d.Name, UUID: d.UUID, Mode: d.Mode,
		VMM: !d.NoVMM, PosixFD: !d.NoVMM && !d.NoPosixFD, Fabric: !d.NoVMM && d.Fabric != NoFabric,
		EventIPC: !d.NoEventIPC, ReadOnlyHost: !d.NoReadOnlyHost,
	}
}
