//go:build linux

package engine

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// reluctant is a transport that takes its time to give up what it maps of a
// peer's memory.
type reluctant struct {
	*undying
	takes *atomic.Int64
	shut  chan struct{}
}

func (r reluctant) Close(ctx context.Context) error {
	close(r.shut)
	return r.undying.Close(ctx)
}

func (r reluctant) Withdraw(ctx context.Context, i Incarnation, c Capability) error {
	select {
	case <-time.After(time.Duration(r.takes.Load())):
		return r.undying.Withdraw(ctx, i, c)
	case <-ctx.Done():
		return Busy
	case <-r.shut:
		return PluginExited
	}
}

// reluctant makes an engine's fast transport one; the time may be changed. One
// that does not die ends with the test.
func (w *world) reluctant(address string, d time.Duration, dies bool) *atomic.Int64 {
	takes := &atomic.Int64{}
	takes.Store(int64(d))
	c := w.configs[address]
	c.Transports = []TransportConfig{
		{Name: "fast", InProcess: func() sdk.Transport {
			r := reluctant{newUndying(w.fast.New(address)), takes, make(chan struct{})}
			if dies {
				close(r.letGo)
			} else {
				context.AfterFunc(w.t.Context(), func() { close(r.letGo) })
			}
			return r
		}},
		{Name: rpcFallbackName, InProcess: func() sdk.Transport { return w.slow.New(address) }},
	}
	w.configs[address] = c
	return takes
}

// goodbyes is when each goodbye came, by whose it was.
func goodbyes(events *Subscription) map[string]time.Time {
	at := map[string]time.Time{}
	for ev := range events.C() {
		if ev.Err != nil && strings.Contains(ev.Err.Error(), "said goodbye") {
			at[ev.Address] = ev.Time
		}
	}
	return at
}

// Who says goodbye maps nothing any more: the provider frees its memory then. It
// is said even if that takes long, and to others at once.
func TestAGoodbyeWaitsForMappings(t *testing.T) {
	for _, takes := range []time.Duration{0, 200 * time.Millisecond, 2 * time.Second, time.Hour} {
		moving(t, func(w *world) {
			w.reluctant("a:1", takes, true)
			a, b, mine, theirs, g, _ := w.movers(100)
			c := w.open("c:1")
			w.connected(a, c)
			providers, others := b.Events(context.Background()), c.Events(context.Background())
			if err := w.write(a, mine, theirs, g, 100); err != nil {
				t.Fatal(err)
			}
			theirs.region.HandleKind = sdk.IPCHandle
			began := time.Now()
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				w.shut(a)
			}()
			time.Sleep(time.Millisecond)
			if _, mapped := w.fast.Regions("a:1"); mapped == 0 && takes > 0 {
				t.Errorf("%v: nothing was mapped", takes)
			}
			if err := theirs.Close(context.Background()); err != nil {
				t.Error(err)
			}
			if _, mapped := w.fast.Regions("a:1"); mapped != 0 {
				t.Errorf("%v: memory was given up after %v that a consumer maps", takes, time.Since(began))
			}
			<-closed
			if took := time.Since(began); took > min(takes, goodbyeTimeout)+time.Second {
				t.Errorf("%v: Close took %v", takes, took)
			}
			_ = g.Close()
			w.shut(b, c)
			if at, ok := goodbyes(providers)["a:1"]; !ok {
				t.Errorf("%v: no goodbye to the provider", takes)
			} else if took := at.Sub(began); took < min(takes, goodbyeTimeout) || takes < goodbyeTimeout && took > takes+100*time.Millisecond {
				t.Errorf("%v: goodbye after %v", takes, took)
			}
			if at, ok := goodbyes(others)["a:1"]; !ok || at.Sub(began) > 10*time.Millisecond {
				t.Errorf("%v: goodbye to one without memory after %v", takes, at.Sub(began))
			}
			w.giveUp()
		})
	}
}

// A provider that is closed has its consumers give up the memory that it has
// exported, and lets their ops end. Host memory needs none of that.
func TestAProviderRecallsWhatItHasExported(t *testing.T) {
	for _, busy := range []bool{false, true} {
		for _, exported := range []bool{false, true} {
			moving(t, func(w *world) {
				w.reluctant("a:1", 2*time.Second, true)
				a, b, mine, theirs, g, _ := w.movers(100)
				if err := w.write(a, mine, theirs, g, 100); err != nil {
					t.Fatal(err)
				}
				if exported {
					theirs.region.HandleKind = sdk.IPCHandle
				}
				if busy {
					w.fast.HoldWrites("b:1", true)
					x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
					time.AfterFunc(4*time.Second, func() { w.fast.HoldWrites("b:1", false) })
					defer func() {
						if err := w.done(x); exported && err != nil {
							t.Errorf("its op: %v", err)
						}
					}()
				}
				time.Sleep(time.Millisecond)
				began := time.Now()
				w.shut(b)
				took, want := time.Since(began), 2*time.Second
				if busy {
					want += 4 * time.Second
				}
				if exported && (took < want-time.Millisecond || took > want+2*time.Second) || !exported && took > 100*time.Millisecond {
					t.Errorf("busy %v, exported %v: Close took %v", busy, exported, took)
				}
				if err := theirs.Close(context.Background()); err != nil {
					t.Error(err)
				}
				if _, mapped := w.fast.Regions("a:1"); exported && mapped != 0 {
					t.Errorf("busy %v: memory was given up that a consumer maps", busy)
				}
				_ = g.Close()
				w.shut(a)
				w.giveUp()
			})
		}
	}
}

