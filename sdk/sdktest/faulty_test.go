package sdktest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

func faultyHarness(bubble bool, seed uint64) Harness {
	h := fabricHarness(bubble)
	fabric := h.New
	h.New = func(t testing.TB) sdk.Transport { return Faulty(fabric(t), seed) }
	return h
}

// Without faults the wrapper keeps the whole contract.
func TestFaultyConformsWithoutFaults(t *testing.T) { Run(t, faultyHarness(true, 1)) }

// faultyPair sends n frames from a to b, both faulty, and waits for quiet.
type faultyPair struct {
	a, b   *FaultyTransport
	ha, hb *witness
	r      *rig
}

func newFaultyPair(t *testing.T, seed uint64) *faultyPair {
	t.Helper()
	r := &rig{TB: t, h: Harness{New: faultyHarness(true, seed).New, Settings: []byte("{}"), Timeout: time.Minute, bubble: true}}
	r.a, r.b = r.make("a"), r.make("b")
	r.desc = r.a.tr.Describe()
	r.limits = r.desc.Limits.WithDefaults()
	r.configure(r.a)
	r.configure(r.b)
	p := &faultyPair{a: r.a.tr.(*FaultyTransport), b: r.b.tr.(*FaultyTransport), r: r}
	p.ha, p.hb = r.connect(r.a, r.b)
	return p
}

func (p *faultyPair) send(n int) {
	for k := range n {
		p.ha.send(payload(k, 50))
	}
	p.ha.wait("outcomes", func() bool { return len(p.ha.open) == 0 || p.ha.ended > 0 })
	time.Sleep(time.Second) // in fake time: what is delayed has come
	synctest.Wait()
}

// arrived maps each frame's number to how often it came, and counts those that
// came after a higher one.
func (p *faultyPair) arrived() (times map[string]int, inversions int) {
	order := map[string]int{}
	for i, f := range p.ha.sent {
		order[string(f)] = i
	}
	times = map[string]int{}
	high := -1
	for _, f := range p.hb.received {
		i := order[string(f)]
		if i < high {
			inversions++
		}
		high = max(high, i)
		times[string(f)]++
	}
	return times, inversions
}

func TestFaultyFramesAreCounted(t *testing.T) {
	const n = 2000
	for _, c := range []struct {
		name   string
		a, b   Faults
		counts func(a, b FaultCounts) uint64
		// lost, doubled and inverted: as many as were counted, or some.
		check func(t *testing.T, p *faultyPair, times map[string]int, inversions int, count uint64)
	}{
		{name: "drop on the way out", a: Faults{Send: FrameFaults{Drop: 0.05}},
			counts: func(a, _ FaultCounts) uint64 { return a.Send.Dropped },
			check: func(t *testing.T, p *faultyPair, times map[string]int, _ int, count uint64) {
				if len(times) != n-int(count) || p.ha.done() != n {
					t.Errorf("%d arrived, %d dropped, %d done", len(times), count, p.ha.done())
				}
			}},
		{name: "drop, and say so", a: Faults{Send: FrameFaults{Drop: 0.05}, DropIsUnknown: true},
			counts: func(a, _ FaultCounts) uint64 { return a.Send.Dropped },
			check: func(t *testing.T, p *faultyPair, times map[string]int, _ int, count uint64) {
				if len(times) != n-int(count) || p.ha.done() != len(times) {
					t.Errorf("%d arrived, %d dropped, %d done", len(times), count, p.ha.done())
				}
			}},
		{name: "drop on the way in", b: Faults{Receive: FrameFaults{Drop: 0.05}},
			counts: func(_, b FaultCounts) uint64 { return b.Receive.Dropped },
			check: func(t *testing.T, p *faultyPair, times map[string]int, _ int, count uint64) {
				if len(times) != n-int(count) || p.ha.done() != n {
					t.Errorf("%d arrived, %d dropped, %d done", len(times), count, p.ha.done())
				}
			}},
		{name: "double", a: Faults{Send: FrameFaults{Double: 0.05}}, b: Faults{Receive: FrameFaults{Double: 0.05}},
			counts: func(a, b FaultCounts) uint64 { return a.Send.Doubled + b.Receive.Doubled },
			check: func(t *testing.T, p *faultyPair, times map[string]int, _ int, count uint64) {
				if len(times) != n || len(p.hb.received) != n+int(count) || p.ha.done() != n {
					t.Errorf("%d arrived, %d in all, %d doubled, %d done", len(times), len(p.hb.received), count, p.ha.done())
				}
			}},
		{name: "delay", a: Faults{Send: FrameFaults{Delay: 0.05}}, b: Faults{Receive: FrameFaults{Delay: 0.05}},
			counts: func(a, b FaultCounts) uint64 { return a.Send.Delayed + b.Receive.Delayed },
			check: func(t *testing.T, p *faultyPair, times map[string]int, inversions int, _ uint64) {
				if len(times) != n || inversions != 0 || p.ha.done() != n {
					t.Errorf("%d arrived, %d out of order, %d done", len(times), inversions, p.ha.done())
				}
			}},
		{name: "reorder", a: Faults{Send: FrameFaults{Reorder: 0.05}}, b: Faults{Receive: FrameFaults{Reorder: 0.05}},
			counts: func(a, b FaultCounts) uint64 { return a.Send.Reordered + b.Receive.Reordered },
			check: func(t *testing.T, p *faultyPair, times map[string]int, inversions int, count uint64) {
				if len(times) != n || inversions == 0 || uint64(inversions) > count || p.ha.done() != n {
					t.Errorf("%d arrived, %d out of order, %d counted, %d done", len(times), inversions, count, p.ha.done())
				}
			}},
		{name: "not posted", a: Faults{NotPosted: 0.05},
			counts: func(a, _ FaultCounts) uint64 { return a.NotPosted },
			check: func(t *testing.T, p *faultyPair, times map[string]int, _ int, count uint64) {
				if len(times) != n-int(count) || p.ha.done() != len(times) {
					t.Errorf("%d arrived, %d not posted, %d done", len(times), count, p.ha.done())
				}
			}},
		{name: "unknown", a: Faults{Unknown: 0.2},
			counts: func(a, _ FaultCounts) uint64 { return a.Unknown },
			check: func(t *testing.T, p *faultyPair, times map[string]int, _ int, count uint64) {
				if p.ha.done() != n-int(count) || len(times) == n || len(times) == n-int(count) {
					t.Errorf("%d arrived, %d unknown, %d done", len(times), count, p.ha.done())
				}
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newFaultyPair(t, 7)
				defer p.r.finish(nil)
				p.a.Set(c.a)
				p.b.Set(c.b)
				p.send(n)
				count := c.counts(p.a.Counts(), p.b.Counts())
				if count == 0 {
					t.Fatal("the fault did not fire")
				}
				times, inversions := p.arrived()
				c.check(t, p, times, inversions, count)
				p.a.Set(Faults{})
				p.b.Set(Faults{})
				before := p.a.Counts()
				p.send(100)
				if p.a.Counts() != before {
					t.Errorf("faults fired after they were switched off: %+v", p.a.Counts())
				}
			})
		})
	}
}

