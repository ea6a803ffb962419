//go:build linux

package mnnvltransport

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/plugins/mnnvl/internal/nvml"
	"github.com/hawser-transport/hawser/sdk/mapping"
)

// maxMappings bounds what one device has mapped of all peers: a model's layers
// may be a region each.
const maxMappings = 16 << 10

// device is a GPU that this process uses.
type device struct {
	info  cuda.Info
	place place
	// grants are the kinds of handles that memory can be created with here.
	grants []cuda.Kind
	// imports and copies are the same context, each with a thread of its own:
	// an import takes too long for a copy to wait for.
	imports, copies cuda.Device
	cache           *mapping.Cache[cuda.Ptr]
	worker          *worker
}

// openDevice opens a device, and gives back what it took if it fails.
func (t *Transport) openDevice(info cuda.Info, fabric nvml.Fabric) (*device, error) {
	d := &device{info: info, place: place{t.machine, fabric}}
	switch {
	case info.Mode == cuda.ModeExclusiveProcess, info.Mode == cuda.ModeProhibited:
		// If it could be opened, the application's own process could not.
		return nil, &cuda.MissingError{
			What: fmt.Sprintf("GPU %d (%s) for more than one process: its compute mode is %s, and the application and this plugin are two", info.Ordinal, info.Name, info.Mode),
			Do:   fmt.Sprintf("nvidia-smi -i %d -c DEFAULT", info.Ordinal),
		}
	case !info.VMM:
		return nil, &cuda.MissingError{
			What: fmt.Sprintf("virtual memory management of GPU %d (%s)", info.Ordinal, info.Name),
			Do:   "use a newer GPU or driver, and a GPU that is not virtual",
		}
	}
	var err error
	if d.imports, err = t.driver.Open(info.Ordinal); err != nil {
		return nil, err
	}
	if d.copies, err = t.driver.Open(info.Ordinal); err != nil {
		return nil, errors.Join(err, d.imports.Close())
	}
	if err = d.probe(); err != nil {
		return nil, errors.Join(err, d.copies.Close(), d.imports.Close())
	}
	d.cache = mapping.New(t.importer(d), mapping.Options{
		MaxMappings: maxMappings, Idle: time.Duration(t.settings.MappingIdleSecs) * time.Second,
		On: func(e mapping.Event) { t.told(d, e) },
	})
	d.worker = startWorker(t, d, t.settings.Streams)
	return d, nil
}

// told is told of mappings. That the driver keeps a peer's memory mapped is for
// whoever runs the machine: the peer waits for it before that is free. Failed
// imports are the ops' errors, which say less than the driver.
func (t *Transport) told(d *device, e mapping.Event) {
	switch e.What {
	case mapping.StepRefused:
		t.Log.Warn("the driver refuses to give back a peer's memory, and is asked again", "gpu", d.info.Ordinal,
			"peer", e.Key.Provider, "region", e.Key.Capability, "cause", e.Cause, "error", e.Err)
	case mapping.ImportFailed:
		t.Log.Debug("a peer's memory cannot be mapped", "gpu", d.info.Ordinal,
			"peer", e.Key.Provider, "region", e.Key.Capability, "error", e.Err)
	}
}

// probe tries which kinds of handles the driver grants.
func (d *device) probe() error {
	return d.imports.Do(func(c cuda.Context) error {
		for _, k := range everyKind() {
			a, err := cuda.Allocate(c, 1, k)
			if err == nil {
				d.grants = append(d.grants, k)
			}
			if a != nil {
				if err := closed(a.Close, c); err != nil {
					return err
				}
			}
			if err != nil && cuda.IsLost(err) {
				return err
			}
		}
		return nil
	})
}

// closed calls what gives something back, and once more if the driver refuses.
// With the context everything is given back that was made in it.
func closed(give func(cuda.Context) error, c cuda.Context) error {
	err := give(c)
	if err != nil && !cuda.IsLost(err) {
		err = give(c)
	}
	if cuda.IsLost(err) {
		return nil
	}
	return err
}

// close gives the device back, when there are no endpoints and no host regions
// any more. It may be called again after an error, and goes on.
func (d *device) close(ctx context.Context) error {
	d.worker.close()
	if err := d.cache.Close(ctx); err != nil {
		return err
	}
	return errors.Join(d.copies.Close(), d.imports.Close())
}

// String describes it for people.
func (d *device) String() string {
	var kinds []string
	for _, k := range d.grants {
		kinds = append(kinds, k.String())
	}
	s := fmt.Sprintf("GPU %d, %s, handles that can be created: %s", d.info.Ordinal, d.info.Name, strings.Join(kinds, ", "))
	if f := formatFabric(d.place.fabric); f != "" {
		s += ", fabric " + f
	}
	return s
}

// importer returns what the cache of a device imports with.
func (t *Transport) importer(d *device) mapping.Import[cuda.Ptr] {
	return func(ctx context.Context, s mapping.Source, c *mapping.Cleanup) (cuda.Ptr, error) {
		e, err := parseExport(s.Attributes, s.Length)
		if err != nil {
			return 0, err
		}
		writable, err := strconv.ParseBool(s.Attributes[attrWritable])
		if err != nil {
			return 0, err
		}
		shared := cuda.Shared{Kind: e.kind, Bytes: e.handle, Size: e.allocation}
		if e.kind == cuda.PosixFD {
			f, err := t.descriptor(ctx, s.Key, &e)
			if err != nil {
				return 0, err
			}
			// An import needs it no longer than it takes.
			defer c.Add(mapping.CloseDescriptor, "close the descriptor", f.Close).Now() //nolint:errcheck // it has its turn
			shared.FD = int(f.Fd())
		}
		if e.kind == cuda.IPC {
			base, err := t.handles.share(ctx, d, s.Key, shared, e.id, c)
			if err != nil {
				return 0, coded(err)
			}
			return base + cuda.Ptr(e.offset), nil
		}
		var m *cuda.Mapping
		err = d.imports.Do(func(c cuda.Context) (err error) {
			m, err = cuda.Import(c, shared, writable)
			return err
		})
		if m != nil { // beside an error: what could not be given back
			c.Add(mapping.Unmap, fmt.Sprintf("unmap %d bytes at %#x", m.Size, uint64(m.Base)), func() error { return d.unmap(m) })
		}
		if err != nil {
			return 0, coded(err)
		}
		return m.Base + cuda.Ptr(e.offset), nil
	}
}

// unmap unmaps, frees the addresses, closes and releases, in that order, and goes
// on where the driver refused.
func (d *device) unmap(m *cuda.Mapping) error {
	return d.imports.Do(func(c cuda.Context) error {
		if err := m.Close(c); !cuda.IsLost(err) {
			return err
		}
		return nil
	})
}

// descriptor gets a region's: from the region, if it is of this process's
// application, from its provider's plugin otherwise.
func (t *Transport) descriptor(ctx context.Context, k mapping.Key, e *export) (*os.File, error) {
	if k.Provider == t.self {
		return t.regions.descriptor(e.ticket, k.Capability)
	}
	return fetch(ctx, e.door, e.ticket, k.Capability)
}
