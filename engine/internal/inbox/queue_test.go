package inbox

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/hawser-transport/hawser/sdk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestQueueBounds(t *testing.T) {
	for _, c := range []struct {
		name          string
		frames, bytes int
		sizes         []int
		want          []bool
	}{
		{"frames", 2, 100, []int{1, 1, 1}, []bool{true, true, false}},
		{"bytes reached", 9, 100, []int{60, 40, 1}, []bool{true, true, false}},
		{"a frame is admitted while the bytes are below", 9, 100, []int{99, 500, 1}, []bool{true, true, false}},
		{"one of any size fits an empty queue", 9, 100, []int{1 << 20, 1}, []bool{true, false}},
		{"frames of no size count as frames", 2, 1, []int{0, 0, 0}, []bool{true, true, false}},
	} {
		q := NewQueue[int](c.frames, c.bytes, func(*Session) {})
		for i, size := range c.sizes {
			if got := q.Put(i, size); got != c.want[i] {
				t.Errorf("%s: frame %d of %d bytes: %v", c.name, i, size, got)
			}
		}
		if _, err := q.Get(t.Context()); err != nil {
			t.Fatal(err)
		}
		frames, bytes := q.Len()
		if got, want := q.Put(9, 1), frames < c.frames && bytes < c.bytes; got != want {
			t.Errorf("%s: after one was taken: %v", c.name, got)
		}
	}
}

func TestQueueAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frames, bound := rapid.IntRange(1, 100).Draw(t, "frames"), rapid.IntRange(1, 300).Draw(t, "bytes")
		q := NewQueue[int](frames, bound, func(*Session) {})
		type item struct{ v, size int }
		var model []item
		bytes, next := 0, 0
		for range rapid.IntRange(0, 300).Draw(t, "steps") {
			if rapid.IntRange(0, 2).Draw(t, "what") > 0 {
				size := rapid.IntRange(0, 20).Draw(t, "size")
				want := len(model) < frames && bytes < bound
				if got := q.Put(next, size); got != want {
					t.Fatalf("put is %v with %d frames and %d bytes", got, len(model), bytes)
				}
				if want {
					model = append(model, item{next, size})
					bytes += size
				}
				next++
			} else if len(model) > 0 {
				got, err := q.Get(context.Background())
				if err != nil || got != model[0].v {
					t.Fatalf("got %d %v, want %d", got, err, model[0].v)
				}
				bytes -= model[0].size
				model = model[1:]
			}
			if n, b := q.Len(); n != len(model) || b != bytes {
				t.Fatalf("length %d and %d bytes, want %d and %d", n, b, len(model), bytes)
			}
		}
	})
}

func TestGetWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue[int](10, 10, func(*Session) {})
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("enough")
		got := make(chan error, 1)
		go func() {
			_, err := q.Get(ctx)
			got <- err
		}()
		synctest.Wait()
		cancel(cause)
		if err := <-got; !errors.Is(err, cause) {
			t.Errorf("got %v", err)
		}
		go func() {
			v, err := q.Get(t.Context())
			if v != 7 {
				err = errors.Join(err, errors.New("wrong item"))
			}
			got <- err
		}()
		synctest.Wait()
		q.Put(7, 1)
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
}

func TestCloseHandsOutWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue[int](10, 10, func(*Session) {})
		q.Put(1, 1)
		q.Put(2, 1)
		q.Close()
		q.Close()
		if q.Put(3, 1) {
			t.Error("a closed queue takes more")
		}
		for want := 1; want <= 2; want++ {
			if v, err := q.Get(t.Context()); v != want || err != nil {
				t.Errorf("got %d %v, want %d", v, err, want)
			}
		}
		if _, err := q.Get(t.Context()); !errors.Is(err, sdk.Closed) {
			t.Errorf("got %v", err)
		}
	})
}

func TestCloseWakesEverybody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue[int](10, 10, func(*Session) {})
		var woken atomic.Int32
		for range 20 {
			go func() {
				if _, err := q.Get(t.Context()); errors.Is(err, sdk.Closed) {
					woken.Add(1)
				}
			}()
		}
		synctest.Wait()
		q.Close()
		synctest.Wait()
		if n := woken.Load(); n != 20 {
			t.Errorf("%d of 20 woke up", n)
		}
	})
}

// As many items as there are waiters, put before any of them runs: one token
// must wake them all.
func TestEveryWaiterIsWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue[int](100, 100, func(*Session) {})
		for range 200 {
			var got atomic.Int32
			for range 20 {
				go func() {
					if _, err := q.Get(t.Context()); err == nil {
						got.Add(1)
					}
				}()
			}
			synctest.Wait()
			for i := range 20 {
				q.Put(i, 1)
			}
			synctest.Wait()
			if n := got.Load(); n != 20 {
				t.Fatalf("%d of 20 got something", n)
			}
		}
	})
}

// Producers and consumers at once, with a queue that is full or empty most of
// the time. A lost wakeup is a deadlock, which the bubble reports.
func TestConcurrentPutAndGet(t *testing.T) {
	for _, frames := range []int{1, 3, 64} {
		synctest.Test(t, func(t *testing.T) {
			const producers, each = 4, 3000
			var room atomic.Int64
			q := NewQueue[int](frames, 1<<20, func(*Session) { room.Add(1) })
			s := q.NewSession(1, time.Now())
			var seen [producers * each]atomic.Int32
			var in, out sync.WaitGroup
			for p := range producers {
				in.Go(func() {
					for i := range each {
						for !q.Put(p*each+i, 10) {
							q.Ack(s, nil)
							runtime.Gosched()
						}
					}
				})
			}
			for range 3 {
				out.Go(func() {
					for {
						v, err := q.Get(t.Context())
						if err != nil {
							return
						}
						seen[v].Add(1)
					}
				})
			}
			in.Wait()
			q.Close()
			out.Wait()
			for v := range seen {
				if n := seen[v].Load(); n != 1 {
					t.Fatalf("item %d came %d times", v, n)
				}
			}
		})
	}
}

// A waiter that gives up takes no other's wakeup with it.
func TestCancelledWaitersLoseNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue[int](100, 1000, func(*Session) {})
		for i := range 500 {
			ctx, cancel := context.WithCancel(t.Context())
			var got atomic.Int32
			get := func(ctx context.Context) {
				if _, err := q.Get(ctx); err == nil {
					got.Add(1)
				}
			}
			go get(ctx)
			go get(ctx)
			go get(t.Context())
			synctest.Wait()
			go cancel()
			q.Put(i, 1)
			synctest.Wait()
			if n := got.Load(); n != 1 {
				t.Fatalf("%d got the item", n)
			}
			q.Put(i, 1) // for the one that may be waiting still
			synctest.Wait()
			if n, _ := q.Len(); n > 0 {
				if _, err := q.Get(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			cancel()
		}
	})
}

func BenchmarkPutGet(b *testing.B) {
	q := NewQueue[[64]byte](4096, 1<<20, func(*Session) {})
	b.ReportAllocs()
	for b.Loop() {
		q.Put([64]byte{}, 64)
		if _, err := q.Get(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPutGetFull(b *testing.B) {
	q := NewQueue[int](4096, 1<<20, func(*Session) {})
	for i := range 4095 {
		q.Put(i, 64)
	}
	b.ReportAllocs()
	for b.Loop() {
		q.Put(0, 64)
		if _, err := q.Get(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
