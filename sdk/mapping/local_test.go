package mapping

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// Scenario 49: eight workers with warm views while what they see is replaced,
// withdrawn and retired with its provider. The driver takes down whoever reads
// what is unmapped; contents tell whoever reads what is old.
func TestWorkersDuringInvalidation(t *testing.T) {
	const workers, rounds = 8, 100
	type publication struct {
		s       Source
		content byte
		number  uint64
		warm    atomic.Int64 // workers that have hit it
	}
	r := newRig(t, Options{})
	var current atomic.Pointer[publication]
	var announced atomic.Uint64 // the number of the publication announced last
	var hits, stale atomic.Int64
	publish := func(number uint64, k Kind) *publication {
		p := &publication{s: r.p.publish(0x1000, k, true), number: number}
		p.content = r.p.content
		r.announce(t, p.s)
		announced.Store(number)
		current.Store(p)
		return p
	}
	publish(0, fabric)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	done := make(chan Lease[view], 64) // released by others than who acquired
	wg.Go(func() {
		for l := range done {
			l.Mapping().read()
			l.Release()
		}
	})
	var ws sync.WaitGroup
	for range workers {
		ws.Go(func() {
			local := r.NewLocal()
			defer local.Close()
			var last *publication
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
					runtime.Gosched() // few processors, and one goroutine that invalidates
				}
				p, floor := current.Load(), announced.Load()
				l, err := local.Acquire(context.Background(), p.s.Key, 0, 1000)
				switch {
				case err == nil && p.number < floor:
					t.Errorf("a lease of publication %d, after %d was announced", p.number, floor)
				case err == nil:
					if p == last {
						hits.Add(1)
						p.warm.Add(1)
					}
					last = p
					if got := l.Mapping().read(); got != p.content {
						t.Errorf("content %d, want %d", got, p.content)
					}
					if n%3 == 0 {
						done <- l
					} else {
						l.Mapping().read()
						l.Release()
					}
				case sdk.CodeOf(err) == sdk.StaleCapability:
					stale.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	for n := range uint64(rounds) {
		p := current.Load()
		for p.warm.Load() < 2*workers && !t.Failed() {
			runtime.Gosched()
		}
		switch n % 3 {
		case 1:
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := r.Withdraw(ctx, p.s.Key); err != nil {
				t.Error(err)
			}
			cancel()
			r.d.mu.Lock()
			for _, content := range r.d.mapped { // or a predecessor
				if content == p.content {
					t.Error("withdrawn, and still mapped")
				}
			}
			r.d.mu.Unlock()
		case 2:
			r.RetireProvider(p.s.Provider)
		}
		publish(n+1, []Kind{fabric, posix, ipc}[n%3])
	}
	close(stop)
	ws.Wait()
	close(done)
	wg.Wait()
	if stale.Load() == 0 || hits.Load() < 2*workers*rounds {
		t.Errorf("%d warm leases, %d refused: nothing was put to the test", hits.Load(), stale.Load())
	}
}

// A hit counts itself before it looks whether the mapping is live; whoever
// retires it looks at the count after it said so. One goroutine each, many
// times.
func TestHitsAndRetirementsRace(t *testing.T) {
	r := newRig(t, Options{})
	local := r.NewLocal()
	defer local.Close()
	const rounds = 1000
	refused := 0
	for range rounds {
		s := r.p.publish(0x1000, ipc, true)
		r.announce(t, s)
		l, err := local.Acquire(t.Context(), s.Key, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		l.Release()
		gone := make(chan error)
		go func() { gone <- r.Withdraw(t.Context(), s.Key) }()
		for {
			l, err := local.Acquire(t.Context(), s.Key, 0, 1)
			if err != nil {
				wantCode(t, err, sdk.StaleCapability, "")
				refused++
				break
			}
			l.Mapping().read()
			l.Release()
		}
		if err := <-gone; err != nil {
			t.Fatal(err)
		}
	}
	if refused != rounds {
		t.Errorf("%d refused", refused)
	}
}

func TestClosedViewsLeasesCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Options{})
		s := r.p.publish(0x1000, fabric, true)
		r.announce(t, s)
		var held []Lease[view]
		for range 100 {
			local := r.NewLocal()
			for range 2 {
				l, err := local.Acquire(t.Context(), s.Key, 0, 1)
				if err != nil {
					t.Fatal(err)
				}
				held = append(held, l)
			}
			local.Close()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got := r.Stats(); got.Leases != 200 {
			t.Fatalf("%+v", got)
		}
		for _, l := range held[:199] {
			l.Release()
		}
		time.Sleep(time.Minute) // a sweep
		var refs int
		r.mu.Lock()
		for m := range r.mappings {
			refs = len(m.refs)
		}
		r.mu.Unlock()
		if got := r.Stats(); got.Leases != 1 || refs != 2 {
			t.Fatalf("%+v, %d references", got, refs)
		}
		wantCode(t, r.Withdraw(ctx, s.Key), sdk.Busy, "1 lease is held")
		held[199].Release()
		if err := r.Withdraw(t.Context(), s.Key); err != nil {
			t.Fatal(err)
		}
	})
}

// What a view refers to is bounded by what is live.
func TestViewsForgetRetiredMappings(t *testing.T) {
	r := newRig(t, Options{})
	local := r.NewLocal()
	defer local.Close()
	for range 1000 {
		s := r.p.publish(0x1000, fabric, true)
		r.announce(t, s)
		l, err := local.Acquire(t.Context(), s.Key, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		l.Release()
	}
	if n := len(local.refs); n > 20 {
		t.Errorf("%d references, one mapping is live", n)
	}
}

// Leases reuse slots: as many as were ever held at once.
func TestSlotsAreReused(t *testing.T) {
	var s slots
	seen := map[*slot]bool{}
	for range 100 {
		var out []*slot
		for range 5 {
			f := s.take()
			seen[f] = true
			out = append(out, f)
		}
		for _, f := range out {
			s.put(f)
		}
	}
	if len(seen) != 5 {
		t.Errorf("%d slots for 5 at a time", len(seen))
	}
}

func TestAHitAllocatesNothing(t *testing.T) {
	r := newRig(t, Options{})
	s := r.p.publish(0x1000, fabric, true)
	r.announce(t, s)
	local := r.NewLocal()
	defer local.Close()
	r.on = nil
	ctx := t.Context()
	if n := testing.AllocsPerRun(1000, func() {
		l, err := local.Acquire(ctx, s.Key, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		l.Release()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func benchmark(b *testing.B, acquire func(*Cache[view]) (func(Key) (Lease[view], error), func())) {
	d := newDriver()
	p := newProvider(1)
	c := New(d.importer, Options{})
	var keys []Key
	for n := range uint64(64) {
		s := p.publish(n<<12, fabric, true)
		if err := c.Announce(s); err != nil {
			b.Fatal(err)
		}
		keys = append(keys, s.Key)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		get, end := acquire(c)
		defer end()
		for n := 0; pb.Next(); n++ {
			l, err := get(keys[n%len(keys)])
			if err != nil {
				b.Error(err)
				return
			}
			l.Release()
		}
	})
	b.StopTimer()
	if err := c.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
}

// A hit and its release, over 64 mappings in turn.
func BenchmarkLocal(b *testing.B) {
	benchmark(b, func(c *Cache[view]) (func(Key) (Lease[view], error), func()) {
		l := c.NewLocal()
		return func(k Key) (Lease[view], error) { return l.Acquire(context.Background(), k, 0, 1) }, l.Close
	})
}

// The same through the cache, which all share.
func BenchmarkCache(b *testing.B) {
	benchmark(b, func(c *Cache[view]) (func(Key) (Lease[view], error), func()) {
		return func(k Key) (Lease[view], error) { return c.Acquire(context.Background(), k, 0, 1) }, func() {}
	})
}
