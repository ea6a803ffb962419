package mapping

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

func TestLeasesAreReleasedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		s := r.p.publish(0x1000, fabric, true)
		r.announce(t, s)
		local := r.NewLocal()
		defer local.Close()
		for name, from := range map[string]func() (Lease[view], error){
			"cache": func() (Lease[view], error) { return r.Acquire(t.Context(), s.Key, 0, 1) },
			"local": func() (Lease[view], error) { return local.Acquire(t.Context(), s.Key, 0, 1) },
		} {
			a, err := from()
			if err != nil {
				t.Fatal(err)
			}
			again := a
			a.Release()
			b, err := from() // may have the slot that a had
			if err != nil {
				t.Fatal(err)
			}
			again.Release()
			a.Release()
			if got := r.Stats(); got.Leases != 1 {
				t.Fatalf("%s: %+v", name, got)
			}
			if (again.Mapping() != view{}) || (b.Mapping() == view{}) {
				t.Errorf("%s: a released lease gives a mapping", name)
			}
			b.Release()
			if got := r.Stats(); got.Leases != 0 {
				t.Fatalf("%s: %+v", name, got)
			}
		}
		var none Lease[view]
		none.Release()
		if (none.Mapping() != view{}) {
			t.Error("the zero lease gives a mapping")
		}
	})
}

func TestWithdraw(t *testing.T) {
	for _, capability := range []bool{true, false} {
		t.Run(fmt.Sprint(capability), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, Options{})
				local := r.NewLocal()
				defer local.Close()
				s := r.p.publish(0x1000, posix, capability)
				r.announce(t, s)
				a := r.acquire(t, s)
				b, err := local.Acquire(t.Context(), s.Key, 0, 1)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				wantCode(t, r.Withdraw(ctx, s.Key), sdk.Busy, "2 leases are held")
				_, err = local.Acquire(t.Context(), s.Key, 0, 1)
				wantCode(t, err, sdk.StaleCapability, "nothing is announced")

				done := make(chan error, 2)
				letGo := r.d.hold("release fd")
				for range 2 { // a second call waits, too
					go func() { done <- r.Withdraw(within1h(t), s.Key) }()
				}
				a.Release()
				synctest.Wait()
				if r.d.check(t, false); a.Mapping() != (view{}) || b.Mapping().read() != r.p.content {
					t.Fatal("wrong content")
				}
				b.Release()
				synctest.Wait()
				select {
				case err := <-done:
					t.Fatal("it did not wait for the last step", err)
				default:
				}
				letGo()
				for range 2 {
					if err := <-done; err != nil {
						t.Fatal(err)
					}
				}
				r.d.check(t, true)
				// Late descriptors.
				wantCode(t, r.Announce(s), sdk.StaleCapability, "too late")
				s.Version++
				if err := r.Announce(s); (err == nil) == capability {
					t.Errorf("a newer descriptor: %v", err)
				}
				if got := r.Stats(); got.Sources != map[bool]int{true: 0, false: 1}[capability] {
					t.Errorf("%+v", got)
				}
			})
		})
	}
}

// A withdrawal may come before the descriptor that it is about.
func TestWithdrawOfWhatIsNotKnown(t *testing.T) {
	r := newRig(t, Options{})
	s := r.p.publish(0x1000, fabric, true)
	if err := r.Withdraw(within1h(t), s.Key); err != nil {
		t.Fatal(err)
	}
	wantCode(t, r.Announce(s), sdk.StaleCapability, "too late")
	r.announce(t, r.p.publish(0x1000, fabric, true))
}

// A withdrawal of what was replaced leaves the successor alone, and waits for
// the old mapping, which an eviction may have begun to retire.
func TestWithdrawOfWhatWasReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		old := r.p.publish(0x1000, fabric, true)
		r.announce(t, old)
		held := r.acquire(t, old)
		next := r.p.publish(0x1000, fabric, true)
		r.announce(t, next)
		r.acquire(t, next).Release()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantCode(t, r.Withdraw(ctx, old.Key), sdk.Busy, "1 lease is held")
		held.Release()
		if err := r.Withdraw(within1h(t), old.Key); err != nil {
			t.Fatal(err)
		}
		if got := r.Stats(); got.Live != 1 || got.Retiring != 0 || r.e.count(Retired, "") != 1 {
			t.Fatalf("%+v", got)
		}
	})
}

