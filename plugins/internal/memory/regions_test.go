//go:build linux

package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// exported makes a region, of memory that the test can look into.
func exported(t *testing.T, size int, writable bool) (sdk.Region, sdktest.Memory) {
	t.Helper()
	m := sdktest.HostMemory(t, size)
	r, err := m.Export(writable)
	if err != nil {
		t.Fatal(err)
	}
	r.Capability, r.Base = sdk.Capability{7, 15: byte(size)}, 1<<40
	return r, m
}

func register(t *testing.T, table *Regions, size int, writable bool) (sdk.Capability, sdktest.Memory) {
	t.Helper()
	r, m := exported(t, size, writable)
	if _, err := table.Register(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = table.Close(context.Background()) })
	return r.Capability, m
}

// mappings are those of memory that the suite made.
func mappings(t *testing.T) (list []string) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(maps), "\n") {
		if strings.Contains(line, "hawser-sdktest") {
			list = append(list, line)
		}
	}
	return list
}

func memfd(t *testing.T, size int64, seals int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("hawser-sdktest", unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "memfd")
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return f
}

// What could make an access fail is refused, and what was refused is neither
// open nor mapped.
func TestRegisterRefuses(t *testing.T) {
	const shut = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	plain, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	constant := memfd(t, 8192, shut)
	readOnly, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", constant.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer constant.Close()
	host := func(f *os.File, offset, length uint64, writable bool) sdk.Region {
		return sdk.Region{Capability: sdk.Capability{1}, Kind: sdk.HostMemory, Base: 1 << 40, Length: length, Writable: writable, File: f, Offset: offset}
	}
	before := len(mappings(t))
	for name, c := range map[string]struct {
		r    sdk.Region
		code sdk.Code
		says string
	}{
		"it may shrink":       {host(memfd(t, 8192, unix.F_SEAL_GROW), 0, 8192, true), sdk.InvalidArgument, "F_SEAL_SHRINK"},
		"no seals":            {host(memfd(t, 8192, 0), 0, 8192, true), sdk.InvalidArgument, "F_SEAL_SHRINK"},
		"no memfd":            {host(plain, 0, 1, true), sdk.InvalidArgument, "no memfd"},
		"beyond the file":     {host(memfd(t, 8192, shut), 1, 8192, true), sdk.InvalidArgument, "not within its memfd of 8192"},
		"far beyond it":       {host(memfd(t, 8192, shut), 1<<62, 1<<61, true), sdk.InvalidArgument, "not within its memfd of 8192"},
		"read-only":           {host(readOnly, 0, 8192, true), sdk.InvalidArgument, "writable true"},
		"sealed from writing": {host(memfd(t, 8192, shut|unix.F_SEAL_WRITE), 0, 8192, true), sdk.InvalidArgument, "writable true"},
		"no capability":       {sdk.Region{Kind: sdk.HostMemory, Length: 1, File: memfd(t, 1, shut)}, sdk.InvalidArgument, "without a capability"},
		"device memory": {sdk.Region{
			Capability: sdk.Capability{1}, Kind: sdk.DeviceMemory, Length: 1, HandleKind: sdk.FileHandle, File: memfd(t, 1, shut), Allocation: 1,
		}, sdk.Unsupported, "host memory only"},
	} {
		var table Regions
		_, err := table.Register(t.Context(), c.r)
		if !errors.Is(err, c.code) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %v and %q", name, err, c.code, c.says)
		}
		if _, err := c.r.File.Stat(); err == nil {
			t.Errorf("%s: the file is open", name)
		}
	}
	if after := mappings(t); len(after) != before {
		t.Errorf("mapped: %q", after)
	}
}

func TestUseIsTheRange(t *testing.T) {
	var table Regions
	c, m := register(t, &table, 10_001, true)
	want := bytes.Repeat([]byte("0123456789"), 1000)
	if _, err := m.WriteAt(want, 1); err != nil {
		t.Fatal(err)
	}
	u, err := table.Use(c, true, 4, 9000)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(u.Bytes, want[3:9003]) || cap(u.Bytes) != 9000 {
		t.Errorf("%d bytes of %d: %.20q", len(u.Bytes), cap(u.Bytes), u.Bytes)
	}
	copy(u.Bytes, "written")
	u.End()
	got := make([]byte, 9)
	if _, err := m.ReadAt(got, 3); err != nil || string(got) != "2written0" {
		t.Errorf("%q, %v", got, err)
	}
}

