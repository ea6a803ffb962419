package inbox

import (
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/hawser-transport/hawser/engine/internal/dedup"
	"github.com/hawser-transport/hawser/engine/internal/frame"
)

// fixture is a queue of 40 places and 4000 bytes that notes who was told of
// room.
type fixture struct {
	*Queue[int]
	now time.Time
	fed []uint64
}

func newFixture() *fixture {
	f := &fixture{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	f.Queue = NewQueue[int](40, 4000, func(s *Session) { f.fed = append(f.fed, s.ID()) })
	return f
}

func (f *fixture) session(id uint64) *Session { return f.NewSession(id, f.now) }

// take has a session judge a notification at protocol 2.
func (f *fixture) take(s *Session, floor, seq uint64) Verdict {
	return s.Take(frame.Header{Seq: seq, Ack: floor}, 2, f.now, func() Verdict { return f.rest.Put(int(seq), 10) })
}

func (f *fixture) fill(n int) {
	for i := range n {
		f.Put(i, 10)
	}
}

func (f *fixture) get(t *testing.T, n int) {
	t.Helper()
	if have, _ := f.Len(); n > have {
		t.Fatalf("%d of %d are to be taken", n, have)
	}
	for range n {
		if _, err := f.Get(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// fedNow returns who was told of room since the last call.
func (f *fixture) fedNow() []uint64 {
	fed := f.fed
	f.fed = nil
	return fed
}

func TestTake(t *testing.T) {
	type step struct {
		proto int
		floor uint64
		seq   uint64
		want  Verdict
	}
	two := func(floor, seq uint64, want Verdict) step { return step{2, floor, seq, want} }
	one := func(seq uint64, want Verdict) step { return step{1, 0, seq, want} }
	for _, c := range []struct {
		name  string
		steps []step
		cum   uint64
	}{
		{"new, then a copy", []step{two(1, 1, Entered), two(1, 1, Duplicate)}, 1},
		{"number 0", []step{two(0, 0, OutOfRange), one(0, OutOfRange)}, 0},
		{"floor 0", []step{two(0, 1, OutOfRange)}, 0},
		{"below its own floor", []step{two(2, 1, OutOfRange)}, 0},
		{"at its floor", []step{two(2, 2, Entered)}, 2},
		{"the last that its floor allows", []step{two(1, 4096, Entered)}, 0},
		{"one beyond that", []step{two(1, 4097, OutOfRange)}, 0},
		{"a frame out of range moves no floor", []step{two(100, 5000, OutOfRange), two(1, 1, Entered)}, 1},
		{"below an earlier floor", []step{two(10, 10, Entered), two(1, 5, Duplicate)}, 10},
		{"the floor of a copy counts", []step{two(1, 5, Entered), two(5, 5, Duplicate)}, 5},
		{"wraps around", []step{two(1<<64-10, 5, OutOfRange), two(1<<64-1, 1<<64-1, OutOfRange)}, 0},
		{"the last number there is", []step{two(dedup.Last, dedup.Last, Entered), two(dedup.Last, dedup.Last+1, OutOfRange)}, dedup.Last},
		{"protocol 1 has no floor", []step{one(5, Entered), one(5, Duplicate), one(1, Entered), one(1<<64-1, OutOfRange)}, 1},
		{"protocol 1, too late to tell", []step{one(5000, Entered), one(904, TooLate), one(905, Entered)}, 905},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture()
			s := f.session(1)
			for i, x := range c.steps {
				puts := 0
				got := s.Take(frame.Header{Seq: x.seq, Ack: x.floor}, x.proto, f.now, func() Verdict { puts++; return Entered })
				if got != x.want || (puts == 1) != (x.want == Entered) {
					t.Errorf("step %d: verdict %d, want %d; put %d times", i, got, x.want, puts)
				}
			}
			if _, a := f.Ack(s, nil); a.Cumulative != c.cum {
				t.Errorf("cumulative %d, want %d", a.Cumulative, c.cum)
			}
		})
	}
}

func TestNoRoomLeavesNoTrace(t *testing.T) {
	f := newFixture()
	s := f.session(1)
	f.fill(40)
	for range 2 {
		if got := f.take(s, 3, 5); got != NoRoom {
			t.Fatalf("verdict %d", got)
		}
	}
	// The floor counts even though the frame was dropped.
	if _, a := f.Ack(s, nil); a.Cumulative != 2 || len(a.Ranges) != 0 {
		t.Errorf("ack %+v", a)
	}
	f.get(t, 1)
	if got := f.take(s, 3, 5); got != Entered {
		t.Errorf("verdict %d when there is room", got)
	}
	if n, a := f.Ack(s, nil); n != 2 || !reflect.DeepEqual(a.Ranges, []frame.Range{{First: 5, Last: 5}}) {
		t.Errorf("ack %d %+v", n, a)
	}
}

// The same stamps over several transports at once: each enters once.
func TestConcurrentTakesEnterOnce(t *testing.T) {
	q := NewQueue[uint64](1<<16, 1<<30, func(*Session) {})
	s := q.NewSession(1, time.Now())
	const n = 4096
	var entered [n + 1]atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for seq := uint64(1); seq <= n; seq++ {
				if s.Take(frame.Header{Seq: seq, Ack: 1}, 2, time.Now(), func() Verdict { return q.rest.Put(seq, 1) }) == Entered {
					entered[seq].Add(1)
				}
			}
		})
	}
	wg.Wait()
	for seq := 1; seq <= n; seq++ {
		if c := entered[seq].Load(); c != 1 {
			t.Fatalf("%d entered %d times", seq, c)
		}
	}
	if frames, _ := q.Len(); frames != n {
		t.Errorf("%d in the queue", frames)
	}
}

