package sdktest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// movingRig is a rig on a fabric of its own, in fake time.
func movingRig(t *testing.T, f *Fabric, wrap func(sdk.Transport) sdk.Transport) *rig {
	t.Helper()
	n := 0
	r := &rig{TB: t, h: Harness{
		Settings: []byte("{}"), Timeout: time.Minute, bubble: true,
		New: func(testing.TB) sdk.Transport { n++; return wrap(f.New([]string{"", "x", "y"}[n])) },
	}}
	r.a, r.b = r.make("a"), r.make("b")
	r.desc = r.a.tr.Describe()
	r.limits, r.move = r.desc.Limits.WithDefaults(), r.desc.Move.WithDefaults()
	r.configure(r.a)
	r.configure(r.b)
	return r
}

func same(t sdk.Transport) sdk.Transport { return t }

// What a target holds is carried out late, unless it has been fenced before:
// so a test can tell whether somebody fences.
func TestHeldWritesAreLateWithoutAFence(t *testing.T) {
	for _, fenced := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := NewFabric(FabricOptions{Moves: true})
			r := movingRig(t, f, same)
			w, passive, here, there := r.moving(1000)
			f.HoldWrites("y", true)
			o := op(sdk.Write, here, 0, there, 0, 100)
			id := w.post(o)
			synctest.Wait()
			if f.Counters().Held != 1 || len(w.outcomes) != 0 {
				t.Fatalf("%+v, outcomes %v", f.Counters(), w.outcomes)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if err := r.b.mo.Deregister(ctx, there.Capability); !errors.Is(err, sdk.Busy) {
				t.Errorf("Deregister of what a held write is for: %v", err)
			}
			w.ep.Close()
			w.waitEnded()
			if c := w.result(id); c.Outcome != sdk.Unknown {
				t.Errorf("%+v", c)
			}
			if fenced {
				passive.ep.Close()
				passive.waitEnded()
				r.deregister(there)
			}
			f.HoldWrites("", false)
			synctest.Wait()
			late := f.Counters().Late
			if !fenced {
				did(o, here, there)
				passive.waitEnded()
			}
			there.check("in the end")
			if (late == 1) == fenced {
				t.Errorf("fenced %t: %d late writes", fenced, late)
			}
			r.finish(nil)
		})
	}
}

// A fabric's node accounts for what it holds.
func TestFabricCountsRegions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFabric(FabricOptions{Moves: true})
		r := movingRig(t, f, same)
		_, passive, here, _ := r.moving(1000)
		for _, want := range [][3]int{{1, 1, 1}, {0, 1, 1}, {0, 0, 1}} {
			own, remote := f.Regions("x")
			there, _ := f.Regions("y")
			if got := [3]int{own, remote, there}; got != want {
				t.Errorf("%v, want %v", got, want)
			}
			if own > 0 {
				r.deregister(here)
			} else {
				r.withdraw(r.a, r.b, sdk.Capability{})
			}
		}
		f.Kill("y")
		if own, _ := f.Regions(""); own != 0 {
			t.Errorf("%d regions after Kill", own)
		}
		passive.wantEnd(sdk.PluginExited)
		r.b.closed = true
		r.finish(nil)
	})
}

func faultyMoving(seed uint64) Harness {
	h := fabricWith(FabricOptions{Moves: true, Move: movingMost}, true)
	fabric := h.New
	h.New = func(t testing.TB) sdk.Transport { return Faulty(fabric(t), seed) }
	return h
}

func TestFaultyMoverConformsWithoutFaults(t *testing.T) {
	h := faultyMoving(1)
	h.only = "move-"
	Run(t, h)
}

