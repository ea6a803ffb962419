package mapping

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// hold makes the driver's calls of one name wait until the returned function
// is called.
func (d *driver) hold(call string) (letGo func()) {
	gate := make(chan struct{})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.before = func(c string, _ int) error {
		if c == call {
			<-gate
		}
		return nil
	}
	return sync.OnceFunc(func() { close(gate) })
}

// refuse makes the driver refuse the first n calls of one name.
func (d *driver) refuse(call string, n int) {
	var refused atomic.Int64 // before is called from several goroutines
	d.mu.Lock()
	defer d.mu.Unlock()
	d.before = func(c string, _ int) error {
		if c == call && refused.Add(1) <= int64(n) {
			return errInjected
		}
		return nil
	}
}

func TestRangesAndKeysAreChecked(t *testing.T) {
	r := newRig(t, Options{})
	s := r.p.publish(0x1000, fabric, true)
	other := r.p.publish(0x2000, fabric, true)
	r.announce(t, s)
	local := r.NewLocal()
	defer local.Close()
	for round := range 2 { // cold, then warm
		for _, c := range []struct {
			name           string
			key            Key
			offset, length uint64
			want           sdk.Code
		}{
			{"all", s.Key, 0, 1000, 0},
			{"the last byte", s.Key, 999, 1, 0},
			{"one too many", s.Key, 0, 1001, sdk.InvalidArgument},
			{"beyond", s.Key, 1001, 0, sdk.InvalidArgument},
			{"a wrap", s.Key, 10, math.MaxUint64 - 5, sdk.InvalidArgument},
			{"nothing there", other.Key, 0, 1, sdk.StaleCapability},
			{"another capability", Key{s.Provider, s.Base, other.Capability}, 0, 1, sdk.StaleCapability},
			{"no capability", Key{s.Provider, s.Base, sdk.Capability{}}, 0, 1, sdk.StaleCapability},
			{"another life", Key{sdk.Incarnation{9}, s.Base, s.Capability}, 0, 1, sdk.StaleCapability},
		} {
			for name, from := range map[string]interface {
				Acquire(context.Context, Key, uint64, uint64) (Lease[view], error)
			}{"cache": r, "local": local} {
				l, err := from.Acquire(t.Context(), c.key, c.offset, c.length)
				if sdk.CodeOf(err) != c.want {
					t.Errorf("%s, %s, round %d: %v", c.name, name, round, err)
				}
				if err == nil && l.Mapping().read() != r.p.content-1 {
					t.Errorf("%s: wrong content", c.name)
				}
				l.Release()
			}
		}
	}
	if r.d.imports != 1 {
		t.Errorf("%d imports", r.d.imports)
	}
}

func TestOneImportHoweverManyAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		letGo := r.d.hold("get map")
		s := r.p.publish(0x1000, fabric, true)
		r.announce(t, s)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				l := r.acquire(t, s)
				if l.Mapping().id != 1 || l.Mapping().read() != r.p.content {
					t.Error("another mapping")
				}
				l.Release()
			})
		}
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := r.Acquire(ctx, s.Key, 0, 1)
			left <- err
		}()
		synctest.Wait()
		if got := r.Stats(); got.Importing != 1 || got.Leases != 51 {
			t.Fatalf("%+v", got)
		}
		leave()
		err := <-left
		wantCode(t, err, sdk.DeadlineExceeded, "still under way")
		if !errors.Is(err, context.Canceled) {
			t.Error("the cause is lost")
		}
		letGo()
		wg.Wait()
		if r.d.imports != 1 || r.e.count(Imported, "") != 1 {
			t.Errorf("%d imports, %d told", r.d.imports, r.e.count(Imported, ""))
		}
	})
}

// Who asked is gone before the import ends: it is there for the next.
func TestImportGoesOnAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		letGo := r.d.hold("get map")
		s := r.p.publish(0x1000, fabric, true)
		r.announce(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.Acquire(ctx, s.Key, 0, 1)
		wantCode(t, err, sdk.DeadlineExceeded, "under way")
		letGo()
		synctest.Wait()
		if got := r.Stats(); got.Live != 1 || got.Leases != 0 {
			t.Fatalf("%+v", got)
		}
		r.acquire(t, s).Release()
		if r.d.imports != 1 {
			t.Errorf("%d imports", r.d.imports)
		}
	})
}