func TestEndedSession(t *testing.T) {
	f := newFixture()
	s := f.session(1)
	f.take(s, 1, 1)
	s.Rest(f.now, true)
	s.Rest(f.now, true)
	if got := f.take(s, 1, 2); got != Ended {
		t.Errorf("verdict %d", got)
	}
	s.Floor(100, f.now)
	if _, a := f.Ack(s, nil); a.Cumulative != 1 {
		t.Errorf("cumulative %d", a.Cumulative)
	}
	if n, _ := f.Len(); n != 1 {
		t.Errorf("%d in the queue", n)
	}
	if n := f.active.n.Load(); n != 0 {
		t.Errorf("%d sessions count as active", n)
	}
}

func TestFloorOfARequest(t *testing.T) {
	f := newFixture()
	s := f.session(1)
	f.take(s, 1, 4)
	s.Floor(0, f.now)
	s.Floor(1<<64-1, f.now)
	s.Floor(4, f.now)
	if _, a := f.Ack(s, nil); a.Cumulative != 4 || a.Ranges != nil {
		t.Errorf("ack %+v", a)
	}
}

func TestSeen(t *testing.T) {
	f := newFixture()
	s := f.session(1)
	f.now = f.now.Add(time.Hour)
	f.take(s, 9, 1) // out of range, and yet a word from its sender
	if !s.Seen().Equal(f.now) {
		t.Error("a frame does not count as a word")
	}
	f.now = f.now.Add(time.Hour)
	s.Floor(1, f.now)
	if !s.Seen().Equal(f.now) {
		t.Error("a request does not count as a word")
	}
}

func TestAckNumbersCountFromOne(t *testing.T) {
	f := newFixture()
	a, b := f.session(1), f.session(2)
	for want := uint64(1); want <= 3; want++ {
		if n, _ := f.Ack(a, nil); n != want {
			t.Errorf("number %d, want %d", n, want)
		}
	}
	if n, _ := f.Ack(b, nil); n != 1 {
		t.Errorf("another session begins with %d", n)
	}
}

func TestShares(t *testing.T) {
	for _, c := range []struct {
		name         string
		active, idle int
		queued, size int
		seq, bytes   uint64 // granted to an active session
	}{
		{"alone, empty", 1, 0, 0, 0, 40, 4000},
		{"alone, half full", 1, 0, 20, 10, 20, 3800},
		{"four", 4, 0, 0, 0, 10, 1000},
		{"four, and less is free than a share", 4, 0, 35, 10, 5, 1000},
		{"four, and fewer bytes are free than a share", 4, 0, 5, 700, 10, 500},
		{"more than there are places", 100, 0, 0, 0, 1, 40},
		{"more than there are bytes", 5000, 0, 0, 0, 1, 1},
		{"idle ones do not count", 1, 99, 0, 0, 40, 4000},
		{"one place", 100, 0, 39, 10, 1, 40},
		{"full", 1, 0, 40, 10, 0, 0},
		{"full of bytes", 1, 0, 1, 4000, 0, 0},
		{"over the bound of bytes", 1, 0, 1, 9000, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture()
			for range c.idle {
				f.session(9)
			}
			f.now = f.now.Add(idle)
			s := f.session(1)
			for range c.active - 1 {
				f.session(2)
			}
			for range c.queued {
				f.Put(0, c.size)
			}
			f.active.add(-int64(c.idle)) // as Rest would count them
			if _, a := f.Ack(s, nil); a.RoomSeq != c.seq || a.RoomBytes != c.bytes {
				t.Errorf("granted %d and %d bytes, want %d and %d", a.RoomSeq, a.RoomBytes, c.seq, c.bytes)
			}
			if seq, bytes := f.Room(s); seq != c.seq || bytes != c.bytes {
				t.Errorf("hello grants %d and %d bytes", seq, bytes)
			}
		})
	}
}