// Consumers are asked, too, if Close has no time left: those that are idle answer
// at once, and nobody can ask them later.
func TestAProviderRecallsInNoTime(t *testing.T) {
	moving(t, func(w *world) {
		w.reluctant("a:1", 200*time.Millisecond, true)
		a, b, mine, theirs, g, _ := w.movers(100)
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Fatal(err)
		}
		theirs.region.HandleKind = sdk.IPCHandle
		over, cancel := context.WithCancel(context.Background())
		cancel()
		if err := b.Close(over); err != nil {
			t.Error(err)
		}
		if err := theirs.Close(context.Background()); err != nil {
			t.Error(err)
		}
		_ = g.Close()
		w.shut(a)
		w.giveUp()
	})
}

// Of what its consumers have not given up by then, since they are silent or the
// time is over, a region's Close says so at once, and does not take it for free:
// an operator may.
func TestExportedMemoryIsHeldAfterTheEnginesClose(t *testing.T) {
	for _, tt := range []struct {
		silent      bool
		time        time.Duration // that Close has
		least, most time.Duration // that it takes
	}{
		{true, time.Hour, stopTimeout, 2 * stopTimeout},
		{false, time.Minute, time.Minute, time.Minute},
		{false, time.Hour, maxDeadline, maxDeadline + 20*time.Second}, // as long as an op may last
	} {
		moving(t, func(w *world) {
			takes := w.reluctant("a:1", time.Hour, true)
			a, b, mine, theirs, g, _ := w.movers(100)
			host := w.region(b, 100, RegionOptions{})
			if err := w.write(a, mine, theirs, g, 100); err != nil {
				t.Fatal(err)
			}
			theirs.region.HandleKind = sdk.IPCHandle
			ctx, cancel := context.WithTimeout(context.Background(), tt.time)
			defer cancel()
			if tt.silent {
				w.freeze(a)
			}
			began := time.Now()
			says(t, b.Close(ctx), []Code{Busy}, []string{theirs.Capability().Short(), "held by consumer a:1"}, []string{host.Capability().Short()})
			if took := time.Since(began); took < tt.least || took > tt.most+time.Second {
				t.Errorf("silent %v: Close took %v", tt.silent, took)
			}
			began = time.Now()
			again, stop := context.WithTimeout(context.Background(), time.Minute)
			defer stop()
			says(t, theirs.Close(again), []Code{Busy}, []string{"held by consumer a:1"}, nil)
			if err := host.Close(context.Background()); err != nil {
				t.Error(err)
			}
			if list := b.Mappings(); len(list) != 1 || list[0].State != MappingHeld || list[0].Peer != "a:1" {
				t.Errorf("%+v", list)
			}
			if n, err := b.RetireMappings(context.Background(), "a:1"); n != 1 || err != nil {
				t.Errorf("retired %d, %v", n, err)
			}
			if err := theirs.Close(context.Background()); err != nil || time.Since(began) > time.Second {
				t.Errorf("%v after %v", err, time.Since(began))
			}
			takes.Store(0)
			w.thaw(a)
			_ = g.Close()
			w.shut(a)
			w.giveUp()
		})
	}
}

// A consumer's process that does not die outlives its engine, and may map what
// was exported: that is free when an operator says so, and not because nobody
// answers, or somebody else does. Host memory cannot be reached by it any more.
func TestAConsumersProcessThatDoesNotDie(t *testing.T) {
	for _, busy := range []bool{false, true} {
		moving(t, func(w *world) {
			w.reluctant("a:1", time.Hour, false)
			c := w.configs["a:1"]
			c.Plugins.StopTimeoutMS, c.Plugins.AbandonAfterMS = 500, 1000
			w.configs["a:1"] = c
			a, b, mine, theirs, g, _ := w.movers(100)
			host := w.region(b, 100, RegionOptions{})
			if err := w.write(a, mine, theirs, g, 100); err != nil {
				t.Fatal(err)
			}
			theirs.region.HandleKind = sdk.IPCHandle
			if busy {
				w.fast.HoldWrites("b:1", true)
				w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = a.Close(ctx)
			w.fast.HoldWrites("b:1", false)
			short, stop := context.WithTimeout(context.Background(), time.Minute)
			defer stop()
			says(t, theirs.Close(short), []Code{Busy}, []string{"held by consumer a:1", "of which a process does not die"}, nil)
			// Nobody answers for it, so nobody is waited for.
			if answer, _, held := b.memory.heldStill([]*Region{theirs}, time.Now()); answer || held == nil {
				t.Errorf("an answer may come: %v; held: %v", answer, held)
			}
			if began := time.Now(); host.Close(context.Background()) != nil || time.Since(began) > silenceCheck {
				t.Errorf("host memory is free after %v", time.Since(began))
			}
			untold := b.stats.descriptors[descNotTold].Load()
			delete(w.configs, "a:1")
			next := w.open("a:1")
			w.connectedAt(next, "b:1")
			short, stop = context.WithTimeout(context.Background(), time.Minute)
			defer stop()
			says(t, theirs.Close(short), []Code{Busy}, []string{"of which a process does not die"}, nil)
			if n := b.stats.descriptors[descNotTold].Load() - untold; n > 1 {
				t.Errorf("asked %d times", n)
			}
			if n, err := b.RetireMappings(context.Background(), a.incarnation.Short()); n != 1 || err != nil {
				t.Errorf("retired %d, %v", n, err)
			}
			if err := theirs.Close(context.Background()); err != nil {
				t.Error(err)
			}
			b.memory.mu.Lock()
			if n := len(b.memory.readers); n != 0 {
				t.Errorf("%d readers are remembered", n)
			}
			b.memory.mu.Unlock()
			drain(b)
			_ = g.Close()
			w.shut(next, b)
		})
	}
}