func TestFailedImport(t *testing.T) {
	coded := sdk.Errorf(sdk.Unsupported, "no such device")
	for _, c := range []struct {
		name string
		fail func() error
		want sdk.Code
		part string
	}{
		{"an error", func() error { return errInjected }, sdk.Refused, "injected"},
		{"a coded error", func() error { return coded }, sdk.Unsupported, "no such device"},
		{"a panic", func() error { panic("oh no") }, sdk.Refused, "the importer panicked: oh no"},
		{"an exit", func() error { runtime.Goexit(); return nil }, sdk.Refused, "ended its goroutine"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, Options{})
				var failed atomic.Bool
				gate := make(chan struct{})
				r.d.before = func(call string, _ int) error {
					if call != "get map" || failed.Load() {
						return nil
					}
					<-gate
					failed.Store(true)
					return c.fail()
				}
				s := r.p.publish(0x1000, posix, true)
				r.announce(t, s)
				errs := make(chan error)
				for range 5 {
					go func() {
						_, err := r.Acquire(t.Context(), s.Key, 0, 1)
						errs <- err
					}()
				}
				synctest.Wait()
				close(gate)
				for range 5 {
					wantCode(t, <-errs, c.want, c.part)
				}
				synctest.Wait()
				r.d.check(t, true) // what it had acquired is given back
				if got := r.Stats(); got.Totals.Failed != 1 || got.Totals.Retired != 1 || r.e.count(ImportFailed, "") != 1 || r.e.count(Retired, Failed) != 1 {
					t.Errorf("%+v", got)
				}
				// It is nobody's error any more.
				r.acquire(t, s).Release()
				if r.d.imports != 2 {
					t.Errorf("%d imports", r.d.imports)
				}
			})
		})
	}
}

// What is withdrawn or replaced while it is imported is nobody's, and those
// who wait learn it before the importer returns.
func TestInvalidationDuringAnImport(t *testing.T) {
	for _, how := range []Cause{Replaced, ProviderGone, Closing} {
		t.Run(string(how), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, Options{})
				letGo := r.d.hold("get map")
				defer letGo()
				s := r.p.publish(0x1000, posix, true)
				r.announce(t, s)
				waiter := make(chan error)
				go func() {
					_, err := r.Acquire(t.Context(), s.Key, 0, 1)
					waiter <- err
				}()
				synctest.Wait()
				want := sdk.StaleCapability
				switch how {
				case Replaced:
					r.announce(t, r.p.publish(0x1000, posix, true))
				case ProviderGone:
					r.RetireProvider(s.Provider)
				case Closing:
					want = sdk.Closed
					ctx, cancel := context.WithCancel(t.Context())
					cancel()
					wantCode(t, r.Close(ctx), sdk.Busy, "its import is still under way")
				}
				wantCode(t, <-waiter, want, "")
				synctest.Wait()
				if got := r.Stats(); got.Retiring != 1 {
					t.Fatalf("%+v", got)
				}
				letGo()
				synctest.Wait()
				r.d.check(t, true)
				if r.e.count(Imported, "") != 0 || r.e.count(Retired, how) != 1 {
					t.Error("told otherwise")
				}
			})
		})
	}
}

func TestImportsContextEndsWhenItIsNotWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(func(ctx context.Context, _ Source, _ *Cleanup) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}, Options{})
		s := newProvider(1).publish(0x1000, fabric, true)
		if err := c.Announce(s); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := c.Acquire(ctx, s.Key, 0, 1)
		wantCode(t, err, sdk.DeadlineExceeded, "")
		if got := c.Stats(); got.Importing != 1 {
			t.Fatalf("%+v: who leaves ends no import", got)
		}
		if err := c.Withdraw(within1h(t), s.Key); err != nil {
			t.Error(err)
		}
		if err := c.Close(within1h(t)); err != nil {
			t.Fatal(err)
		}
	})
}