// A region that is registered read-only is mapped so: not even a mistake writes
// to it.
func TestUseChecks(t *testing.T) {
	var table Regions
	c, _ := register(t, &table, 5000, false)
	if maps := mappings(t); len(maps) != 1 || !strings.Contains(maps[0], " r--s ") {
		t.Errorf("mapped as %q", maps)
	}
	other := c
	other[3]++
	for _, k := range []struct {
		c              sdk.Capability
		write          bool
		offset, length uint64
		want           sdk.Code
	}{
		{c, false, 0, 5000, 0}, {c, false, 4999, 1, 0},
		{c, false, 1, 5000, sdk.InvalidArgument}, {c, false, 5000, 1, sdk.InvalidArgument},
		{c, false, 1<<64 - 1, 2, sdk.InvalidArgument}, {c, false, 0, 1 << 63, sdk.InvalidArgument},
		{c, true, 0, 1, sdk.Refused}, {other, false, 0, 1, sdk.StaleCapability}, {sdk.Capability{}, false, 0, 1, sdk.StaleCapability},
	} {
		u, err := table.Use(k.c, k.write, k.offset, k.length)
		if sdk.CodeOf(err) != k.want {
			t.Errorf("%+v: %v", k, err)
		}
		if err == nil {
			u.End()
		}
	}
	r, _ := exported(t, 5000, true)
	if _, err := table.Register(t.Context(), r); !errors.Is(err, sdk.Busy) {
		t.Errorf("registered twice: %v", err)
	}
	if n := len(mappings(t)); n != 1 {
		t.Errorf("%d mappings", n)
	}
}

func TestDeregisterWaits(t *testing.T) {
	var table Regions
	c, m := register(t, &table, 5000, true)
	u, err := table.Use(c, true, 0, 5000)
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		if err := table.Deregister(over, c); !errors.Is(err, sdk.Busy) || !strings.Contains(err.Error(), "1 ops are under way") {
			t.Errorf("in use: %v", err)
		}
	}
	if _, err := table.Use(c, false, 0, 1); !errors.Is(err, sdk.StaleCapability) {
		t.Errorf("a use of one that leaves: %v", err)
	}
	r, _ := exported(t, 5000, true)
	if _, err := table.Register(t.Context(), r); !errors.Is(err, sdk.Busy) {
		t.Errorf("registered while it leaves: %v", err)
	}
	left := table.table[c]
	// Those that wait return when it is over, whoever unmaps.
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := table.Deregister(t.Context(), c); err != nil {
				t.Error(err)
			}
		})
	}
	copy(u.Bytes, "it is mapped")
	u.End()
	all.Wait()
	if maps := mappings(t); len(maps) != 0 {
		t.Errorf("mapped: %q", maps)
	}
	if err := table.drop(left); err != nil { // who comes later finds it done
		t.Error(err)
	}
	b := make([]byte, 12)
	if _, err := m.ReadAt(b, 0); err != nil || string(b) != "it is mapped" {
		t.Errorf("%q, %v", b, err)
	}
	if err := table.Deregister(over, c); err != nil {
		t.Errorf("again: %v", err)
	}
}

// Uses, registrations and releases of one region at once: a use of what is not
// mapped would kill the test.
func TestUsesUnderLoad(t *testing.T) {
	var table Regions
	m := sdktest.HostMemory(t, 9000)
	c := sdk.Capability{5}
	end := make(chan struct{})
	var all, busy sync.WaitGroup
	touched := make(chan int, 4)
	for range cap(touched) {
		busy.Go(func() {
			n := 0
			defer func() { touched <- n }()
			for {
				select {
				case <-end:
					return
				default:
				}
				if u, err := table.Use(c, true, 1000, 8000); err == nil {
					u.Bytes[7999]++
					clear(u.Bytes[:100])
					u.End()
					n++
				} else if !errors.Is(err, sdk.StaleCapability) {
					t.Error(err)
				}
			}
		})
	}
	const rounds = 300
	mapped := 0
	for range rounds {
		r, err := m.Export(true)
		if err != nil {
			t.Fatal(err)
		}
		r.Capability, r.Base = c, 1<<40
		if _, err := table.Register(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		u, err := table.Use(c, false, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		mapped += len(u.Bytes)
		u.End()
		for range 3 {
			all.Go(func() {
				if err := table.Deregister(t.Context(), c); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	close(end)
	busy.Wait()
	total := 0
	for range cap(touched) {
		total += <-touched
	}
	if mapped != rounds || total == 0 || len(mappings(t)) != 0 {
		t.Errorf("%d of %d rounds, %d uses, mapped %q", mapped, rounds, total, mappings(t))
	}
}

func TestCloseForgetsAll(t *testing.T) {
	var table Table
	c, _ := register(t, &table.Regions, 100, true)
	_, _ = register(t, &table.Regions, 200, true)
	u, err := table.Regions.Use(c, true, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := table.Close(over); !errors.Is(err, sdk.Busy) {
		t.Errorf("in use: %v", err)
	}
	u.End()
	if err := table.Close(t.Context()); err != nil || len(mappings(t)) != 0 {
		t.Errorf("%v, mapped %q", err, mappings(t))
	}
	r, _ := exported(t, 300, true)
	if _, err := table.Register(t.Context(), r); !errors.Is(err, sdk.Closed) || len(mappings(t)) != 0 {
		t.Errorf("registered after Close: %v, mapped %q", err, mappings(t))
	}
}