// A session that has been silent for a minute holds one frame's share, and
// leaves the rest to the others.
func TestIdleSessions(t *testing.T) {
	f := newFixture()
	quiet, busy := f.session(1), f.session(2)
	rest := func() {
		quiet.Rest(f.now, false)
		busy.Rest(f.now, false)
	}
	share := func(s *Session) uint64 {
		_, a := f.Ack(s, nil)
		return a.RoomSeq - a.Cumulative
	}
	f.now = f.now.Add(idle - 1)
	busy.Floor(1, f.now)
	rest()
	if share(quiet) != 20 || share(busy) != 20 {
		t.Errorf("before a minute: %d and %d", share(quiet), share(busy))
	}
	f.now = f.now.Add(1)
	rest()
	rest()
	if share(quiet) != 1 || share(busy) != 40 {
		t.Errorf("after a minute: %d and %d", share(quiet), share(busy))
	}
	quiet.Floor(1, f.now)
	if share(quiet) != 20 || share(busy) != 20 {
		t.Errorf("when it speaks again: %d and %d", share(quiet), share(busy))
	}
	f.fill(40)
	f.now = f.now.Add(idle)
	quiet.Rest(f.now, false)
	if share(quiet) != 0 {
		t.Errorf("%d of a full queue", share(quiet))
	}
}

// A session that was told of little room is told when there is twice as much,
// once, or when the queue is empty.
func TestHungryIsFed(t *testing.T) {
	for _, c := range []struct {
		name         string
		queued, size int
		first        int // taken before it is told
		hungry       bool
	}{
		{"frames: a quarter is the least", 31, 10, 11, true},
		{"frames: a quarter is enough", 30, 10, 0, false},
		{"bytes: a quarter is the least", 31, 100, 11, true},
		{"one large item", 1, 3500, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture()
			s := f.session(1)
			for range c.queued {
				f.Put(0, c.size)
			}
			f.Ack(s, nil)
			f.Ack(s, nil)
			if !c.hungry {
				f.get(t, c.queued)
				if fed := f.fedNow(); fed != nil {
					t.Errorf("%v were told of room", fed)
				}
				return
			}
			f.get(t, c.first-1)
			if fed := f.fedNow(); fed != nil {
				t.Fatalf("told after %d of %d", c.first-1, c.first)
			}
			f.get(t, 1)
			if fed := f.fedNow(); !reflect.DeepEqual(fed, []uint64{1}) {
				t.Fatalf("told: %v", fed)
			}
			f.get(t, c.queued-c.first)
			if fed := f.fedNow(); fed != nil {
				t.Errorf("told again: %v", fed)
			}
			for range c.queued {
				f.Put(0, c.size)
			}
			f.Ack(s, nil)
			f.get(t, c.queued)
			if fed := f.fedNow(); !reflect.DeepEqual(fed, []uint64{1}) {
				t.Errorf("hungry once more, told: %v", fed)
			}
		})
	}
}

func TestHungryAreFedInTurn(t *testing.T) {
	f := newFixture()
	f.fill(40)
	var want []uint64
	for id := uint64(1); id <= 150; id++ {
		f.Ack(f.session(id), nil)
		want = append(want, id)
	}
	var got []uint64
	f.get(t, 19)
	for _, n := range []int{64, 64, 22, 0} {
		f.get(t, 1)
		fed := f.fedNow()
		if len(fed) != n {
			t.Fatalf("%d were told, want %d", len(fed), n)
		}
		got = append(got, fed...)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("told %v", got)
	}
}

// No call may come after that, so all are told at once.
func TestEmptyQueueFeedsEverybody(t *testing.T) {
	f := newFixture()
	f.Put(0, 9000)
	for id := uint64(1); id <= 150; id++ {
		f.Ack(f.session(id), nil)
	}
	f.get(t, 1)
	if fed := f.fedNow(); len(fed) != 150 {
		t.Errorf("%d were told", len(fed))
	}
}

