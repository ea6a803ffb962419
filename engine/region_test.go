//go:build linux

package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// Close lets what is under way end, takes no new op, and returns once neither
// side has anything of the region.
func TestCloseWaitsForConsumers(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		fill(mine.Bytes(), 5)
		w.fast.HoldWrites("b:1", true)
		x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
		synctest.Wait()
		short, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		err := theirs.Close(short)
		if !errors.Is(err, Busy) || !strings.Contains(err.Error(), "consumer a:1") {
			t.Errorf("%v", err)
		}
		if isClosed(x.Done()) {
			t.Fatalf("%v", x.Results())
		}
		list := b.Mappings()
		if len(list) != 1 || list[0].State != MappingHeld || list[0].Peer != "a:1" || list[0].Consumer {
			t.Errorf("%+v", list)
		}
		if list := a.Mappings(); len(list) != 1 || !list[0].Consumer || list[0].Leases != 1 {
			t.Errorf("%+v", list)
		}
		late := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
		if err := w.done(late); !errors.Is(err, StaleCapability) || !errors.Is(err, NotSent) {
			t.Errorf("a new op: %v", err)
		}
		closed := make(chan error, 1)
		go func() { closed <- theirs.Close(context.Background()) }()
		synctest.Wait()
		if len(closed) > 0 {
			t.Fatalf("closed with an op under way: %v", <-closed)
		}
		w.fast.HoldWrites("b:1", false)
		if err := w.done(x); err != nil {
			t.Errorf("what was under way failed: %v", err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		own, _ := w.fast.Regions("b:1")
		_, remote := w.fast.Regions("a:1")
		if own+remote != 0 || len(a.Mappings())+len(b.Mappings()) != 0 || b.Stats().Regions != 0 {
			t.Errorf("left: %d regions, %d mappings, %+v, %+v", own, remote, a.Mappings(), b.Mappings())
		}
		if err := theirs.Close(context.Background()); err != nil {
			t.Errorf("once more: %v", err)
		}
	})
}

// A region that is closed while three consumers read and write: no op on a live
// capability fails, none touches what the owner has next at that place.
func TestCloseUnderLoad(t *testing.T) {
	moving(t, func(w *world) {
		b := w.open("b:1")
		engines := []*Engine{b}
		type consumer struct {
			e    *Engine
			g    *Segment
			mine *Region
		}
		var consumers []consumer
		for _, at := range []string{"a:1", "c:1", "d:1"} {
			e := w.open(at)
			engines = append(engines, e)
			consumers = append(consumers, consumer{e, w.segment(e, "b:1"), w.region(e, 4096, RegionOptions{})})
		}
		w.fast.Delay("", "b:1", "", time.Millisecond)
		for round := range 20 {
			r := w.regionAt(b, 4096, 1<<40)
			fill(r.Bytes(), byte(round))
			synctest.Wait()
			var xs []*Transfer
			for i, c := range consumers {
				kind := []OpKind{Read, Write}[(i+round)%2]
				fill(c.mine.Bytes(), byte(round))
				for range 5 {
					xs = append(xs, w.submit(c.e, SubmitOptions{}, Op{Kind: kind, Local: c.mine, Segment: c.g, Address: 1 << 40, Capability: r.Capability(), Length: 4096}))
				}
			}
			time.Sleep(time.Duration(round) * 100 * time.Microsecond)
			if err := r.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
			for _, x := range xs {
				if !isClosed(x.Done()) {
					t.Fatal("closed with an op under way")
				}
				if err := w.done(x); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			}
			for _, c := range consumers {
				if !bytes.Equal(c.mine.Bytes(), filled(4096, byte(round))) {
					t.Error("other bytes were read")
				}
			}
		}
		for _, c := range consumers {
			_ = c.g.Close()
		}
		w.shut(engines...)
		w.giveUp()
	})
}

