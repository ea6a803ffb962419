package inbox

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/frame"
	"github.com/hawser-transport/hawser/sdk"
)

// A part that is full leaves no trace, and is not what a session without room
// is: the next ack grants what there is.
func TestAFullPartLeavesNoTrace(t *testing.T) {
	f := newFixture()
	p := f.NewPart(2, 1000)
	s := f.session(1)
	take := func(seq uint64) Verdict {
		return s.Take(frame.Header{Seq: seq, Ack: 1}, 2, f.now, func() Verdict { return p.Put(int(seq), 10) })
	}
	for seq, want := range []Verdict{Entered, Entered, PartFull} {
		if got := take(uint64(seq + 1)); got != want {
			t.Errorf("number %d: %v, want %v", seq+1, got, want)
		}
	}
	if _, a := f.Ack(s, nil); a.Cumulative != 2 || a.RoomSeq != 2+38 {
		t.Errorf("%+v, want the room as it is", a)
	}
	if f.take(s, 1, 4) != Entered {
		t.Error("another part is held back")
	}
	if _, err := p.Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := take(3); got != Entered {
		t.Errorf("with room: %v", got)
	}
	if frames, bytes := f.Len(); frames != 3 || bytes != 30 || p.Len() != 2 {
		t.Errorf("%d items of %d bytes, %d in the part", frames, bytes, p.Len())
	}
}

// What bounds all parts counts before what bounds one.
func TestPartBounds(t *testing.T) {
	f := newFixture()
	p, bytes := f.NewPart(100, 1000), f.NewPart(100, 15)
	for i, want := range []Verdict{Entered, Entered, PartFull} {
		if got := bytes.Put(i, 10); got != want {
			t.Errorf("item %d: %v, want %v", i, got, want)
		}
	}
	for i := range 38 {
		if got := p.Put(i, 1); got != Entered {
			t.Fatalf("item %d: %v", i, got)
		}
	}
	for _, part := range []*Part[int]{p, bytes, f.Rest()} {
		if got := part.Put(0, 1); got != NoRoom {
			t.Errorf("with all parts' bound reached: %v", got)
		}
	}
}

func TestAwaitRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue[int](1, 100, func(*Session) {})
		other := q.NewPart(1, 1)
		if !q.Rest().AwaitRoom() {
			t.Error("there is room")
		}
		q.Put(1, 1)
		start := time.Now()
		time.AfterFunc(time.Hour, func() { _, _ = q.Get(t.Context()) })
		if !q.Rest().AwaitRoom() || time.Since(start) != time.Hour {
			t.Errorf("waited %v", time.Since(start))
		}
		q.Put(1, 1)
		time.AfterFunc(time.Hour, q.Close)
		q.Rest().AwaitRoom()
		if time.Since(start) != 2*time.Hour || q.Rest().AwaitRoom() {
			t.Error("a closed queue is waited for")
		}
		_, _ = q.Get(t.Context())
		if _, err := other.Get(t.Context()); !errors.Is(err, sdk.Closed) {
			t.Errorf("%v", err)
		}
	})
}

// A place wakes one of those that wait, the parts in turn; whoever waits for a
// part that is full keeps nobody else from it; a large item that leaves makes
// room for as many small ones as fit.
func TestAwaitRoomWakesOneForEachPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue[int](10, 1000, func(*Session) {})
		one, two := q.NewPart(1, 1000), q.NewPart(10, 1000)
		var mu sync.Mutex
		var count [3]int
		woken := func() [3]int { mu.Lock(); defer mu.Unlock(); return count }
		wait := func(i int, p *Part[int], n int) {
			for range n {
				go func() {
					for p.Put(i, 1) != Entered {
						if !p.AwaitRoom() {
							return
						}
					}
					mu.Lock()
					defer mu.Unlock()
					count[i]++
				}()
			}
			synctest.Wait()
		}
		q.Put(0, 1000) // no byte is left
		wait(1, one, 3)
		wait(2, two, 3)
		if got := woken(); got != [3]int{} {
			t.Fatalf("%v found room in a full queue", got)
		}
		_, _ = q.Get(t.Context())
		synctest.Wait()
		if got := woken(); got != [3]int{0, 1, 3} {
			t.Errorf("%v entered once there was room for all but part one's bound", got)
		}
		for want := 2; want <= 3; want++ {
			_, _ = one.Get(t.Context())
			synctest.Wait()
			if got := woken(); got != [3]int{0, want, 3} {
				t.Errorf("%v, want %d of part one", got, want)
			}
		}
		wait(1, one, 1)
		q.Close()
	})
}