func TestForget(t *testing.T) {
	f := newFixture()
	f.fill(40)
	a, b, c := f.session(1), f.session(2), f.session(3)
	for _, s := range []*Session{a, b, c} {
		f.Ack(s, nil)
	}
	f.Forget(b)
	f.Forget(b)
	f.Ack(b, nil) // an ack that was under way: it does not get in line again
	d := f.session(4)
	f.Forget(d)
	f.Ack(d, nil)
	f.get(t, 40)
	if fed := f.fedNow(); !reflect.DeepEqual(fed, []uint64{1, 3}) {
		t.Errorf("told: %v", fed)
	}
}

// A drop is acked with room 0 even if there is room again by then, so that its
// sender learns of it; the next ack has the room, and is sent unasked.
func TestADropIsAckedWithRoomZero(t *testing.T) {
	f := newFixture()
	s := f.session(1)
	f.fill(40)
	if got := f.take(s, 1, 1); got != NoRoom {
		t.Fatalf("verdict %d", got)
	}
	f.get(t, 15)
	if _, a := f.Ack(s, nil); a.RoomSeq != a.Cumulative || a.RoomBytes != 0 {
		t.Errorf("room up to %d", a.RoomSeq)
	}
	if _, a := f.Ack(s, nil); a.RoomSeq != 15 {
		t.Errorf("then up to %d", a.RoomSeq)
	}
	f.get(t, 5)
	if fed := f.fedNow(); !reflect.DeepEqual(fed, []uint64{1}) {
		t.Errorf("told: %v", fed)
	}
	if seq, _ := f.Room(s); seq != 20 {
		t.Errorf("hello grants %d", seq)
	}
}

// The queue may be empty before the ack of a drop is made: then a reader that
// waits, or the next one that comes, sees to it that room is told.
func TestADropIsFollowedByRoomWhenTheQueueIsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		s := f.session(1)
		drop := func() {
			f.fill(40)
			if got := f.take(s, 1, 1); got != NoRoom {
				t.Fatalf("verdict %d", got)
			}
			f.get(t, 40)
		}
		drop()
		go func() { _, _ = f.Get(t.Context()) }()
		synctest.Wait()
		f.Ack(s, nil)
		synctest.Wait()
		if fed := f.fedNow(); !reflect.DeepEqual(fed, []uint64{1}) {
			t.Errorf("a waiting reader tells %v", fed)
		}
		f.Put(0, 1) // for that reader
		synctest.Wait()
		drop()
		f.Ack(s, nil)
		go func() { _, _ = f.Get(t.Context()) }()
		synctest.Wait()
		if fed := f.fedNow(); !reflect.DeepEqual(fed, []uint64{1}) {
			t.Errorf("the next reader tells %v", fed)
		}
		f.Put(0, 1)
	})
}

// While there is a free place no limit is below the lowest missing number, no
// session is granted more than is free, and whoever was told of none is told
// of some once the queue is empty.
func TestRoomHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frames, bytes := rapid.IntRange(1, 50).Draw(t, "frames"), rapid.IntRange(1, 1000).Draw(t, "bytes")
		told := map[*Session]bool{} // of none, and not of more since
		q := NewQueue[int](frames, bytes, func(s *Session) { delete(told, s) })
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		sessions := make([]*Session, rapid.IntRange(1, 6).Draw(t, "sessions"))
		for i := range sessions {
			sessions[i] = q.NewSession(uint64(i+1), now)
		}
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			s := rapid.SampledFrom(sessions).Draw(t, "session")
			n, used := q.Len()
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				if n > 0 {
					if _, err := q.Get(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			case 1:
				now = now.Add(20 * time.Second)
				s.Rest(now, false)
			case 2:
				_, a := q.Ack(s, nil)
				free := n < frames && used < bytes
				granted := a.RoomSeq - a.Cumulative
				if free != (granted > 0) || free != (a.RoomBytes > 0) || granted > uint64(frames-n) {
					t.Fatalf("granted %d with %d of %d frames and %d of %d bytes", granted, n, frames, used, bytes)
				}
				if granted == 0 {
					told[s] = true
				}
			default:
				size := rapid.IntRange(0, 200).Draw(t, "size")
				seq := s.mu.window.Cumulative() + rapid.Uint64Range(1, 5).Draw(t, "seq")
				if s.Take(frame.Header{Seq: seq, Ack: 1}, 2, now, func() Verdict { return q.rest.Put(1, size) }) == NoRoom {
					if _, a := q.Ack(s, nil); a.RoomSeq != a.Cumulative {
						t.Fatal("a drop is acked with room")
					}
					told[s] = true
				}
			}
		}
		for n, _ := q.Len(); n > 0; n, _ = q.Len() {
			if _, err := q.Get(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if len(told) > 0 {
			t.Fatalf("%d sessions are never told of room", len(told))
		}
	})
}