// Scenarios 47, 48 and 50.
func TestNewCapabilityAtTheSameBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		local := r.NewLocal()
		defer local.Close()
		old := r.p.publish(0x1000, posix, true)
		r.announce(t, old)
		before, err := local.Acquire(t.Context(), old.Key, 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		content := r.p.content
		next := r.p.publish(0x1000, posix, true)
		r.announce(t, next)
		for range 2 {
			after, err := local.Acquire(t.Context(), next.Key, 0, 1000)
			if err != nil {
				t.Fatal(err)
			}
			if after.Mapping().read() != content+1 || before.Mapping().read() != content {
				t.Fatal("wrong content")
			}
			after.Release()
		}
		_, err = local.Acquire(t.Context(), old.Key, 0, 1000)
		wantCode(t, err, sdk.StaleCapability, "was replaced by")
		synctest.Wait()
		if got := r.Stats(); got.Live != 1 || got.Retiring != 1 || got.Leases != 1 {
			t.Fatalf("%+v: the copy is in flight", got)
		}
		before.Release()
		synctest.Wait()
		if got := r.Stats(); got.Live != 1 || got.Retiring != 0 || r.e.count(Retired, Replaced) != 1 {
			t.Fatalf("%+v", got)
		}
		// A late descriptor changes nothing.
		wantCode(t, r.Announce(old), sdk.StaleCapability, "")
		// Not even once the successor is gone.
		r.RetireProvider(old.Provider)
		wantCode(t, r.Announce(old), sdk.StaleCapability, "comes too late")
		old.Version = next.Version + 1
		wantCode(t, r.Announce(old), sdk.StaleCapability, "comes too late")
	})
}

// Scenario 54.
func TestWithoutCapability(t *testing.T) {
	for _, c := range []struct {
		kind         Kind
		newVersion   bool
		otherHandle  bool
		wantImported int
	}{
		{fabric, false, false, 1}, {fabric, true, false, 1}, {fabric, true, true, 2},
		{posix, false, false, 1}, {posix, true, false, 2}, {ipc, false, false, 1}, {ipc, true, false, 2},
	} {
		t.Run(fmt.Sprint(c.kind.Name, c.newVersion, c.otherHandle), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, Options{})
				s := r.p.publish(0x1000, c.kind, false)
				r.announce(t, s)
				r.acquire(t, s).Release()
				if c.newVersion {
					s.Version++
				}
				if c.otherHandle {
					s.Handle = []byte{s.Handle[0] + 1}
				}
				r.announce(t, s)
				r.acquire(t, s).Release()
				if r.d.imports != c.wantImported {
					t.Errorf("%d imports", r.d.imports)
				}
				// With a capability the old key is no way to the new memory.
				r.p.version = s.Version
				r.announce(t, r.p.publish(0x1000, c.kind, true))
				_, err := r.Acquire(t.Context(), s.Key, 0, 1)
				wantCode(t, err, sdk.StaleCapability, "was replaced")
			})
		})
	}
}

func TestExclusiveBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		old := r.p.publish(0x1000, ipc, true)
		elsewhere := r.p.publish(0x2000, ipc, true)
		r.announce(t, old)
		r.announce(t, elsewhere)
		held := r.acquire(t, old)
		next := r.p.publish(0x1000, ipc, true)
		r.announce(t, next)
		r.acquire(t, elsewhere).Release() // of another base: no wait
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.Acquire(ctx, next.Key, 0, 1)
		wantCode(t, err, sdk.Busy, "1 lease is held")

		got := make(chan Lease[view])
		go func() { got <- r.acquire(t, next) }()
		synctest.Wait()
		if r.d.imports != 2 {
			t.Fatalf("%d imports: one was opened beside the old one", r.d.imports)
		}
		// Who waits for what is replaced meanwhile learns it at once.
		elsewhereHeld := r.acquire(t, elsewhere)
		second, third := r.p.publish(0x2000, ipc, true), r.p.publish(0x2000, ipc, true)
		r.announce(t, second)
		stale := make(chan error)
		go func() {
			_, err := r.Acquire(within1h(t), second.Key, 0, 1)
			stale <- err
		}()
		synctest.Wait()
		r.announce(t, third)
		wantCode(t, <-stale, sdk.StaleCapability, "was replaced")
		go func() {
			_, err := r.Acquire(within1h(t), third.Key, 0, 1)
			stale <- err
		}()
		synctest.Wait()
		r.Withdraw(ctx, third.Key)
		wantCode(t, <-stale, sdk.StaleCapability, "nothing is announced")
		elsewhereHeld.Release()
		held.Release()
		l := <-got
		if l.Mapping().read() != next.Attributes["memory"][0] {
			t.Fatal("old content")
		}
		// What the driver does not close keeps the base, and nobody waits.
		r.d.refuse("release ipc", 1<<30)
		last := r.p.publish(0x1000, ipc, true)
		r.announce(t, last)
		go func() {
			_, err := r.Acquire(within1h(t), last.Key, 0, 1)
			stale <- err
		}()
		synctest.Wait()
		l.Release()
		wantCode(t, <-stale, sdk.Busy, `"ipc" has been refused`)
		began := time.Now()
		_, err = r.Acquire(within1h(t), last.Key, 0, 1)
		wantCode(t, err, sdk.Busy, `"ipc" has been refused`)
		if time.Since(began) > 0 {
			t.Error("it waited")
		}
		r.d.refuse("", 0)
	})
}

