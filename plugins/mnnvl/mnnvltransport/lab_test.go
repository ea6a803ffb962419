//go:build linux

package mnnvltransport

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/internal/cuda/libcuda"
	"github.com/hawser-transport/hawser/internal/cuda/simcuda"
	"github.com/hawser-transport/hawser/plugins/mnnvl/internal/nvml"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onGPUs runs the tests on this machine's GPUs, and fails without them.
const onGPUs = "HAWSER_GPU_TEST"

// hardware is this machine's driver, or nil where the tests run on a simulated
// machine of two GPUs.
var hardware = sync.OnceValue(func() cuda.Driver {
	if os.Getenv(onGPUs) == "" {
		return nil
	}
	return libcuda.New()
})

// lab is a machine with GPUs, with an application of its own process, whose
// memory is another's for the transports.
type lab struct {
	options simcuda.Options // of a simulated one
	app     cuda.Driver
	devices []cuda.Device
	streams []cuda.Stream // of the application's, one a device
	kinds   []cuda.Kind   // that memory is exported as, the first that is granted

	mu   sync.Mutex
	made int
}

// newLab makes one. change may change the simulated machine; what it asks for
// is then not to be had from a real one.
func newLab(t testing.TB, change ...func(*simcuda.Options)) *lab {
	t.Helper()
	l := &lab{kinds: []cuda.Kind{cuda.PosixFD}}
	if d := hardware(); d != nil {
		if len(change) > 0 {
			t.Skip("SKIPPED, on the simulated machine only")
		}
		l.app = d
	} else {
		l.options = simcuda.Options{Dir: t.TempDir(), Devices: []simcuda.Device{{Fabric: simcuda.FabricWorks}, {Fabric: simcuda.FabricWorks}}}
		for _, f := range change {
			f(&l.options)
		}
		l.app = l.process(t)
	}
	infos, err := l.app.Devices()
	if err != nil || len(infos) == 0 {
		t.Fatalf("devices: %v, %v", infos, err)
	}
	for i := range infos {
		d, err := l.app.Open(i)
		if err != nil {
			t.Fatal(err)
		}
		var s cuda.Stream
		err = d.Do(func(c cuda.Context) (err error) {
			s, err = c.CreateStream()
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		l.devices, l.streams = append(l.devices, d), append(l.streams, s)
		t.Cleanup(func() {
			err := d.Do(func(c cuda.Context) error { return c.DestroyStream(s) })
			if err = errors.Join(err, d.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	return l
}

// process is the driver of another process of the machine, or, on hardware, of
// this one.
func (l *lab) process(t testing.TB) cuda.Driver {
	t.Helper()
	if d := hardware(); d != nil {
		return d
	}
	d, err := simcuda.New(l.options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c := d.Counts(); !c.IsClean() {
			t.Errorf("a process ended with %+v", c)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// transport makes one in a process of its own.
func (l *lab) transport(t testing.TB) *Transport { return New(l.process(t), l.gpus()) }

// apart makes one in another process than the application's, whose events it may
// then open: on hardware it takes the binary.
func (l *lab) apart(t testing.TB) sdk.Transport {
	t.Helper()
	if hardware() != nil {
		return l.binary(t, plugin(t))
	}
	return l.transport(t)
}

// gpus is what the management library says of the machine, asked once: it takes
// its time.
func (l *lab) gpus() nvml.Reader {
	if hardware() != nil {
		return linked()
	}
	return nvml.Fake{}
}

var linked = sync.OnceValue(func() nvml.Fake {
	gpus, err := nvml.New().GPUs()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return gpus
})

// file writes the options for a plugin's binary.
func (l *lab) file(t testing.TB) string {
	t.Helper()
	b, err := json.Marshal(l.options)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "machine.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// memory is for a harness: the first of two regions is on the first device, the
// other one on the second.
func (l *lab) memory(t testing.TB, kind sdk.MemoryKind, size int) sdktest.Memory {
	t.Helper()
	if kind != sdk.DeviceMemory {
		return nil
	}
	l.mu.Lock()
	l.made++
	n := (l.made - 1) % len(l.devices)
	l.mu.Unlock()
	return l.on(t, n, size)
}

// deviceMemory is the application's. Its region is not the whole allocation.
type deviceMemory struct {
	d     cuda.Device
	a     *cuda.Allocation
	at    cuda.Ptr
	size  int
	kinds []cuda.Kind
	gone  bool

	// What ReadAt and WriteAt copy through.
	mu     sync.Mutex
	stage  []byte
	stream cuda.Stream
}

// skip is where regions begin in their allocation.
const skip = 8192

// on makes memory of a device.
func (l *lab) on(t testing.TB, n, size int) *deviceMemory {
	t.Helper()
	d := l.devices[n]
	m := &deviceMemory{d: d, size: size, kinds: l.kinds, stream: l.streams[n]}
	var err error
	m.stage, err = unix.Mmap(-1, 0, (size+4095)/4096*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	err = d.Do(func(c cuda.Context) (err error) {
		if m.a, err = cuda.Allocate(c, uint64(size+2*skip), m.kinds...); err != nil {
			return err
		}
		m.at = m.a.Base + skip
		return c.RegisterHost(m.stage, false)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := d.Do(func(c cuda.Context) error { return c.UnregisterHost(m.stage) })
		if err = errors.Join(err, unix.Munmap(m.stage), m.free()); err != nil {
			t.Error(err)
		}
	})
	return m
}

// free frees the application's hold of the memory, once.
func (m *deviceMemory) free() error {
	if m.gone {
		return nil
	}
	m.gone = true
	return m.d.Do(m.a.Close)
}

func (m *deviceMemory) copy(do func(c cuda.Context, stage cuda.Ptr) error) error {
	return m.d.Do(func(c cuda.Context) error {
		if err := do(c, cuda.Host(m.stage)); err != nil {
			return err
		}
		return c.SyncStream(m.stream)
	})
}

func (m *deviceMemory) ReadAt(b []byte, offset int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if int(offset)+len(b) > m.size {
		return 0, fmt.Errorf("%d bytes at %d of %d", len(b), offset, m.size)
	}
	err := m.copy(func(c cuda.Context, stage cuda.Ptr) error {
		return c.Copy(stage, m.at+cuda.Ptr(offset), uint64(len(b)), m.stream)
	})
	return copy(b, m.stage), err
}

func (m *deviceMemory) WriteAt(b []byte, offset int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if int(offset)+len(b) > m.size {
		return 0, fmt.Errorf("%d bytes at %d of %d", len(b), offset, m.size)
	}
	copy(m.stage, b)
	return len(b), m.copy(func(c cuda.Context, stage cuda.Ptr) error {
		return c.Copy(m.at+cuda.Ptr(offset), stage, uint64(len(b)), m.stream)
	})
}

func (m *deviceMemory) Export(writable bool) (sdk.Region, error) {
	var e *cuda.Exported
	err := m.d.Do(func(c cuda.Context) (err error) {
		e, err = cuda.Export(c, m.at, uint64(m.size), m.kinds...)
		return err
	})
	if err != nil {
		return sdk.Region{}, err
	}
	r := sdk.Region{
		Kind: sdk.DeviceMemory, Length: uint64(m.size), Writable: writable, Device: m.d.Info().Ordinal,
		DeviceUUID: m.d.Info().UUID, Offset: e.Offset, Allocation: e.Size,
	}
	switch e.Kind {
	case cuda.PosixFD:
		r.HandleKind, r.File = sdk.FileHandle, os.NewFile(uintptr(e.FD), "exported") // whose descriptor it is now
	case cuda.Fabric:
		r.HandleKind, r.Handle = sdk.FabricHandle, e.Bytes[:]
	case cuda.IPC:
		r.HandleKind, r.Handle = sdk.IPCHandle, e.Bytes[:]
	}
	return r, nil
}

// eventually fails unless f succeeds soon.
func eventually(t testing.TB, f func() error) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

// producer is the application's work on a device, with an event behind it.
type producer struct {
	t testing.TB
	l *lab
	m *deviceMemory
	e cuda.Event
	h cuda.EventHandle
}

// producer makes one that writes to memory of the first device.
func (l *lab) producer(t testing.TB, m *deviceMemory) *producer {
	t.Helper()
	p := &producer{t: t, l: l, m: m}
	p.do(func(c cuda.Context) (err error) {
		if p.e, err = c.CreateEvent(true); err != nil {
			return err
		}
		p.h, err = c.ExportEvent(p.e)
		return err
	})
	t.Cleanup(func() {
		p.settle() // its memory goes next
		p.do(func(c cuda.Context) error { return c.DestroyEvent(p.e) })
	})
	p.produce(0, time.Nanosecond) // loads its kernel
	p.settle()
	return p
}

func (p *producer) do(f func(c cuda.Context) error) {
	p.t.Helper()
	if err := p.m.d.Do(f); err != nil {
		p.t.Fatal(err)
	}
}

// produce begins work that takes its time and then writes a value everywhere,
// and returns the event that it has ended.
func (p *producer) produce(value byte, takes time.Duration) *[sdk.EventBytes]byte {
	p.t.Helper()
	p.do(func(c cuda.Context) error {
		if err := c.(cuda.Busier).Busy(uint64(takes), p.m.stream); err != nil {
			return err
		}
		if err := c.Set(p.m.at, value, uint64(p.m.size), p.m.stream); err != nil {
			return err
		}
		return c.Record(p.e, p.m.stream)
	})
	return (*[sdk.EventBytes]byte)(&p.h)
}

// settle waits for the work.
func (p *producer) settle() {
	p.t.Helper()
	p.do(func(c cuda.Context) error { return c.SyncStream(p.m.stream) })
}