// Scenario 56, and the reuse of its endpoint's name and addresses.
// TestForget: what was forgotten is gone when it returns, and may come back.
func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		one, two := r.p.publish(0, fabric, true), r.p.publish(1<<12, fabric, true)
		r.announce(t, one)
		r.announce(t, two)
		held := r.acquire(t, one)
		r.acquire(t, two).Release()
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantCode(t, r.Forget(soon, one.Provider, one.Capability), sdk.Busy, "1 lease is held")
		_, err := r.Acquire(t.Context(), one.Key, 0, 1)
		wantCode(t, err, sdk.StaleCapability, "nothing is announced")
		held.Release()
		if err := r.Forget(within1h(t), one.Provider, one.Capability); err != nil {
			t.Fatal(err)
		}
		if got := r.Stats(); got.Live != 1 || got.Retiring != 0 || got.Sources != 1 {
			t.Fatalf("%+v", got)
		}
		r.announce(t, one)
		r.acquire(t, one).Release()
		if err := r.Forget(within1h(t), one.Provider, sdk.Capability{}); err != nil {
			t.Fatal(err)
		}
		if got := r.Stats(); got.Live+got.Retiring+got.Sources != 0 {
			t.Fatalf("all was to be forgotten: %+v", got)
		}
		r.announce(t, two)
		r.acquire(t, two).Release()
	})
}

// Who waits for a mapping's end does not wait for one that came after it, which
// may be somebody's who waits for the caller.
func TestWhatComesLaterIsNotWaitedFor(t *testing.T) {
	for _, tt := range []struct {
		name  string
		end   func(*rig, Source) error
		stays bool // what was announced
	}{
		{"forget", func(r *rig, s Source) error { return r.Forget(context.Background(), s.Provider, s.Capability) }, false},
		{"evict", func(r *rig, s Source) error { return r.Evict(context.Background(), s.Key) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, Options{})
				one := r.p.publish(0, fabric, true)
				r.announce(t, one)
				held := r.acquire(t, one)
				over := make(chan error, 1)
				go func() { over <- tt.end(r, one) }()
				synctest.Wait()
				if !tt.stays {
					r.announce(t, one)
				}
				later := r.acquire(t, one)
				if len(over) > 0 {
					t.Error("a lease is not waited for")
				}
				held.Release()
				synctest.Wait()
				if len(over) == 0 {
					t.Error("it waits for the later one")
				}
				later.Release()
				if err := <-over; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestRetireProvider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		other := newProvider(2)
		var sources []Source
		for n := range uint64(3) {
			sources = append(sources, r.p.publish(n<<12, fabric, n > 0))
			r.announce(t, sources[n])
		}
		r.acquire(t, sources[0]).Release()
		held := r.acquire(t, sources[1])
		alive := other.publish(0, fabric, true)
		r.announce(t, alive)
		r.acquire(t, alive).Release()

		r.RetireProvider(r.p.id)
		r.RetireProvider(r.p.id)
		synctest.Wait()
		if got := r.Stats(); got.Live != 1 || got.Retiring != 1 || got.Sources != 1 {
			t.Fatalf("%+v", got)
		}
		for _, s := range sources {
			_, err := r.Acquire(t.Context(), s.Key, 0, 1)
			wantCode(t, err, sdk.StaleCapability, "nothing is announced")
			s.Version--
			wantCode(t, r.Announce(s), sdk.StaleCapability, "too late")
		}
		if held.Mapping().read() != r.p.content-1 {
			t.Error("wrong content")
		}
		held.Release()
		synctest.Wait()
		if got := r.Stats(); got.Retiring != 0 || r.e.count(Retired, ProviderGone) != 2 {
			t.Fatalf("%+v", got)
		}
		// It was not dead after all.
		r.announce(t, sources[1])
		r.acquire(t, sources[1]).Release()
		// Its successor has another life: the same addresses are other memory.
		successor := newProvider(3)
		s := successor.publish(1<<12, fabric, true)
		s.Capability = sources[1].Capability // even so
		r.announce(t, s)
		l := r.acquire(t, s)
		if l.Mapping().read() != successor.content {
			t.Error("the predecessor's content")
		}
		l.Release()
	})
}

func TestIdleMappingsAreEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{Idle: time.Minute})
		local := r.NewLocal()
		defer local.Close()
		var sources []Source
		for n := range uint64(3) {
			sources = append(sources, r.p.publish(n<<12, fabric, true))
			r.announce(t, sources[n])
		}
		r.acquire(t, sources[0]).Release()
		held := r.acquire(t, sources[1])
		for range 10 { // a warm view keeps it, without the cache's help
			l, err := local.Acquire(t.Context(), sources[2].Key, 0, 1)
			if err != nil {
				t.Fatal(err)
			}
			l.Release()
			time.Sleep(50 * time.Second)
		}
		if got := r.Stats(); got.Live != 2 || got.Totals.Evicted != 1 || r.e.count(Evicted, Idle) != 1 {
			t.Fatalf("%+v", got)
		}
		time.Sleep(90 * time.Second)
		if got := r.Stats(); got.Live != 1 || got.Leases != 1 {
			t.Fatalf("%+v", got)
		}
		held.Release()
		time.Sleep(55 * time.Second)
		if got := r.Stats(); got.Live != 1 {
			t.Fatalf("%+v: evicted before its time", got)
		}
		time.Sleep(40 * time.Second)
		if got := r.Stats(); got.Live != 0 || got.Totals.Retired != 3 {
			t.Fatalf("%+v", got)
		}
		r.d.check(t, true)
		// It is still announced.
		l, err := local.Acquire(t.Context(), sources[2].Key, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		l.Release()
	})
}

func TestIdleForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{Idle: -1})
		s := r.p.publish(0x1000, fabric, true)
		r.announce(t, s)
		r.acquire(t, s).Release()
		time.Sleep(1000 * time.Hour)
		if got := r.Stats(); got.Live != 1 {
			t.Fatalf("%+v", got)
		}
	})
}

func TestRefusedStepsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		s := r.p.publish(0x1000, posix, true)
		r.announce(t, s)
		r.acquire(t, s).Release()
		var mu sync.Mutex
		var tries []time.Duration
		began := time.Now()
		r.d.before = func(call string, _ int) error {
			mu.Lock()
			defer mu.Unlock()
			if call == "release range" {
				if tries = append(tries, time.Since(began)); len(tries) < 12 {
					return errInjected
				}
			}
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantCode(t, r.Withdraw(ctx, s.Key), sdk.Busy, `"range" has been refused since `)
		got := r.Mappings()
		if len(got) != 1 || got[0].State != "retiring" || got[0].Stuck.Step != "range" || !got[0].Stuck.Since.Equal(began) || got[0].Stuck.Tries != 4 || got[0].Cause != Withdrawn {
			t.Fatalf("%+v", got)
		}
		if s := r.Stats(); s.Stuck != 1 || s.Retiring != 1 {
			t.Fatalf("%+v", s)
		}
		if r.d.open["fd"] != 1 || r.d.open["handle"] != 1 || r.d.open["map"] != 0 {
			t.Fatalf("%v: the later steps wait, the earlier one is done", r.d.open)
		}
		if err := r.Withdraw(within1h(t), s.Key); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for i, want := 1, 100*time.Millisecond; i < len(tries); i++ {
			if got := tries[i] - tries[i-1]; got != want {
				t.Errorf("pause %d is %v, want %v", i, got, want)
			}
			want = min(2*want, 30*time.Second)
		}
		if len(tries) != 12 || r.d.fired != 11 || r.e.count(StepRefused, "") != 1 {
			t.Errorf("%d tries, %d refused, %d told", len(tries), r.d.fired, r.e.count(StepRefused, ""))
		}
		r.d.check(t, true)
	})
}

func TestCleanupsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		for n := range uint64(3 * cleaners) {
			s := r.p.publish(n<<12, fabric, true)
			r.announce(t, s)
			r.acquire(t, s).Release()
		}
		calls := r.d.calls
		letGo := r.d.hold("release map")
		r.RetireProvider(r.p.id)
		synctest.Wait()
		r.d.mu.Lock()
		at := r.d.calls - calls
		r.d.mu.Unlock()
		if got := r.Stats(); at != cleaners || got.Retiring != 3*cleaners {
			t.Errorf("%d at a time, %+v", at, got)
		}
		letGo()
	})
}