func TestFaultyIsSeeded(t *testing.T) {
	run := func(seed uint64) (out string) {
		synctest.Test(t, func(t *testing.T) {
			p := newFaultyPair(t, seed)
			defer p.r.finish(nil)
			p.a.Set(Faults{Send: FrameFaults{Drop: 0.1, Double: 0.1, Delay: 0.1, Reorder: 0.1}, Unknown: 0.1, NotPosted: 0.1})
			p.send(500)
			times, _ := p.arrived()
			out = fmt.Sprint(p.a.Counts(), len(times), len(p.hb.received))
		})
		return out
	}
	if a, b := run(3), run(3); a != b {
		t.Errorf("one seed, two outcomes: %s and %s", a, b)
	}
	if a, b := run(3), run(4); a == b {
		t.Errorf("two seeds, one outcome: %s", a)
	}
}

func TestFaultyHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFaultyPair(t, 1)
		defer p.r.finish(nil)
		p.send(10)
		p.b.Set(Faults{HangAfter: 3})
		for k := range 5 {
			p.ha.send(payload(k, 5))
		}
		time.Sleep(time.Second)
		if p.b.Counts().Hangs != 1 || len(p.hb.received) >= 15 {
			t.Fatalf("it does not hang: %+v, %d received", p.b.Counts(), len(p.hb.received))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.b.Health(ctx); !errors.Is(err, sdk.DeadlineExceeded) {
			t.Errorf("health: %v", err)
		}
		if err := p.b.Probe(ctx, p.r.target(p.r.b, p.r.a)); !errors.Is(err, sdk.DeadlineExceeded) {
			t.Errorf("probe: %v", err)
		}
		p.b.Resume()
		p.ha.settle(p.hb)
		p.b.Hang()
	})
}

func TestFaultyCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFaultyPair(t, 1)
		defer p.r.finish(nil)
		exited := make(chan struct{})
		p.b.OnCrash(func() { close(exited) })
		p.b.Set(Faults{CrashAfter: 20})
		for k := range 50 {
			if p.ha.push(payload(k, 5)) != nil {
				break
			}
		}
		<-exited
		<-p.b.Done()
		p.hb.wantEnd(sdk.PluginExited)
		p.ha.wantEnd(sdk.Unavailable)
		if err := p.b.Err(); !errors.Is(err, sdk.PluginExited) || p.b.Counts().Crashes != 1 {
			t.Errorf("after the crash: %v, %+v", err, p.b.Counts())
		}
		at := p.r.attempt(p.r.a, p.r.b)
		if err := at.run(t.Context()); err == nil {
			t.Error("the dead accepted")
		}
	})
}
