package mapping

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// Scenario 51.
func TestTenThousandCycles(t *testing.T) {
	r := newRig(t, Options{})
	goroutines := runtime.NumGoroutine()
	local := r.NewLocal()
	defer local.Close()
	kinds := []Kind{fabric, posix, ipc}
	const cycles = 10_000
	for n := range cycles {
		s := r.p.publish(uint64(n%3)<<12, kinds[n%3], n%5 > 0)
		r.announce(t, s)
		l, err := local.Acquire(t.Context(), s.Key, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		if l.Mapping().read() != r.p.content {
			t.Fatal("wrong content")
		}
		l.Release()
		if n%4 == 0 {
			if err := r.Withdraw(t.Context(), s.Key); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.RetireProvider(r.p.id)
	if err := r.await(t.Context(), func() error {
		for m := range r.mappings {
			return m.waiting("")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	r.d.check(t, true)
	if r.d.imports != cycles || r.d.maps != cycles {
		t.Errorf("%d imports, %d mapped", r.d.imports, r.d.maps)
	}
	if got := r.Stats(); got.Sources != 0 || got.Totals != (Totals{Imported: cycles, Retired: cycles}) || len(r.places) != 0 {
		t.Errorf("%+v, %d places", got, len(r.places))
	}
	local.Close()
	for runtime.NumGoroutine() > goroutines { // the last cleaner is about to end
		runtime.Gosched()
	}
}

// Scenario 52: close, uninstall, invalidation and eviction at once, while the
// last lease is released. The driver takes down a second release.
func TestEverythingRetiresAtOnce(t *testing.T) {
	for n := range 300 {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, Options{MaxMappings: 2})
			s := r.p.publish(0x1000, []Kind{fabric, posix, ipc}[n%3], true)
			r.announce(t, s)
			held := r.acquire(t, s)
			other := r.p.publish(0x2000, posix, true)
			r.announce(t, other)
			r.acquire(t, other).Release()
			third := r.p.publish(0x3000, posix, true)
			r.announce(t, third)
			next := r.p.publish(0x1000, posix, true)
			if n%2 == 0 { // one refusal, wherever it falls
				r.d.refuse([]string{"release map", "release ipc", "release range"}[n%3], 1)
			}
			begin := make(chan struct{})
			var wg sync.WaitGroup
			for _, f := range []func(){
				func() { _ = r.Withdraw(t.Context(), s.Key) },
				func() { _ = r.Withdraw(t.Context(), s.Key) },
				func() { _ = r.Announce(next) },
				func() { r.RetireProvider(s.Provider) },
				func() { r.evictIdle(time.Now().Add(time.Hour)) },
				func() {
					if l, err := r.Acquire(t.Context(), third.Key, 0, 1); err == nil {
						l.Release()
					}
				},
				func() { _ = r.Close(t.Context()) },
				func() { _ = r.Close(t.Context()) },
				held.Release,
				held.Release,
			} {
				wg.Go(func() { <-begin; f() })
			}
			synctest.Wait()
			close(begin)
			wg.Wait()
			r.d.check(t, true)
			if got := r.Stats(); got.Totals.Retired != uint64(r.d.imports) || got.Totals.Imported < 2 {
				t.Errorf("%+v", got)
			}
			for w, want := range map[What]uint64{Retired: r.Stats().Totals.Retired, Imported: r.Stats().Totals.Imported} {
				if got := r.e.count(w, ""); uint64(got) != want {
					t.Errorf("%d %s told, %d counted", got, w, want)
				}
			}
		})
	}
}

// Everything at once, with a driver that refuses every tenth call, in fake
// time. What a lease gives is always the memory of its key, and at the end
// nothing is held.
func TestStress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDriver()
		d.before = func(string, int) error {
			if rand.IntN(10) == 0 {
				return errInjected
			}
			return nil
		}
		e := &events{}
		c := New(d.importer, Options{MaxMappings: 8, Idle: 2 * time.Second, On: e.on})
		var mu sync.Mutex
		var all []known
		providers := []*provider{newProvider(1), newProvider(2)}
		kinds := []Kind{fabric, posix, ipc}
		publish := func() {
			mu.Lock()
			defer mu.Unlock()
			n := rand.Uint64N(6)
			p := providers[n%2]
			s := p.publish(n<<12, kinds[n/2], true)
			all = append(all, known{s, p.content})
			if err := c.Announce(s); err != nil {
				t.Error(err)
			}
		}
		pick := func() known {
			mu.Lock()
			defer mu.Unlock()
			return all[len(all)-1-rand.IntN(min(len(all), 8))]
		}
		for range 10 {
			publish()
		}
		var leases, refused atomic.Int64
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() {
				local := c.NewLocal()
				defer func() { local.Close() }()
				for range 1500 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rand.IntN(300))*time.Millisecond)
					k := pick()
					switch n := rand.IntN(200); {
					case n < 8:
						publish()
					case n == 8:
						_ = c.Withdraw(ctx, k.s.Key)
					case n == 9:
						c.RetireProvider(k.s.Provider)
					case n < 20:
						_ = c.Announce(k.s)
					case n == 20:
						local.Close()
						local = c.NewLocal()
					case n < 23:
						time.Sleep(time.Duration(rand.IntN(5000)) * time.Millisecond)
					default:
						from := local.Acquire
						if worker%4 == 0 {
							from = c.Acquire
						}
						l, err := from(ctx, k.s.Key, rand.Uint64N(500), 500)
						if err != nil {
							refused.Add(1)
							if code := sdk.CodeOf(err); code != sdk.StaleCapability && code != sdk.Busy && code != sdk.Refused && code != sdk.DeadlineExceeded {
								t.Error(err)
							}
							break
						}
						leases.Add(1)
						if got := l.Mapping().read(); got != k.content {
							t.Errorf("content %d, want %d", got, k.content)
						}
						if rand.IntN(2) == 0 {
							time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
						}
						l.Mapping().read()
						l.Release()
					}
					cancel()
				}
			})
		}
		wg.Wait()
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		d.check(t, true)
		if leases.Load() < 1000 || refused.Load() < 100 || d.fired < 100 || e.count(StepRefused, "") < 10 || e.count(Evicted, Idle) == 0 {
			t.Errorf("%d leases, %d refused, %d injected, %d steps refused, %d idle", leases.Load(), refused.Load(), d.fired, e.count(StepRefused, ""), e.count(Evicted, Idle))
		}
		got := c.Stats()
		t.Logf("%d leases, %d refused; %+v", leases.Load(), refused.Load(), got)
	})
}
