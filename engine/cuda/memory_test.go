//go:build linux

package cuda

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hawser-transport/hawser/engine"
	driver "github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/internal/cuda/local"
	"github.com/hawser-transport/hawser/internal/cuda/simcuda"
)

// TestMemory: bytes that go in come out, by the memory and by an importer.
func TestMemory(t *testing.T) {
	l := newLab(t)
	gpu := len(l.app) - 1
	m, err := l.gpus.Allocate(gpu, 1<<20+1)
	if err != nil {
		t.Fatal(err)
	}
	if m.Len() != 1<<20+1 || m.Device() != gpu || m.Pointer() == 0 {
		t.Errorf("%d bytes at %#x of GPU %d", m.Len(), m.Pointer(), m.Device())
	}
	in, out := make([]byte, 1<<20), make([]byte, 1<<20)
	for i := range in {
		in[i] = byte(i * 13)
	}
	if n, err := m.WriteAt(in, 1); n != len(in) || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := m.ReadAt(out, 1); n != len(out) || err != nil || !bytes.Equal(in, out) {
		t.Errorf("%d, %v, or other bytes", n, err)
	}
	for _, c := range []struct {
		at int64
		n  int
	}{{2, len(in)}, {-1, 1}, {1<<20 + 2, 0}, {1 << 62, 1}} {
		if n, err := m.ReadAt(out[:c.n], c.at); n != 0 || !errors.Is(err, engine.InvalidArgument) {
			t.Errorf("%d bytes at %d: %d, %v", c.n, c.at, n, err)
		}
	}
	e, w := l.open()
	r, err := l.gpus.Register(e, m.Pointer()+1, 1<<20, engine.RegionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := w.last(); !bytes.Equal(l.imported(got, len(in)), in) {
		t.Error("the other process has read other bytes")
	}
	l.shut(r)
	if err := l.gpus.Close(); !errors.Is(err, engine.Busy) || !strings.Contains(err.Error(), "1 Memory") {
		t.Errorf("closed with memory: %v", err)
	}
	if _, err := l.gpus.Allocate(gpu, 1); !errors.Is(err, engine.Closed) {
		t.Errorf("allocated after Close: %v", err)
	}
	for range 2 {
		if err := m.Free(); err != nil {
			t.Error(err)
		}
	}
	if _, err := m.ReadAt(out, 0); !errors.Is(err, engine.Closed) {
		t.Errorf("read after Free: %v", err)
	}
	for range 2 {
		if err := l.gpus.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := m.WriteAt(out, 0); !errors.Is(err, engine.Closed) {
		t.Errorf("written after Close: %v", err)
	}
}

func TestAllocateRefused(t *testing.T) {
	l := newLab(t)
	for _, c := range []struct {
		gpu  int
		size uint64
		want error
	}{{0, 0, engine.InvalidArgument}, {len(l.app), 1, engine.InvalidArgument}, {-1, 1, engine.InvalidArgument}, {0, 1 << 50, engine.Busy}} {
		if m, err := l.gpus.Allocate(c.gpu, c.size); m != nil || !errors.Is(err, c.want) {
			t.Errorf("%d bytes on GPU %d: %v", c.size, c.gpu, err)
		}
	}
}

// TestMemoryGoesOn where the driver has refused something.
func TestMemoryGoesOn(t *testing.T) {
	l := newLab(t, func(*simcuda.Options) {})
	l.eachCallFails(func(g *GPUs) error {
		m, err := g.Allocate(0, 100)
		if err != nil {
			return err
		}
		_, wrote := m.WriteAt([]byte{1}, 5)
		_, read := m.ReadAt(make([]byte, 1), 5)
		return errors.Join(wrote, read, again(m.Free))
	})
}

// TestAtOnce: several goroutines use the same GPUs.
func TestAtOnce(t *testing.T) {
	l := newLab(t)
	e, _ := l.open()
	var users sync.WaitGroup
	for i := range 8 {
		users.Go(func() {
			m, err := l.gpus.Allocate(i%len(l.app), 1<<16)
			if err != nil {
				t.Error(err)
				return
			}
			in := bytes.Repeat([]byte{byte(i)}, 1<<16)
			_, err = m.WriteAt(in, 0)
			r, err2 := l.gpus.Register(e, m.Pointer(), m.Len(), engine.RegionOptions{})
			if err := errors.Join(err, err2); err != nil {
				t.Error(err)
				return
			}
			l.shut(r)
			out := make([]byte, len(in))
			_, err = m.ReadAt(out, 0)
			if err := errors.Join(err, m.Free()); err != nil || !bytes.Equal(in, out) {
				t.Errorf("%v, or other bytes", err)
			}
		})
	}
	users.Wait()
}

// TestLost: what was made in a context that is lost went with it.
func TestLost(t *testing.T) {
	l := newLab(t, func(*simcuda.Options) {})
	d, err := l.gpus.use(0)
	if err != nil {
		t.Fatal(err)
	}
	m, err := l.gpus.Allocate(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range []string{"cuMemcpyHtoD", "cuMemUnmap"} {
		l.sim.Inject(simcuda.Injection{Call: call, Result: driver.IllegalAddress})
	}
	if _, err := m.WriteAt([]byte{1}, 0); !errors.Is(err, engine.Unavailable) || !driver.IsLost(err) {
		t.Errorf("%v", err)
	}
	if err := m.Free(); err != nil || d.memories != 0 {
		t.Errorf("%v, %d memories", err, d.memories)
	}
	// The injected loss is the call's alone: give back what is still there.
	if err := l.app[0].Do(m.a.Close); err != nil {
		t.Error(err)
	}
}

// TestOpen: without a driver, without a GPU, on a simulated machine, and on one
// that another process has for itself.
func TestOpen(t *testing.T) {
	if hardware() != nil {
		t.Skip("SKIPPED, on the simulated machine only")
	}
	machine := func(o simcuda.Options) {
		b, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "machine.json")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv(local.Simulation, file)
	}
	machine(simcuda.Options{Missing: "libcuda.so.1"})
	if _, err := Open(); !errors.Is(err, engine.Unsupported) || !strings.Contains(err.Error(), "missing libcuda.so.1") {
		t.Errorf("without a driver: %v", err)
	}
	machine(simcuda.Options{})
	if _, err := Open(); !errors.Is(err, engine.Unsupported) || !strings.Contains(err.Error(), "there is no GPU") {
		t.Errorf("without a GPU: %v", err)
	}
	machine(simcuda.Options{Devices: []simcuda.Device{{Name: "One"}, {Mode: driver.ModeProhibited}}})
	g, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	if s := fmt.Sprint(g.Devices()); s != "[GPU 0 (One) GPU 1 (Simulated GPU)]" {
		t.Error(s)
	}
	if _, err := g.Allocate(1, 1); !errors.Is(err, engine.Unsupported) {
		t.Errorf("a prohibited GPU: %v", err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	t.Setenv(local.Simulation, filepath.Join(t.TempDir(), "nothing"))
	if _, err := Open(); !errors.Is(err, engine.Unavailable) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a simulated machine that is not there: %v", err)
	}
}