// Who a region waits for: not for the dead, nor for who has been silent for
// twice the longest deadline, unless the memory was exported: then for an
// operator's word.
func TestWhoIsWaitedFor(t *testing.T) {
	for _, tt := range []struct {
		name     string
		exported bool
		leave    func(w *world, a *Engine)
		waits    time.Duration // at least
		operator bool
	}{
		{"goodbye", false, func(w *world, a *Engine) { w.shut(a) }, 0, false},
		{"killed", false, func(w *world, a *Engine) { w.vanish(a) }, 0, false},
		{"killed, exported", true, func(w *world, a *Engine) { w.vanish(a) }, 0, false},
		{"silent", false, func(w *world, a *Engine) { w.freeze(a) }, silence, false},
		{"silent, exported", true, func(w *world, a *Engine) { w.freeze(a) }, silence, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			moving(t, func(w *world) {
				a, b := w.open("a:1"), w.open("b:1")
				mine, theirs := w.region(a, 100, RegionOptions{}), w.region(b, 100, RegionOptions{})
				g := w.segment(a, "b:1")
				if err := w.write(a, mine, theirs, g, 100); err != nil {
					t.Fatal(err)
				}
				if tt.exported {
					theirs.region.HandleKind = sdk.IPCHandle
				}
				tt.leave(w, a)
				began := time.Now()
				limit := 2 * silence
				ctx, cancel := context.WithTimeout(context.Background(), limit)
				defer cancel()
				err := theirs.Close(ctx)
				took := time.Since(began)
				if tt.operator {
					if !errors.Is(err, Busy) || !strings.Contains(err.Error(), "silent for") {
						t.Errorf("%v after %v", err, took)
					}
					if n, err := b.RetireMappings(context.Background(), a.incarnation.Short()); n != 1 || err != nil {
						t.Errorf("retired %d, %v", n, err)
					}
					if err := theirs.Close(context.Background()); err != nil {
						t.Error(err)
					}
				} else if err != nil || took < tt.waits-time.Minute || took > tt.waits+5*time.Minute {
					t.Errorf("%v after %v, want %v", err, took, tt.waits)
				}
				w.thaw(a)
				_ = g.Close()
				ended, stop := context.WithTimeout(context.Background(), time.Second)
				defer stop()
				_ = a.Close(ended)
				w.shut(b)
				w.giveUp()
			})
		})
	}
}

// vanish ends an engine as SIGKILL would.
func (w *world) vanish(e *Engine) {
	w.network.Vanish(e.address)
	w.fast.Kill(e.address)
	w.slow.Kill(e.address)
}

func (w *world) freeze(e *Engine) {
	w.network.Freeze(e.address, true)
	w.fast.Freeze(e.address)
	w.slow.Freeze(e.address)
}

func (w *world) thaw(e *Engine) {
	w.network.Freeze(e.address, false)
	w.fast.Thaw(e.address)
	w.slow.Thaw(e.address)
}

func TestRetireMappingsOfNobody(t *testing.T) {
	moving(t, func(w *world) {
		a, _, mine, theirs, g, end := w.movers(100)
		defer end()
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"", "x:1", "0"} {
			if _, err := a.RetireMappings(context.Background(), name); !errors.Is(err, InvalidArgument) {
				t.Errorf("%q: %v", name, err)
			}
		}
		if n, err := a.RetireMappings(context.Background(), "b:1"); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		synctest.Wait()
		if _, remote := w.fast.Regions("a:1"); remote != 0 {
			t.Error("not taken back")
		}
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Error(err)
		}
	})
}

// A consumer answers for every withdrawn region that it still uses, and for no
// other's.
func TestInvalidateTellsOfLeases(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		w.fast.HoldWrites("b:1", true)
		x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
		synctest.Wait()
		h := &answers{a, make(chan struct{})}
		ask := func(cs ...Capability) []Capability {
			r, err := h.Invalidate(context.Background(), control.InvalidateRequest{From: b.incarnation, Version: 1, Withdrawn: cs})
			if err != nil {
				t.Fatal(err)
			}
			return r.Leased
		}
		if got := ask(Capability{1}, theirs.Capability()); len(got) != 1 || got[0] != theirs.Capability() {
			t.Errorf("leased: %v", got)
		}
		w.fast.HoldWrites("b:1", false)
		if err := w.done(x); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if got := ask(theirs.Capability()); len(got) != 0 {
			t.Errorf("leased: %v", got)
		}
		if r, err := h.Invalidate(context.Background(), control.InvalidateRequest{From: Incarnation{15: 9}, Version: 1, Withdrawn: []Capability{{1}}}); err != nil || r.Leased != nil {
			t.Errorf("of a stranger: %v, %v", r, err)
		}
	})
}

