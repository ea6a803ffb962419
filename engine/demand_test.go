//go:build linux

package engine

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

var ipcMemory = ExportedMemory{HandleKind: sdk.IPCHandle, Handle: make([]byte, sdk.HandleBytes), Address: 1 << 30, Length: 1, Allocation: 1}

// What is only for a GPU's memory is started when there is some, and not by
// anything else; once, and what it lacks is in the error.
func TestATransportOnDemand(t *testing.T) {
	moving(t, func(w *world) {
		var starts atomic.Int32
		gpu := TransportConfig{Name: "gpu", optional: true, onDemand: true, InProcess: func() sdk.Transport {
			starts.Add(1)
			return noDevice{w.fast.New("gpu at a:1")}
		}}
		one := TransportConfig{Name: "fast", InProcess: func() sdk.Transport { return w.fast.New("a:1") }}
		missing := TransportConfig{Name: "missing", optional: true, onDemand: true}
		w.configs["a:1"] = Config{Transports: []TransportConfig{one, gpu, missing}, Notification: NotificationConfig{RPCFallback: new(false)}}
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Fatal(err)
		}
		cfg := w.configs["a:1"]
		cfg.Node.Name = "a:1"
		reload := func() {
			t.Helper()
			if err := a.Reload(context.Background(), cfg); err != nil {
				t.Error(err)
			}
		}
		reload()
		if list := a.Transports(); len(list) != 1 || starts.Load() != 0 {
			t.Errorf("%d starts, %+v", starts.Load(), list)
		}
		for range 2 {
			_, err := a.RegisterHandle(ipcMemory, RegionOptions{})
			if !errors.Is(err, Unsupported) || starts.Load() != 1 {
				t.Errorf("%d starts, %v", starts.Load(), err)
			}
			says(t, err, nil, []string{"transport gpu: not up here, unsupported: ", "transport missing: not available: ", "hawser-missing"}, nil)
			if a.transports.later.Load() != nil {
				t.Error("still put off")
			}
		}
		if s, err := a.Transports(), a.memory.add(&Region{}); len(s) != 2 || s[1].State != "unsupported" || err == nil {
			t.Errorf("%+v, %v", s, err)
		}
		reload() // it stays; what is not installed is tried again
		_, err := a.RegisterHandle(ipcMemory, RegionOptions{})
		if starts.Load() != 1 || len(a.Transports()) != 2 || err == nil || !strings.Contains(err.Error(), "hawser-missing") {
			t.Errorf("%d starts, %+v, %v", starts.Load(), a.Transports(), err)
		}
		// One that is listed is started at once.
		cfg.Transports = []TransportConfig{one}
		reload()
		gpu.optional, gpu.onDemand = false, false
		cfg.Transports = []TransportConfig{one, gpu}
		if err := a.Reload(context.Background(), cfg); !errors.Is(err, Unsupported) || starts.Load() != 2 || a.transports.later.Load() != nil {
			t.Errorf("%d starts, %v", starts.Load(), err)
		}
		_ = b
	})
}

// lateMover takes its time to start, as a GPU's driver does.
type lateMover struct {
	sdk.Transport
	sdk.Mover
}

func (m lateMover) Configure(ctx context.Context, c sdk.Config) (sdk.Setup, error) {
	time.Sleep(3 * strandedFor)
	return m.Transport.Configure(ctx, c)
}