func TestMaxMappings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{MaxMappings: 3})
		var sources []Source
		for n := range uint64(5) {
			sources = append(sources, r.p.publish(n<<12, fabric, true))
			r.announce(t, sources[n])
		}
		var leases []Lease[view]
		for _, s := range sources[:3] {
			leases = append(leases, r.acquire(t, s))
			time.Sleep(time.Second)
		}
		_, err := r.Acquire(t.Context(), sources[3].Key, 0, 1)
		wantCode(t, err, sdk.Busy, "3 mappings, the limit")

		leases[1].Release()
		time.Sleep(time.Second)
		leases[0].Release()
		l := r.acquire(t, sources[3])
		synctest.Wait()
		if got := r.Stats(); got.Live != 3 || got.Totals.Evicted != 1 || r.e.count(Evicted, Crowded) != 1 || r.e.count(Retired, Crowded) != 1 {
			t.Fatalf("%+v", got)
		}
		l.Release()
		leases[2].Release()

		// What is being given back still counts, and is waited for.
		letGo := r.d.hold("release map")
		got := make(chan Lease[view])
		go func() { got <- r.acquire(t, sources[4]) }()
		synctest.Wait()
		if n := len(r.Mappings()); n != 3 || r.Stats().Retiring != 1 || r.d.imports != 4 {
			t.Fatalf("%d mappings, %d imports", n, r.d.imports)
		}
		letGo()
		(<-got).Release()

		// What is stuck counts, too, and is not waited for.
		r.d.refuse("release map", 1<<30)
		for _, s := range r.Mappings() {
			go r.Withdraw(t.Context(), s.Key)
		}
		synctest.Wait()
		var left Source
		for _, s := range sources {
			if r.Announce(s) == nil {
				left = s
			}
		}
		_, err = r.Acquire(t.Context(), left.Key, 0, 1)
		wantCode(t, err, sdk.Busy, "the limit")
		if got := r.Stats(); got.Stuck != 3 {
			t.Fatalf("%+v", got)
		}
		r.d.refuse("", 0)
	})
}

func TestSourcesAreBounded(t *testing.T) {
	r := newRig(t, Options{MaxMappings: 2})
	var sources []Source
	for n := range uint64(100) {
		sources = append(sources, r.p.publish(n<<12, fabric, true))
		r.announce(t, sources[n])
		if n < 2 {
			defer r.acquire(t, sources[n]).Release()
		}
	}
	if got := r.Stats(); got.Sources != 8 || len(r.places) != 8 {
		t.Fatalf("%+v, %d places", got, len(r.places))
	}
	r.acquire(t, sources[0]).Release()
	_, err := r.Acquire(t.Context(), sources[2].Key, 0, 1)
	wantCode(t, err, sdk.StaleCapability, "nothing is announced")
	r.announce(t, sources[2]) // it is still current
	older := sources[3]
	older.Version--
	wantCode(t, r.Announce(older), sdk.StaleCapability, "too late")
}
