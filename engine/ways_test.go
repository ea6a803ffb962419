package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// Scenario 5: each limit, one under, one over.
func TestSizesAtEachLimit(t *testing.T) {
	run(t, func(w *world) {
		w.slow = sdktest.NewFabric(sdktest.FabricOptions{Name: rpcFallbackName, Limits: sdk.Limits{MaxFrame: 128 << 10, InflightBytes: 1 << 20}})
		w.configs["a:1"] = Config{Notification: NotificationConfig{MaxPayloadBytes: 200000}}
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		const fast, slow = 65484, 128<<10 - 52
		want := 0
		for _, size := range []int{0, 1, fast - 1, fast, fast + 1, slow - 1, slow, slow + 1, 200000, 200001} {
			n := Notification{Name: "n", Payload: make([]byte, max(0, size-1))}
			if size == 0 {
				n.Name = ""
			}
			d, err := a.Notify(context.Background(), "b:1", n)
			if size > 200000 {
				if !errors.Is(err, TooLarge) || !strings.Contains(err.Error(), "200000") {
					t.Errorf("%d bytes: %v", size, err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			err = w.wait(d)
			switch via := d.Report().Transport; {
			case size > slow:
				if !errors.Is(err, TooLarge) || !errors.Is(err, NotSent) || !strings.Contains(err.Error(), fmt.Sprint(slow)) {
					t.Errorf("%d bytes: %v", size, err)
				}
			case err != nil || via != map[bool]string{true: "fast", false: rpcFallbackName}[size <= fast]:
				t.Errorf("%d bytes: %v over %s", size, err, via)
			default:
				want++
			}
		}
		if n := len(drain(b)); n != want || want != 7 {
			t.Errorf("%d arrived, want %d", n, want)
		}
	})
}

// Scenario 18: cut for 3 s, both ways and one way at a time.
func TestCutAndHealed(t *testing.T) {
	for _, way := range []string{"both", "there", "back"} {
		t.Run(way, func(t *testing.T) {
			run(t, func(w *world) {
				a, b := w.open("a:1"), w.open("b:1")
				defer w.shut(a, b)
				w.connected(a, b)
				sent := names("c", 400)
				for i, n := range sent {
					if i == 100 {
						if way != "back" {
							w.fast.Cut("a:1", "b:1", "")
						}
						if way != "there" {
							w.fast.Cut("b:1", "a:1", "")
						}
						time.AfterFunc(3*time.Second, func() { w.fast.HealBoth("a:1", "b:1", "") })
					}
					w.notify(a, "b:1", n)
					time.Sleep(10 * time.Millisecond)
				}
				w.expect(b, sent...)
				if w.fast.Counters().Held == 0 {
					t.Error("the cut had no effect")
				}
			})
		})
	}
}

// Scenario 20: all paths dead: every delivery ends, with an error that lists
// them.
func TestAllPathsDead(t *testing.T) {
	run(t, func(w *world) {
		w.configs["a:1"] = Config{Notification: NotificationConfig{DeadlineMS: 20000}}
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		for _, f := range []*sdktest.Fabric{w.fast, w.slow} {
			f.CutBoth("a:1", "b:1", "")
			if f.End("a:1", "b:1", "") == 0 {
				t.Fatal("no endpoint ended")
			}
		}
		for range 5 {
			start := time.Now()
			err := w.wait(w.notify(a, "b:1", "x"))
			if took := time.Since(start); took > 20010*time.Millisecond || err == nil ||
				!strings.Contains(err.Error(), "fast") || !strings.Contains(err.Error(), rpcFallbackName) {
				t.Errorf("%v after %v", err, took)
			}
		}
		w.fast.HealBoth("a:1", "b:1", "")
		w.slow.HealBoth("a:1", "b:1", "")
	})
}

// Scenario 23: without the RPC fallback there is an error, and no RPC.
func TestWithoutTheFallback(t *testing.T) {
	run(t, func(w *world) {
		w.configs["a:1"] = Config{
			Notification: NotificationConfig{RPCFallback: new(false), DeadlineMS: 5000},
			Transports:   []TransportConfig{{Name: "fast", InProcess: func() sdk.Transport { return w.fast.New("a:1") }}},
		}
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.fast.CutBoth("a:1", "b:1", "")
		err := w.wait(w.notify(a, "b:1", "x"))
		if !errors.Is(err, NotSent) || !strings.Contains(err.Error(), "fast") || strings.Contains(err.Error(), rpcFallbackName) {
			t.Errorf("%v", err)
		}
		if n := w.slow.Counters().Delivered; n != 0 || w.slow.Endpoints("b:1") != 0 {
			t.Errorf("%d frames went over the fallback", n)
		}
		w.fast.HealBoth("a:1", "b:1", "")
	})
}

// Scenario 24, and rpc.bootstrap_timeout_ms: bootstraps that the control plane
// does not answer cost one timeout in all, however many ways there are.
func TestABootstrapIntoSilenceCostsOneTimeout(t *testing.T) {
	run(t, func(w *world) {
		w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast", Paths: []string{"p0", "p1", "p2"}})
		w.configs["a:1"] = Config{RPC: RPCConfig{BootstrapTimeoutMS: 3000}}
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		if err := w.wait(w.notify(a, "b:1", "first")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		w.network.Silence("b:1", "a:1", true) // answers are lost
		for _, f := range []*sdktest.Fabric{w.fast, w.slow} {
			f.CutBoth("a:1", "b:1", "")
			f.End("a:1", "b:1", "")
		}
		held := w.network.Faults().Held
		w.unsent(w.notify(a, "b:1", "x"), 2900*time.Millisecond, 3010*time.Millisecond)
		if w.network.Faults().Held == held {
			t.Error("nothing was silenced")
		}
		w.unsent(w.notify(a, "b:1", "x"), 0, 10*time.Millisecond)
		w.network.Silence("b:1", "a:1", false)
		w.fast.HealBoth("a:1", "b:1", "")
		w.slow.HealBoth("a:1", "b:1", "")
	})
}

// Scenario 25: a transport that takes nothing more is waited for about
// notification.slot_wait_ms, then the next one carries.
func TestSlotExhaustion(t *testing.T) {
	run(t, func(w *world) {
		w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast", Limits: sdk.Limits{InflightFrames: 8}})
		w.configs["a:1"] = Config{Notification: NotificationConfig{SlotWaitMS: 500, AckTimeoutMS: 60000}}
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		w.fast.Cut("a:1", "b:1", "")
		for _, n := range names("n", 8) {
			w.notify(a, "b:1", n)
		}
		start := time.Now()
		d := w.notify(a, "b:1", "one more")
		if err := w.wait(d); err != nil || d.Report().Transport != rpcFallbackName {
			t.Errorf("%v, %+v", err, d.Report())
		}
		if took := time.Since(start); took < 500*time.Millisecond || took > 600*time.Millisecond {
			t.Errorf("took %v, want about slot_wait_ms", took)
		}
		w.fast.Heal("a:1", "b:1", "")
		w.expect(b, append(names("n", 8), "one more")...)
	})
}

// rpc.probe_timeout_ms bounds a probe, and a probe that outlasts its interval is
// not joined by another.
func TestProbeTimeout(t *testing.T) {
	run(t, func(w *world) {
		w.short("a:1")
		c := w.configs["a:1"]
		c.RPC.ProbeTimeoutMS = 4000
		w.configs["a:1"] = c
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.network.Freeze("b:1", true)
		w.unsent(w.notify(a, "b:1", "x"), 2*time.Second, 2010*time.Millisecond)
		time.Sleep(40500 * time.Millisecond)
		if n := a.Stats().Probes; n < 9 || n > 11 {
			t.Errorf("%d probes of 4 s in 40 s", n)
		}
		w.network.Freeze("b:1", false)
	})
}