// A peer's GPU memory that an op names counts as well, and the op waits.
func TestAnOpDemandsATransport(t *testing.T) {
	moving(t, func(w *world) {
		both := []sdk.MemoryKind{sdk.HostMemory, sdk.DeviceMemory}
		gpus := sdktest.NewFabric(sdktest.FabricOptions{Name: "gpu", Moves: true, NoFrames: true, Move: sdk.MoveLimits{Local: both, Remote: both}})
		var starts atomic.Int32
		config := func(at string, onDemand bool) {
			w.configs[at] = Config{Transports: []TransportConfig{
				{Name: "gpu", optional: onDemand, onDemand: onDemand, InProcess: func() sdk.Transport {
					if !onDemand {
						return gpus.New(at)
					}
					starts.Add(1)
					n := gpus.New(at)
					return lateMover{n, n.(sdk.Mover)}
				}},
				{Name: "fast", InProcess: func() sdk.Transport { return w.fast.New(at) }},
			}, Notification: NotificationConfig{RPCFallback: new(false)}}
		}
		config("a:1", true)
		config("b:1", false)
		a, _, mine, theirs, g, end := w.movers(100)
		defer end()
		theirs.region.Kind = sdk.DeviceMemory
		theirs.m.mu.Lock()
		theirs.m.changedLocked()
		theirs.m.mu.Unlock()
		fill(theirs.Bytes(), 7)
		if err := g.Refresh(context.Background()); err != nil || starts.Load() != 0 {
			t.Fatalf("%d starts, %v", starts.Load(), err)
		}
		read := Op{Kind: Read, Local: mine, Segment: g, Address: theirs.Address(), Length: 50}
		more := read
		more.LocalOffset, more.Address = 50, more.Address+50
		if err := w.done(w.submit(a, SubmitOptions{}, read, more)); err != nil || !bytes.Equal(mine.Bytes(), theirs.Bytes()) || starts.Load() != 1 {
			t.Errorf("%d starts, %v", starts.Load(), err)
		}
	})
}

// What cannot be started now is asked for once, not over and over by every op
// that waits.
func TestADemandIsMadeOnce(t *testing.T) {
	for what, prevent := range map[string]func(*Engine){
		"no lock file": func(e *Engine) { e.cfg.Plugins.Lock = "gone.lock" },
		"closing":      func(e *Engine) { e.closing.Store(true) },
	} {
		moving(t, func(w *world) {
			w.configs["a:1"] = Config{Transports: []TransportConfig{
				{Name: "fast", InProcess: func() sdk.Transport { return w.fast.New("a:1") }},
				{Name: "gpu", optional: true, onDemand: true},
			}, Notification: NotificationConfig{RPCFallback: new(false)}}
			a := w.open("a:1")
			defer w.giveUp()
			defer w.shut(a)
			prevent(a)
			defer a.closing.Store(false)
			over := make(chan struct{})
			if !a.transports.demandSoon(func() { close(over) }) {
				t.Fatalf("%s: nothing is demanded", what)
			}
			<-over
			if a.transports.demandSoon(func() {}) {
				t.Errorf("%s: demanded again", what)
			}
		})
	}
}

// A reload that comes while a transport is being started does not stop it.
func TestAReloadAfterADemand(t *testing.T) {
	moving(t, func(w *world) {
		var starts atomic.Int32
		cfg := Config{Transports: []TransportConfig{
			{Name: "fast", InProcess: func() sdk.Transport { return w.fast.New("a:1") }},
			{Name: "gpu", optional: true, onDemand: true, InProcess: func() sdk.Transport {
				starts.Add(1)
				return noDevice{w.fast.New("gpu at a:1")}
			}},
		}, Notification: NotificationConfig{RPCFallback: new(false)}}
		w.configs["a:1"] = cfg
		a := w.open("a:1")
		defer w.giveUp()
		defer w.shut(a)
		cfg.Node.Name = "a:1"
		a.transports.changes <- struct{}{} // another reload is under way
		var calls sync.WaitGroup
		calls.Go(func() { _ = a.transports.demand(context.Background()) })
		synctest.Wait()
		calls.Go(func() {
			if err := a.Reload(context.Background(), cfg); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		<-a.transports.changes
		calls.Wait()
		if list := a.Transports(); len(list) != 2 || starts.Load() != 1 || a.transports.later.Load() != nil {
			t.Errorf("%d starts, %+v", starts.Load(), list)
		}
	})
}