// Whatever happens to ops, no outcome is a lie.
func TestFaultyOps(t *testing.T) {
	const n = 300
	for name, c := range map[string]struct {
		faults Faults
		fired  func(FaultCounts) uint64
		// outcome is that of as many ops as fired; 0 is none before the end.
		outcome sdk.Outcome
	}{
		"drop":            {Faults{Ops: FrameFaults{Drop: 0.1}}, func(c FaultCounts) uint64 { return c.Ops.Dropped }, 0},
		"drop is unknown": {Faults{Ops: FrameFaults{Drop: 0.1}, DropIsUnknown: true}, func(c FaultCounts) uint64 { return c.Ops.Dropped }, sdk.Unknown},
		"not posted":      {Faults{NotPosted: 0.1}, func(c FaultCounts) uint64 { return c.NotPosted }, sdk.NotPosted},
		"unknown":         {Faults{Unknown: 0.1}, func(c FaultCounts) uint64 { return c.Unknown }, sdk.Unknown},
		"delay":           {Faults{Ops: FrameFaults{Delay: 0.1, Double: 1}}, func(c FaultCounts) uint64 { return c.Ops.Delayed }, sdk.Done},
		"reorder":         {Faults{Ops: FrameFaults{Reorder: 0.5}}, func(c FaultCounts) uint64 { return c.Ops.Reordered }, sdk.Done},
		"frames only":     {Faults{Send: FrameFaults{Drop: 1}}, func(FaultCounts) uint64 { return 1 }, sdk.Done},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := NewFabric(FabricOptions{Moves: true, Move: sdk.MoveLimits{Inflight: n}})
				var faulty []*FaultyTransport
				r := movingRig(t, f, func(t sdk.Transport) sdk.Transport {
					faulty = append(faulty, Faulty(t, 5))
					return faulty[len(faulty)-1]
				})
				w, passive, here, there := r.moving(n * 10)
				faulty[0].Set(c.faults)
				before := there.want
				for i := range n {
					w.post(op(sdk.Write, here, i*10, there, i*10, 10))
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				counts := faulty[0].Counts()
				fired := c.fired(counts)
				if fired == 0 || counts.Ops.Doubled != 0 {
					t.Fatalf("%+v", counts)
				}
				w.ep.Close()
				w.waitEnded()
				passive.waitEnded()
				got := make([]byte, n*10)
				if _, err := there.ReadAt(got, 0); err != nil {
					t.Fatal(err)
				}
				seen := map[sdk.Outcome]uint64{}
				for i := range n {
					o := w.outcomes[uint64(i+1)].Outcome
					seen[o]++
					is, was, new := string(got[i*10:][:10]), string(before[i*10:][:10]), string(here.want[i*10:][:10])
					if o == sdk.Done && is != new || o == sdk.NotPosted && is != was || o == 0 && is != was {
						t.Errorf("op %d is %v, and that is not so", i+1, o)
					}
				}
				if want := fired; c.outcome != sdk.Done && seen[c.outcome] != want || c.outcome == sdk.Done && seen[sdk.Done] != n {
					t.Errorf("%d fired, outcomes %v", fired, seen)
				}
				there.stays("after the end")
				r.finish(nil)
			})
		})
	}
}

// One that hangs answers releases with Busy, and a crash is no fence.
func TestFaultyMoverHangsAndCrashes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFabric(FabricOptions{Moves: true})
		var faulty []*FaultyTransport
		r := movingRig(t, f, func(t sdk.Transport) sdk.Transport {
			faulty = append(faulty, Faulty(t, 5))
			return faulty[len(faulty)-1]
		})
		w, _, here, there := r.moving(1000)
		faulty[0].Hang()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		w.post(op(sdk.Write, here, 0, there, 0, 100))
		if err := r.a.mo.Deregister(ctx, here.Capability); !errors.Is(err, sdk.Busy) {
			t.Error(err)
		}
		if err := r.a.mo.Withdraw(ctx, r.b.inc, sdk.Capability{}); !errors.Is(err, sdk.Busy) {
			t.Error(err)
		}
		if _, err := r.a.mo.Register(ctx, r.export(here.Memory, true)); !errors.Is(err, sdk.DeadlineExceeded) {
			t.Error(err)
		}
		if err := r.a.mo.Announce(ctx, there.remote()); !errors.Is(err, sdk.DeadlineExceeded) {
			t.Error(err)
		}
		there.check("while it hangs")
		faulty[0].Crash()
		w.wantEnd(sdk.PluginExited)
		r.finish(nil)
	})
}
