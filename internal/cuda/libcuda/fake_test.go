//go:build linux && (amd64 || arm64)

package libcuda

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ebitengine/purego"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// fake is a library of testdata/fake.c.
type fake struct {
	file string
	last func() string
	fail func(call string, result int32)
	held func() int32
}

func newFake(t *testing.T, flags ...string) *fake {
	t.Helper()
	f := &fake{file: filepath.Join(t.TempDir(), "fake.so")}
	args := append([]string{"-shared", "-fPIC", "-o", f.file}, flags...)
	if out, err := exec.Command("cc", append(args, "testdata/fake.c")...).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	h, err := purego.Dlopen(f.file, purego.RTLD_NOW)
	if err != nil {
		t.Fatal(err)
	}
	purego.RegisterLibFunc(&f.last, h, "fake_last")
	purego.RegisterLibFunc(&f.fail, h, "fake_fail")
	purego.RegisterLibFunc(&f.held, h, "fake_held")
	return f
}

func (f *fake) open(t *testing.T) cuda.Device {
	t.Helper()
	d, err := open(f.file).Open(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func TestNoLibrary(t *testing.T) {
	d := open("libcuda-that-nobody-has.so.1")
	_, err := d.Devices()
	_, err2 := d.Open(0)
	for _, err := range []error{err, err2} {
		var missing *cuda.MissingError
		if !errors.As(err, &missing) || missing.What != "libcuda-that-nobody-has.so.1" || missing.Do == "" {
			t.Errorf("%v", err)
		}
	}
}

// TestReason: what the loader says of a failure gets into the error, whatever
// the other threads do.
func TestReason(t *testing.T) {
	const name = "libcuda-that-nobody-has.so.1"
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 500 {
				if _, err := load(name); err == nil || strings.Contains(err.Error(), "()") {
					t.Errorf("%v", err)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestOldLibrary(t *testing.T) {
	f := newFake(t, "-DcuMemCreate=cuSomethingElse")
	_, err := open(f.file).Devices()
	var missing *cuda.MissingError
	if !errors.As(err, &missing) || !strings.HasPrefix(missing.What, "cuMemCreate in ") {
		t.Errorf("%v", err)
	}
}

func TestNoDevice(t *testing.T) {
	f := newFake(t)
	f.fail("cuInit", 100)
	d := open(f.file)
	if infos, err := d.Devices(); len(infos) != 0 || err != nil {
		t.Errorf("%v, %v", infos, err)
	}
	if _, err := d.Open(0); !errors.Is(err, cuda.NoDevice) {
		t.Errorf("%v", err)
	}
}

func TestDevices(t *testing.T) {
	infos, err := open(newFake(t).file).Devices()
	if err != nil || len(infos) != 2 {
		t.Fatalf("%v, %v", infos, err)
	}
	want := cuda.Info{
		Ordinal: 1, Name: "Fake GPU 11", UUID: cuda.UUID{11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26},
		Mode: cuda.ModeExclusiveProcess, VMM: true, PosixFD: true, EventIPC: true, ReadOnlyHost: true,
	}
	if infos[1] != want {
		t.Errorf("%+v", infos[1])
	}
	if s := want.UUID.String(); s != "GPU-0b0c0d0e-0f10-1112-1314-15161718191a" {
		t.Error(s)
	}
}

// TestContextIsReleased: whatever fails while a device is opened or used.
func TestContextIsReleased(t *testing.T) {
	f := newFake(t)
	for _, call := range []string{"cuDeviceGet", "cuDeviceGetName", "cuDeviceGetUuid_v2", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"} {
		f.fail(call, 46)
		_, err := open(f.file).Open(1)
		if !errors.Is(err, cuda.DeviceUnavailable) || f.held() != 0 {
			t.Errorf("%s fails: %v, and %d contexts are held", call, err, f.held())
		}
		var missing *cuda.MissingError
		if errors.As(err, &missing) != (call == "cuDevicePrimaryCtxRetain") {
			t.Errorf("%s fails: %v", call, err)
		}
	}
	f.fail("", 0)
	d := f.open(t)
	if err := d.Do(func(c cuda.Context) error { return c.(cuda.Busier).Busy(1, 1) }); err != nil {
		t.Fatal(err)
	}
	if f.held() != 1 {
		t.Errorf("%d contexts are held", f.held())
	}
	if err := d.Close(); err != nil || f.held() != 0 || f.last() != "unload 30" {
		t.Errorf("%v, and %d contexts are held; last %q", err, f.held(), f.last())
	}
}

// TestCalls: what arrives in C.
func TestCalls(t *testing.T) {
	f := newFake(t)
	d := f.open(t)
	mem, err := os.ReadFile("testdata/fake.c")
	if err != nil {
		t.Fatal(err)
	}
	var shared cuda.Shared
	for i := range shared.Bytes {
		shared.Bytes[i] = byte(i * 3)
	}
	as := func(k cuda.Kind) cuda.Shared { s := shared; s.Kind, s.FD = k, 77; return s }
	register := func(c cuda.Context) error { return c.RegisterHost(mem[:4096], false) }
	for _, e := range []struct {
		call func(cuda.Context) error
		want string
	}{
		{func(c cuda.Context) error {
			h, err := c.Create(3<<32, cuda.Fabric|cuda.PosixFD)
			return is(err, h, 0x1122334455667788)
		}, "create 12884901888 type 1 kinds 9 where 1 id 11 rest 0 flags 0"},
		{func(c cuda.Context) error { return c.Release(0x1122334455667788) }, "release 1122334455667788"},
		{func(c cuda.Context) error { h, err := c.Import(as(cuda.Fabric)); return is(err, h, 7) }, "import fabric 0 bd"},
		{func(c cuda.Context) error { h, err := c.Import(as(cuda.PosixFD)); return is(err, h, 7) }, "import fd 77"},
		{func(c cuda.Context) error { p, err := c.Reserve(3 << 32); return is(err, p, 0x7f0000000000) }, "reserve 12884901888 0 0 0"},
		{func(c cuda.Context) error { return c.Map(0x7f0000000000, 3<<32, 7) }, "map 7f0000000000 12884901888 0 7 0"},
		{func(c cuda.Context) error { return c.SetAccess(0x7f0000000000, 3<<32, true) }, "access 7f0000000000 12884901888 where 1 id 11 flags 3 count 1"},
		{func(c cuda.Context) error { return c.SetAccess(0x7f0000000000, 3<<32, false) }, "access 7f0000000000 12884901888 where 1 id 11 flags 1 count 1"},
		{func(c cuda.Context) error { p, err := c.OpenIPC(as(cuda.IPC)); return is(err, p, 0x7d0000000000) }, "open 1 flags 1"},
		{func(c cuda.Context) error { e, err := c.OpenEvent(shared.Bytes); return is(err, e, 0xee) }, "open 1 flags 0"},
		{func(c cuda.Context) error { return c.RegisterHost(mem[5000:5064], true) }, "register 64 9"},
		{register, "register 4096 1"},
		{func(c cuda.Context) error { return c.Copy(0x7f0000000000, cuda.Host(mem)+96, 4000, 0x51) }, "h2d 4000 stream 51"},
		{func(c cuda.Context) error { return c.Copy(cuda.Host(mem), 0x7f0000000000, 4096, 0x51) }, "d2h 4096 stream 51"},
		{func(c cuda.Context) error {
			for _, err := range []error{ // in part, both
				c.Copy(0x7f0000000000, cuda.Host(mem)+96, 4001, 0x51), c.Copy(cuda.Host(mem)+96, 0x7f0000000000, 4001, 0x51),
				c.Copy(cuda.Host(mem), cuda.Host(mem)+96, 1, 0x51),
			} {
				if !errors.Is(err, cuda.InvalidValue) {
					return fmt.Errorf("not refused: %w", err)
				}
			}
			return nil
		}, "d2h 4096 stream 51"},
		{func(c cuda.Context) error { return c.UnregisterHost(mem[:4096]) }, "d2h 4096 stream 51"},
		{func(c cuda.Context) error { return c.Copy(0x7f0000000000, cuda.Host(mem)+96, 4000, 0x51) }, "d2d 4000 stream 51"},
		{func(c cuda.Context) error { return c.Write(0x7f0000000000, mem[:5000], 0x51) }, "h2d 5000 stream 51"},
		{func(c cuda.Context) error { return c.Read(mem[:5000], 0x7f0000000000, 0x51) }, "d2h 5000 stream 51"},
		{func(c cuda.Context) error { return c.Set(0x7f0000000000, 0xab, 3<<32, 0x51) }, "set ab 12884901888 stream 51"},
		{func(c cuda.Context) error { s, err := c.CreateStream(); return is(err, s, 0x51) }, "stream 1"},
		{func(c cuda.Context) error { e, err := c.CreateEvent(false); return is(err, e, 0xe) }, "event 2"},
		{func(c cuda.Context) error { e, err := c.CreateEvent(true); return is(err, e, 0xe) }, "event 6"},
		{func(c cuda.Context) error { return c.Wait(0x51, 0xe) }, "wait 51 e 0"},
		{func(c cuda.Context) error { return c.(cuda.Busier).Busy(5<<32, 0x51) }, "launch f grid 1 1 1 block 1 1 1 shared 0 stream 51 ns 21474836480 extra 0"},
	} {
		if err := d.Do(e.call); err != nil || f.last() != e.want {
			t.Errorf("%v: called as %q, want %q", err, f.last(), e.want)
		}
	}
}

func is[N ~uint64](err error, got, want N) error {
	if err == nil && got != want {
		return errors.New("another number came back")
	}
	return err
}

// TestAnswers: what comes back from C.
func TestAnswers(t *testing.T) {
	f := newFake(t)
	d := f.open(t)
	if err := d.Do(func(c cuda.Context) error {
		if free, total, err := c.Memory(); free != 5<<32 || total != 6<<32 || err != nil {
			t.Errorf("memory: %d, %d, %v", free, total, err)
		}
		want := cuda.PointerInfo{Base: 0x1000, Size: 0x5000, MappingBase: 0x2000, MappingSize: 0x2000, Device: 1, Kinds: cuda.Fabric | cuda.PosixFD | cuda.IPC}
		if i, err := c.Pointer(0x2345); i != want || err != nil {
			t.Errorf("pointer: %+v, %v", i, err)
		}
		driver := open(f.file)
		if n, err := driver.Where(0x2345); n != 1 || err != nil {
			t.Errorf("where: %d, %v", n, err)
		}
		for p, what := range map[cuda.Ptr]string{1: "nothing that the driver knows", 0x9999: "host memory", 0x8888: "managed memory"} {
			_, where := driver.Where(p)
			_, pointer := c.Pointer(p)
			for _, err := range []error{where, pointer} {
				if !errors.Is(err, cuda.InvalidValue) || !strings.Contains(err.Error(), what) {
					t.Errorf("%#x: %v, not %s", p, err, what)
				}
			}
		}
		s, err := c.Export(1, cuda.Fabric)
		if s.Bytes[0] != 0xfa || s.Bytes[63] != 0xfa || err != nil {
			t.Errorf("export: %+v, %v", s, err)
		}
		if s, err = c.Export(1, cuda.PosixFD); s.FD != 1000 || err != nil {
			t.Errorf("export: %+v, %v", s, err)
		}
		for _, busy := range []uint64{0x51, 0x52} {
			if idle, err := c.QueryStream(cuda.Stream(busy)); idle != (busy == 0x52) || err != nil {
				t.Errorf("stream %#x: %v, %v", busy, idle, err)
			}
		}
		for _, busy := range []uint64{0xe, 0xf} {
			if done, err := c.QueryEvent(cuda.Event(busy)); done != (busy == 0xf) || err != nil {
				t.Errorf("event %#x: %v, %v", busy, done, err)
			}
		}
		f.fail("cuEventQuery", 700)
		if done, err := c.QueryEvent(1); done || !errors.Is(err, cuda.IllegalAddress) || !cuda.IsLost(err) {
			t.Errorf("failed event: %v, %v", done, err)
		}
		f.fail("cuMemCreate", 800)
		_, err = c.Create(1, cuda.Fabric)
		if text := "cuMemCreate of 1 bytes, fabric, on GPU 1: CUDA_ERROR_NOT_PERMITTED: fabric handles need"; err == nil || !strings.HasPrefix(err.Error(), text) {
			t.Errorf("%v", err)
		}
		f.fail("cuMemUnmap", 12345)
		if err := c.Unmap(1, 2); err == nil || err.Error() != "cuMemUnmap of 2 bytes at 0x1: CUDA error 12345" {
			t.Errorf("%v", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
