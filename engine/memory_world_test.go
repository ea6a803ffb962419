//go:build linux

package engine

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/engine/internal/descriptor"
	"github.com/hawser-transport/hawser/engine/registry"
	"github.com/hawser-transport/hawser/sdk"
)

type bufferOf = descriptor.Buffer

func (l *lookups) Resolve(context.Context, string) (string, error) {
	n := int(l.n.Add(1))
	return l.answers[min(n, len(l.answers))-1], nil
}
func (l *lookups) Register(context.Context, registry.Self) error { return nil }
func (l *lookups) Close() error                                  { return nil }

// regionAt makes a region that has a chosen address for its peers: a new
// allocation may be at the place of an old one.
func (w *world) regionAt(e *Engine, size int, address uint64) *Region {
	w.t.Helper()
	r, err := e.newRegionAt(size, address)
	if err != nil {
		w.t.Fatal(err)
	}
	w.regions = append(w.regions, r)
	return r
}

func (e *Engine) newRegionAt(size int, address uint64) (*Region, error) {
	spare, err := e.AllocateHost(size, RegionOptions{Private: true})
	if err != nil {
		return nil, err
	}
	file, err := duplicate(spare.file)
	if err != nil {
		return nil, err
	}
	bytes, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	if err := spare.Close(context.Background()); err != nil {
		return nil, err
	}
	r := &Region{bytes: bytes, file: file, unmap: func() error { return unix.Munmap(bytes) },
		region: sdk.Region{Kind: sdk.HostMemory, Base: address, Length: uint64(size), File: file}}
	return r, e.memory.add(r)
}