// One error after the other, at each call of a mapping's life: what is
// acquired is given back once, whatever fails.
func TestErrorAtEachCall(t *testing.T) {
	for _, k := range []Kind{fabric, posix, ipc} {
		t.Run(k.Name, func(t *testing.T) {
			for at := 1; ; at++ {
				fired := 0
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t, Options{})
					r.d.before = func(_ string, n int) error {
						if n == at {
							return errInjected
						}
						return nil
					}
					s := r.p.publish(0x1000, k, true)
					r.announce(t, s)
					l, err := r.Acquire(t.Context(), s.Key, 0, 1)
					if err == nil && l.Mapping().read() != r.p.content {
						t.Error("wrong content")
					}
					l.Release()
					if err := r.Withdraw(within1h(t), s.Key); err != nil {
						t.Error(err)
					}
					r.d.check(t, true)
					fired = r.d.fired
				})
				if fired == 0 {
					if want := map[string]int{"fabric": 6, "fd": 8, "ipc": 2}[k.Name]; at-1 != want {
						t.Errorf("%d calls, want %d", at-1, want)
					}
					return
				}
			}
		})
	}
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		local := r.NewLocal()
		defer local.Close()
		s := r.p.publish(0x1000, posix, true)
		next := r.p.publish(0x2000, posix, true)
		r.announce(t, s)
		r.announce(t, next)
		r.acquire(t, next).Release()
		replaced := r.p.publish(0x3000, posix, true)
		r.announce(t, replaced)
		old := r.acquire(t, replaced)
		r.announce(t, r.p.publish(0x3000, posix, true))
		l, err := local.Acquire(t.Context(), s.Key, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantCode(t, r.Close(ctx), sdk.Busy, "close: 2 mappings are left; the oldest is mapping ")
		wantCode(t, r.Close(ctx), sdk.Busy, "1 lease is held")
		closed := make(chan error, 2)
		for range 2 {
			go func() { closed <- r.Close(t.Context()) }()
		}
		synctest.Wait()
		if l.Mapping().read() != s.Attributes["memory"][0] {
			t.Error("wrong content")
		}
		old.Release()
		for range 2 { // while it closes, and afterwards
			_, err = local.Acquire(t.Context(), s.Key, 0, 1)
			wantCode(t, err, sdk.Closed, "")
			_, err = r.Acquire(t.Context(), s.Key, 0, 1)
			wantCode(t, err, sdk.Closed, "")
			wantCode(t, r.Announce(s), sdk.Closed, "")
			wantCode(t, r.Withdraw(within1h(t), s.Key), sdk.Closed, "")
			r.RetireProvider(r.p.id)
			if l.Release(); len(closed) == 0 {
				synctest.Wait()
			}
		}
		for range 2 {
			if err := <-closed; err != nil {
				t.Fatal(err)
			}
		}
		r.d.check(t, true)
		if got := r.Stats(); got != (Stats{Totals: got.Totals}) || got.Totals.Retired != 3 || r.e.count(Retired, Closing) != 2 || r.e.count(Retired, Replaced) != 1 {
			t.Errorf("%+v", got)
		}
	})
}

// Hooks are called without the lock: they may ask the cache.
func TestHooksMayAskTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		var c *Cache[view]
		var mu sync.Mutex
		var told []What
		c = New(d.importer, Options{On: func(e Event) {
			mu.Lock()
			told = append(told, e.What)
			mu.Unlock()
			_, _ = c.Mappings(), c.Stats()
			_ = c.Announce(Source{})
		}})
		s := newProvider(1).publish(0x1000, fabric, true)
		if err := c.Announce(s); err != nil {
			t.Fatal(err)
		}
		local := c.NewLocal()
		for range 2 {
			l, err := local.Acquire(t.Context(), s.Key, 0, 1)
			if err != nil {
				t.Fatal(err)
			}
			l.Release()
			synctest.Wait()
		}
		local.Close()
		time.Sleep(2 * time.Minute)
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if want := []What{Imported, Hit, Evicted, Retired}; !slices.Equal(told, want) {
			t.Errorf("%q, want %q", told, want)
		}
	})
}