func memfd(t *testing.T, size int64, seals int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestWhatCanBeRegistered(t *testing.T) {
	moving(t, func(w *world) {
		a := w.open("a:1")
		defer w.giveUp()
		defer w.shut(a)
		sealed := memfd(t, 8192, seals)
		ordinary, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer ordinary.Close()
		_ = ordinary.Truncate(8192)
		readOnly, err := os.Open(name(sealed))
		if err != nil {
			t.Fatal(err)
		}
		defer readOnly.Close()
		for _, tt := range []struct {
			name   string
			f      *os.File
			offset int64
			length int
			opts   RegionOptions
			say    string // "" is good
		}{
			{"whole", sealed, 0, 8192, RegionOptions{}, ""},
			{"part", sealed, 100, 4200, RegionOptions{}, ""},
			{"read-only", sealed, 0, 8192, RegionOptions{ReadOnly: true}, ""},
			{"read-only file", readOnly, 0, 8192, RegionOptions{ReadOnly: true}, ""},
			{"read-only file for writing", readOnly, 0, 8192, RegionOptions{}, "register it ReadOnly"},
			{"too long", sealed, 1, 8192, RegionOptions{}, "end after the file's 8192"},
			{"no length", sealed, 0, 0, RegionOptions{}, "0 bytes"},
			{"before the beginning", sealed, -1, 1, RegionOptions{}, "at offset -1"},
			{"nil", nil, 0, 1, RegionOptions{}, "of a file"},
			{"may shrink", memfd(t, 8192, unix.F_SEAL_GROW), 0, 8192, RegionOptions{}, "F_SEAL_SHRINK"},
			{"may grow", memfd(t, 8192, unix.F_SEAL_SHRINK), 0, 8192, RegionOptions{}, "F_SEAL_GROW"},
			{"sealed against writing", memfd(t, 8192, seals|unix.F_SEAL_WRITE), 0, 8192, RegionOptions{}, "sealed against writing (F_SEAL_WRITE): register it ReadOnly"},
			{"against new writers", memfd(t, 8192, seals|unix.F_SEAL_FUTURE_WRITE), 0, 8192, RegionOptions{}, "(F_SEAL_FUTURE_WRITE): register it ReadOnly"},
			{"sealed, read-only", memfd(t, 8192, seals|unix.F_SEAL_WRITE), 0, 8192, RegionOptions{ReadOnly: true}, ""},
			{"against new writers, read-only", memfd(t, 8192, seals|unix.F_SEAL_FUTURE_WRITE), 0, 8192, RegionOptions{ReadOnly: true}, ""},
			{"no memfd", ordinary, 0, 8192, RegionOptions{}, "is no memfd"},
		} {
			r, err := a.RegisterHost(tt.f, tt.offset, tt.length, tt.opts)
			if tt.say != "" {
				if !errors.Is(err, InvalidArgument) || !strings.Contains(err.Error(), tt.say) {
					t.Errorf("%s: %v", tt.name, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
				continue
			}
			if r.Len() != uint64(tt.length) || len(r.Bytes()) != tt.length || r.Capability().IsZero() {
				t.Errorf("%s: %d bytes", tt.name, r.Len())
			}
			x, err := r.export()
			if err != nil {
				t.Fatal(err)
			}
			flags, _ := unix.FcntlInt(x.File.Fd(), unix.F_GETFL, 0)
			if writable := flags&unix.O_ACCMODE == unix.O_RDWR; writable == tt.opts.ReadOnly || x.Writable == tt.opts.ReadOnly {
				t.Errorf("%s: what transports get is writable: %v", tt.name, writable)
			}
			_ = x.File.Close()
			if err := r.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
		for _, size := range []int{0, -1} {
			if _, err := a.AllocateHost(size, RegionOptions{}); !errors.Is(err, InvalidArgument) {
				t.Errorf("%d bytes: %v", size, err)
			}
		}
	})
}

func name(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

func TestExportedMemoryIsChecked(t *testing.T) {
	good := ExportedMemory{HandleKind: sdk.FabricHandle, Handle: make([]byte, 64), Address: 1 << 30, Length: 10, Allocation: 10}
	with := func(f func(*ExportedMemory)) ExportedMemory { x := good; f(&x); return x }
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for _, x := range []ExportedMemory{
		{},
		with(func(x *ExportedMemory) { x.Length = 0 }),
		with(func(x *ExportedMemory) { x.Length = 11 }),
		with(func(x *ExportedMemory) { x.Offset = 1 }),
		with(func(x *ExportedMemory) { x.Offset = ^uint64(0) }),
		with(func(x *ExportedMemory) { x.Address = ^uint64(0) }),
		with(func(x *ExportedMemory) { x.Handle = x.Handle[:63] }),
		with(func(x *ExportedMemory) { x.HandleKind = sdk.FileHandle }),
		with(func(x *ExportedMemory) { x.HandleKind = 9 }),
		with(func(x *ExportedMemory) { x.File = os.Stdin }),
	} {
		if err := x.check(); !errors.Is(err, InvalidArgument) {
			t.Errorf("%+v: %v", x, err)
		}
	}
}

// checkSize wants the bound of the descriptor's size to be one, and no wild one.
func checkSize(t *testing.T, e *Engine) {
	t.Helper()
	m := &e.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if bound, size := m.sizeLocked(), len(m.bodyLocked()); bound < size || bound > 3*size+1000 {
		t.Errorf("a descriptor of %d bytes, said to have at most %d", size, bound)
	}
}

func TestRegionsAreBounded(t *testing.T) {
	run(t, func(w *world) { // no transport takes them
		a := w.open("a:1")
		w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast"})
		var all []*Region
		for range maxRegions {
			r, err := a.AllocateHost(1, RegionOptions{})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, r)
			if len(all)%100 == 0 {
				checkSize(t, a)
			}
		}
		if _, err := a.AllocateHost(1, RegionOptions{}); !errors.Is(err, Busy) {
			t.Errorf("one more: %v", err)
		}
		seen := map[Capability]bool{}
		for _, r := range all {
			if seen[r.Capability()] {
				t.Fatal("a capability came twice")
			}
			seen[r.Capability()] = true
			if err := r.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if r, err := a.AllocateHost(1, RegionOptions{}); err != nil || seen[r.Capability()] {
			t.Errorf("after closing: %v", err)
		}
		w.shut(a)
		if _, err := a.AllocateHost(1, RegionOptions{}); !errors.Is(err, Closed) {
			t.Errorf("closed: %v", err)
		}
	})
}

// An engine that is closed ends its transfers; regions are closed afterwards as
// well.
func TestCloseOfTheEngineEndsTransfers(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, _ := w.movers(100)
		if err := w.write(a, mine, theirs, g, 1); err != nil {
			t.Fatal(err)
		}
		w.fast.HoldWrites("b:1", true)
		w.network.Silence("a:1", "b:1", true)
		x := w.submit(a, SubmitOptions{Notification: &Notification{Name: "n"}}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := a.Close(ctx); !errors.Is(err, DeadlineExceeded) || !strings.Contains(err.Error(), "transfer") {
			t.Errorf("%v", err)
		}
		if !isClosed(x.Done()) || !errors.Is(x.Wait(context.Background()), OutcomeUnknown) {
			t.Errorf("%v", x.Results())
		}
		if _, err := a.Submit(context.Background(), []Op{{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 1}}, SubmitOptions{}); !errors.Is(err, Closed) {
			t.Errorf("submit: %v", err)
		}
		if err := mine.Close(context.Background()); err != nil {
			t.Errorf("close the region: %v", err)
		}
		w.network.Silence("a:1", "b:1", false)
		w.shut(b)
		w.giveUp()
	})
}

// Nor does it wait for a plugin that does not die, and whose op nobody can vouch
// for.
func TestCloseOfTheEngineEndsWhatADeadPluginHas(t *testing.T) {
	moving(t, func(w *world) {
		first := w.undying("a:1")
		c := w.configs["a:1"]
		c.Plugins.StopTimeoutMS, c.Plugins.AbandonAfterMS = 500, 1000
		w.configs["a:1"] = c
		a, b, mine, theirs, g, _ := w.movers(100)
		if err := w.write(a, mine, theirs, g, 1); err != nil {
			t.Fatal(err)
		}
		w.fast.HoldWrites("b:1", true)
		x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
		synctest.Wait()
		w.fast.Kill("a:1")
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = a.Close(ctx)
		if !isClosed(x.Done()) || !errors.Is(x.Wait(context.Background()), OutcomeUnknown) {
			t.Errorf("%v", x.Results())
		}
		short, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		if err := mine.Close(short); !errors.Is(err, Busy) || !strings.Contains(err.Error(), "transport fast, which does not die") {
			t.Errorf("its plugin may run, and the region is given up: %v", err)
		}
		w.letGo(first)
		again, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		if err := mine.Close(again); err != nil {
			t.Error(err)
		}
		w.fast.HoldWrites("b:1", false)
		w.shut(b)
	})
}

// A region's Close that gives up names the ops that it waits for, and their
// peer; without any it does not invent a holder.
func TestWhoHoldsARegion(t *testing.T) {
	moving(t, func(w *world) {
		a, _, mine, theirs, g, end := w.movers(100)
		defer end()
		w.fast.HoldWrites("b:1", true)
		op := Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 50}
		x := w.submit(a, SubmitOptions{}, op, op, op)
		synctest.Wait()
		short, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		says(t, mine.Close(short), []Code{Busy}, []string{"held by this engine's ops with b:1", "(3); it is withdrawn"}, nil)
		w.fast.HoldWrites("b:1", false)
		if err := w.done(x); err != nil {
			t.Error(err)
		}
		<-short.Done()
		for range 20 { // select is fair
			idle := w.region(a, 100, RegionOptions{})
			if err := idle.Close(short); err != nil {
				says(t, err, []Code{Busy}, []string{"which has not given it up"}, []string{"registering", "(0)"})
			}
			if err := idle.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
}
