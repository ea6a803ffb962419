//go:build linux

package scenarios

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/sdk"
)

// block is a region, of host memory or of a GPU's.
type block struct {
	*engine.Region
	device *deviceMemory // or nil
}

// theirs makes a block that peers transfer to and from, of the first GPU, mine
// one for the local side, of the last one. The test's end closes it.
func (c carrier) theirs(t *testing.T, n *node, size int, opts engine.RegionOptions) *block {
	t.Helper()
	return c.block(t, n, c.remote, 0, size, opts)
}

func (c carrier) mine(t *testing.T, n *node, size int, opts engine.RegionOptions) *block {
	t.Helper()
	return c.block(t, n, c.local, -1, size, opts)
}

// block makes one of a GPU's memory that is shared as a kind, or, without one,
// of the host's.
func (c carrier) block(t *testing.T, n *node, k cuda.Kind, device, size int, opts engine.RegionOptions) (b *block) {
	t.Helper()
	var err error
	if k == 0 {
		b = &block{}
		b.Region, err = n.AllocateHost(size, opts)
	} else {
		all := c.gpus.all
		b, err = all[(len(all)+device)%len(all)].block(n.Engine, k, size, opts)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.close(briefly(t)); err != nil {
			t.Errorf("close a region of %s: %v", n.Self().Name, err)
		}
	})
	return b
}

func (g *gpu) block(e *engine.Engine, k cuda.Kind, size int, opts engine.RegionOptions) (*block, error) {
	m, err := g.allocate(size, k)
	if err != nil {
		return nil, err
	}
	r, err := m.register(e, uint64(m.Base), size, opts)
	if err != nil {
		return nil, errors.Join(err, m.free())
	}
	return &block{r, m}, nil
}

// register exports the memory's first bytes and registers them at an address,
// which no transport looks at.
func (m *deviceMemory) register(e *engine.Engine, address uint64, size int, opts engine.RegionOptions) (*engine.Region, error) {
	var x *cuda.Exported
	err := m.Do(func(c cuda.Context) (err error) {
		x, err = cuda.Export(c, m.Base, uint64(size), m.Kind)
		return err
	})
	if err != nil {
		return nil, err
	}
	of := engine.ExportedMemory{
		Address: address, Length: uint64(size), Offset: x.Offset, Allocation: x.Size,
		Device: m.Info().Ordinal, DeviceUUID: m.Info().UUID,
	}
	switch m.Kind {
	case cuda.PosixFD:
		of.HandleKind, of.File = sdk.FileHandle, os.NewFile(uintptr(x.FD), "exported")
		defer of.File.Close() //nolint:errcheck // the engine has a copy
	case cuda.Fabric:
		of.HandleKind, of.Handle = sdk.FabricHandle, x.Bytes[:]
	case cuda.IPC:
		of.HandleKind, of.Handle = sdk.IPCHandle, x.Bytes[:]
	}
	return e.RegisterHandle(of, opts)
}

// close closes the region, and then frees the memory.
func (b *block) close(ctx context.Context) error {
	err := b.Region.Close(ctx)
	if err == nil && b.device != nil {
		err = b.device.free()
	}
	return err
}

// bytes are the content: a GPU's memory is copied.
func (b *block) bytes(t *testing.T) []byte {
	t.Helper()
	return b.part(t, 0, int(b.Len()))
}

func (b *block) part(t *testing.T, at, n int) []byte {
	t.Helper()
	if b.device == nil {
		return b.Bytes()[at : at+n]
	}
	p := make([]byte, n)
	if _, err := b.device.ReadAt(p, int64(at)); err != nil {
		t.Error(err)
	}
	return p
}

// put writes at an offset.
func (b *block) put(at int, p []byte) error {
	if b.device == nil {
		copy(b.Bytes()[at:], p)
		return nil
	}
	_, err := b.device.WriteAt(p, int64(at))
	return err
}

// set is put for a test.
func (b *block) set(t *testing.T, at int, p []byte) {
	t.Helper()
	if err := b.put(at, p); err != nil {
		t.Error(err)
	}
}
