//go:build linux

package mnnvltransport

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/internal/cuda/simcuda"
	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/plugins/mnnvl/internal/nvml"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// TestEachCallFails lets every call of the driver fail once, one after the
// other, while memory is registered, moved and given back. Nothing is left in
// any case, and what is done is right.
func TestEachCallFails(t *testing.T) {
	const size, afters = 4096, 2
	kinds := everyKind()
	calls, runs := map[string]int{}, 0
	faulty := []string{
		"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemAddressFree",
		"cuMemRelease", "cuMemHostRegister", "cuMemHostUnregister", "cuStreamCreate", "cuStreamDestroy", "cuMemcpyAsync",
		"cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventDestroy", "cuIpcOpenMemHandle", "cuIpcCloseMemHandle", "cuPointerGetAttribute",
		"cuIpcOpenEventHandle", "cuStreamWaitEvent", "cuDevicePrimaryCtxRetain", "cuInit", "cuMemCreate", "cuMemGetAllocationGranularity",
	}
	for _, call := range faulty {
		for _, kind := range kinds {
			for after := range afters {
				t.Run(fmt.Sprintf("%s/%v/%d", call, kind, after), func(t *testing.T) {
					l := newLab(t, func(*simcuda.Options) {})
					l.kinds, runs = []cuda.Kind{kind}, runs+1
					d := l.process(t).(*simcuda.Driver)
					b := l.start(t, l.transport(t), 2)
					theirs := l.on(t, 1, size)
					fill(t, theirs, 0x5a, size)
					there := b.register(t, theirs, true, 1<<41, 1)

					d.Inject(simcuda.Injection{Call: call, Result: cuda.OutOfMemory, After: after})
					tr := New(d, nvml.Fake{})
					ctx := rigtest.Context(t)
					cfg := sdk.Config{Instance: 1, Incarnation: sdk.Incarnation{15: 9}, Settings: json.RawMessage("{}")}
					if setup, err := tr.Configure(ctx, cfg); err == nil && len(tr.devices) == len(l.devices) {
						a := &side{&rigtest.Node{Transport: tr, Inc: cfg.Incarnation, Setup: setup}, tr, 1}
						l.tryAll(t, a, b, there, size)
					}
					eventually(t, func() error {
						short, cancel := context.WithTimeout(ctx, time.Second)
						defer cancel()
						return tr.Close(short)
					})
					if d.Injected() == 0 {
						calls[call]++
					}
				})
			}
		}
	}
	if len(calls) < len(faulty) && runs == len(faulty)*len(kinds)*afters { // all of them
		t.Errorf("only these calls have failed: %v", calls)
	}
}

// tryAll does what may be refused once, and then works.
func (l *lab) tryAll(t *testing.T, a, b *side, there publishedRegion, size uint64) {
	ctx := rigtest.Context(t)
	a.announce(t, there)
	w := connect(t, a, b)
	event := l.event(t)
	for _, m := range []sdktest.Memory{l.on(t, 0, int(size)), sdktest.HostMemory(t, int(size))} {
		r, err := m.Export(true)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = rand.Read(r.Capability[:])
		r.Base = 1 << 40
		if _, err := a.mover.Register(ctx, r); err != nil {
			if r, err = m.Export(true); err != nil {
				t.Fatal(err)
			}
			r.Capability = sdk.Capability{1}
			r.Base = 1 << 40
			if _, err = a.mover.Register(ctx, r); err != nil {
				t.Fatalf("Register has failed twice: %v", err)
			}
		}
		here := publishedRegion{sdk.RemoteRegion{Capability: r.Capability}, a}
		for _, e := range []*[sdk.EventBytes]byte{nil, event, nil} {
			o := opOf(sdk.Read, here, there, size)
			o.Event = e
			var c sdk.Completion
			for range 3 {
				if c = w.do(o); c.Outcome == sdk.Done {
					break
				}
			}
			if x, y := bytesOf(t, m, int(size)); c.Outcome != sdk.Done || x != 0x5a || y != 0x5a {
				t.Errorf("read %x..%x: %v (%v)", x, y, c.Outcome, c.Code)
			}
		}
		eventually(t, func() error {
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return a.mover.Deregister(short, r.Capability)
		})
	}
	w.ep.Close()
	<-w.ended
}

// event makes an interprocess event of the application's, which has been reached.
func (l *lab) event(t testing.TB) *[sdk.EventBytes]byte {
	t.Helper()
	var h cuda.EventHandle
	err := l.devices[0].Do(func(c cuda.Context) error {
		e, err := c.CreateEvent(true)
		if err != nil {
			return err
		}
		t.Cleanup(func() {
			if err := l.devices[0].Do(func(c cuda.Context) error { return c.DestroyEvent(e) }); err != nil {
				t.Error(err)
			}
		})
		if err := c.Record(e, l.streams[0]); err != nil {
			return err
		}
		h, err = c.ExportEvent(e)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return (*[sdk.EventBytes]byte)(&h)
}
