//go:build linux

package cuda

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/engine"
	driver "github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/internal/cuda/libcuda"
	"github.com/hawser-transport/hawser/internal/cuda/simcuda"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onGPUs runs the tests on this machine's GPUs, and fails without them.
const onGPUs = "HAWSER_GPU_TEST"

// hardware is this machine's driver, or nil.
var hardware = sync.OnceValue(func() driver.Driver {
	if os.Getenv(onGPUs) == "" {
		return nil
	}
	return libcuda.New()
})

// lab is a process of a machine: an application that calls the driver by
// itself, as Hawser knows nothing of, and the helper.
type lab struct {
	t       testing.TB
	options simcuda.Options
	driver  driver.Driver
	sim     *simcuda.Driver // nil on hardware
	gpus    *GPUs
	app     []driver.Device // the application's, one a GPU
	base    simcuda.Counts  // what the application itself holds
}

// newLab makes one with two GPUs, or on this machine. change is for a simulated
// one alone.
func newLab(t testing.TB, change ...func(*simcuda.Options)) *lab {
	t.Helper()
	l := &lab{t: t, driver: hardware()}
	if l.driver == nil {
		l.options = simcuda.Options{Dir: t.TempDir(), Devices: []simcuda.Device{{Fabric: simcuda.FabricWorks}, {Fabric: simcuda.FabricWorks}}}
		for _, f := range change {
			f(&l.options)
		}
		l.sim = l.process()
		l.driver = l.sim
	} else if len(change) > 0 {
		t.Skip("SKIPPED, on the simulated machine only")
	}
	var err error
	if l.gpus, err = open(held{l.driver}); err != nil {
		t.Fatal(err)
	}
	for i := range l.gpus.Devices() {
		d, err := l.driver.Open(i)
		if err != nil {
			t.Fatal(err)
		}
		l.app = append(l.app, d)
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		if err := l.gpus.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// held is a driver that the helper does not close.
type held struct{ driver.Driver }

// process starts another process of a simulated machine.
func (l *lab) process() *simcuda.Driver {
	l.t.Helper()
	d, err := simcuda.New(l.options)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		if c := d.Counts(); !c.IsClean() {
			l.t.Errorf("a process ended with %+v", c)
		}
		if err := d.Close(); err != nil {
			l.t.Error(err)
		}
	})
	return d
}

// do runs f as the application, on a GPU, and must succeed.
func (l *lab) do(gpu int, f func(c driver.Context) error) {
	l.t.Helper()
	if err := l.app[gpu].Do(f); err != nil {
		l.t.Fatal(err)
	}
}

const size = 4 << 20

// allocate makes memory of the application's, until the test's end. It skips
// where the machine does not grant the kind.
func (l *lab) allocate(gpu int, kind driver.Kind) *driver.Allocation {
	l.t.Helper()
	var a *driver.Allocation
	err := l.app[gpu].Do(func(c driver.Context) (err error) {
		a, err = driver.Allocate(c, size, kind)
		return err
	})
	if errors.Is(err, driver.NotPermitted) {
		l.t.Skipf("SKIPPED, this machine does not grant %v handles: %v", kind, err)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { l.do(gpu, a.Close) })
	return a
}

// copied runs do with a stream of the application's.
func (l *lab) copied(gpu int, do func(c driver.Context, s driver.Stream) error) {
	l.t.Helper()
	l.do(gpu, func(c driver.Context) error {
		s, err := c.CreateStream()
		if err != nil {
			return err
		}
		return errors.Join(do(c, s), c.DestroyStream(s))
	})
}

// witness is a transport that takes a GPU's memory, and keeps what it was told.
type witness struct {
	moving
	refuse error
	mu     sync.Mutex
	got    []sdk.Region
}

type moving interface {
	sdk.Transport
	sdk.Mover
}

func (w *witness) Register(_ context.Context, r sdk.Region) (sdk.Attributes, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse != nil {
		if r.File != nil {
			_ = r.File.Close()
		}
		return nil, w.refuse
	}
	w.got = append(w.got, r)
	return sdk.Attributes{}, r.Check()
}

func (w *witness) Deregister(_ context.Context, c sdk.Capability) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, r := range w.got {
		if r.Capability == c && r.File != nil {
			_ = r.File.Close()
			w.got[i].File = nil
		}
	}
	return nil
}

// last is the region that was registered last, and how many were.
func (w *witness) last() (r sdk.Region, n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.got) == 0 {
		return r, 0
	}
	return w.got[len(w.got)-1], len(w.got)
}

// open opens an engine with a witness.
func (l *lab) open() (*engine.Engine, *witness) {
	l.t.Helper()
	w := &witness{moving: sdktest.NewFabric(sdktest.FabricOptions{Moves: true}).New("a").(moving)}
	ctx, cancel := context.WithTimeout(l.t.Context(), 30*time.Second)
	defer cancel()
	e, err := engine.Open(ctx, engine.Config{
		Node:         engine.NodeConfig{Name: "a"},
		Notification: engine.NotificationConfig{RPCFallback: new(false)},
		Plugins:      engine.PluginsConfig{RunDir: l.t.TempDir()},
		Transports:   []engine.TransportConfig{{Name: "memory", InProcess: func() sdk.Transport { return w }}},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = e.Close(context.Background()) })
	return e, w
}

// shut closes a region.
func (l *lab) shut(r *engine.Region) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := r.Close(ctx); err != nil {
		l.t.Error(err)
	}
}

// imported copies the first bytes of a region as another process that has
// imported it, or, on hardware, as this one, which cannot open its own IPC
// handles.
func (l *lab) imported(r sdk.Region, n int) []byte {
	l.t.Helper()
	s := driver.Shared{Size: r.Allocation, Kind: map[sdk.HandleKind]driver.Kind{
		sdk.FileHandle: driver.PosixFD, sdk.FabricHandle: driver.Fabric, sdk.IPCHandle: driver.IPC,
	}[r.HandleKind]}
	copy(s.Bytes[:], r.Handle)
	if r.File != nil {
		fd, err := unix.Dup(int(r.File.Fd()))
		if err != nil {
			l.t.Fatal(err)
		}
		defer unix.Close(fd) //nolint:errcheck // test
		s.FD = fd
	}
	to := l.driver
	if l.sim != nil {
		to = l.process()
	} else if s.Kind == driver.IPC {
		l.t.Skip("SKIPPED, a process cannot open its own IPC handles")
	}
	dev, err := to.Open(0)
	if err != nil {
		l.t.Fatal(err)
	}
	b := make([]byte, n)
	err = dev.Do(func(c driver.Context) error {
		m, err := driver.Import(c, s, false)
		if err != nil {
			return err
		}
		stream, err := c.CreateStream()
		if err != nil {
			return err
		}
		return errors.Join(c.Read(b, m.Base+driver.Ptr(r.Offset), stream), c.DestroyStream(stream), m.Close(c))
	})
	if err := errors.Join(err, dev.Close()); err != nil {
		l.t.Fatal(err)
	}
	return b
}

// descriptors is how many this process has open, of anything.
func descriptors(t testing.TB) int {
	t.Helper()
	list, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
