package rpctransport

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/plugins/rpcfallback/rpctransport/pb"
	"github.com/hawser-transport/hawser/sdk"
)

func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(1, uint64(n)))
	for i := 0; i+8 <= n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	return b
}

// TestLargeAmongSmall: large frames and thousands of small ones, both ways at
// once: all arrive once and intact, each kind in its order, and receipts count
// whole frames.
func TestLargeAmongSmall(t *testing.T) {
	a, b := rigtest.Start(t, New(), sdk.Config{Instance: 1}), rigtest.Start(t, New(), sdk.Config{Instance: 2})
	ra, rb := rigtest.NewRecorder(t), rigtest.NewRecorder(t)
	ea, eb := rigtest.Connect(t, a, b, 1, ra, rb)
	sizes := []int{1 << 20, 16 << 20, maxPacked + 1, chunkBytes, chunkBytes + 1, maxFrame, 2 * chunkBytes, 16 << 20}
	const between = 300
	var wg sync.WaitGroup
	for _, way := range []struct {
		from *rigtest.Sender
		to   *rigtest.Recorder
	}{{&rigtest.Sender{Endpoint: ea, Recorder: ra}, rb}, {&rigtest.Sender{Endpoint: eb, Recorder: rb}, ra}} {
		wg.Go(func() {
			var small, large [][]byte
			for i, size := range sizes {
				large = append(large, noise(size))
				if err := way.from.Send(large[i]); err != nil {
					t.Errorf("Send: %v", err)
					return
				}
				for k := range between {
					f := binary.LittleEndian.AppendUint32(make([]byte, k%200, k%200+4), uint32(i*between+k))
					small = append(small, f)
					if err := way.from.Send(f); err != nil {
						t.Errorf("Send: %v", err)
						return
					}
				}
			}
			way.from.Recorder.WaitDone(len(small) + len(large))
			for _, f := range way.to.WaitReceived(len(small) + len(large)) {
				kind := &small
				if len(f) > maxPacked {
					kind = &large
				}
				if len(*kind) == 0 || !bytes.Equal(f, (*kind)[0]) {
					t.Errorf("a frame of %d bytes is not the next of its kind", len(f))
					return
				}
				*kind = (*kind)[1:]
			}
			if len(small)+len(large) > 0 {
				t.Errorf("%d small and %d large ones did not arrive", len(small), len(large))
			}
		})
	}
	wg.Wait()
}

// TestSmallDoesNotWaitForLarge: while the largest frame is on its way small
// ones are answered, each in a small part of the time that it takes.
func TestSmallDoesNotWaitForLarge(t *testing.T) {
	if testing.Short() {
		t.Skip("-short measures nothing")
	}
	ratio := 0.0
	for attempt := range 5 {
		var during int
		if ratio, during = largeAgainstSmall(t); ratio < 0.25 && during >= 4 {
			return
		}
		t.Logf("attempt %d: a small one took up to %.2f of the large one's time, %d during it", attempt, ratio, during)
	}
	t.Errorf("a small frame waited for %.2f of a large one's time", ratio)
}

// largeAgainstSmall sends one frame of 16 MiB and, one after the other, small
// ones, each when the one before has its receipt, and returns the median wait
// of a small one's as a part of the large one's time, and how many there were.
func largeAgainstSmall(t *testing.T) (ratio float64, during int) {
	a, b := rigtest.Start(t, New(), sdk.Config{Instance: 1}), rigtest.Start(t, New(), sdk.Config{Instance: 2})
	ra, rb := rigtest.NewRecorder(t), rigtest.NewRecorder(t)
	var mu sync.Mutex
	var large time.Time
	arrived := make(chan time.Time, 1)
	rb.Drop = true
	rb.OnReceived = func(frames [][]byte) {
		now := time.Now()
		for _, f := range frames {
			if len(f) > maxPacked {
				mu.Lock()
				large = now
				mu.Unlock()
			} else {
				arrived <- now
			}
		}
	}
	ea, _ := rigtest.Connect(t, a, b, 1, ra, rb)
	s := &rigtest.Sender{Endpoint: ea, Recorder: ra}
	data := noise(16 << 20)
	began := time.Now()
	if err := s.Send(data); err != nil {
		t.Fatal(err)
	}
	var waits []time.Duration
	for over := false; !over; {
		at := time.Now()
		if err := s.Send([]byte("small")); err != nil {
			t.Fatal(err)
		}
		wait := (<-arrived).Sub(at)
		mu.Lock()
		over = !large.IsZero()
		mu.Unlock()
		if !over {
			waits = append(waits, wait)
		}
	}
	if len(waits) == 0 {
		return 1, 0
	}
	slices.Sort(waits)
	median := waits[len(waits)/2]
	t.Logf("16 MiB took %v; %d small ones during it, median %v, slowest %v", large.Sub(began), len(waits), median, waits[len(waits)-1])
	return float64(median) / float64(large.Sub(began)), len(waits)
}

// heap is what is in use, after a collection.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // pools keep what they have for one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestMemoryIsGivenBack: an endpoint that carried large frames and is still
// there holds no more than before, on neither side.
func TestMemoryIsGivenBack(t *testing.T) {
	a, b := rigtest.Start(t, New(), sdk.Config{Instance: 1}), rigtest.Start(t, New(), sdk.Config{Instance: 2})
	ra, rb := rigtest.NewRecorder(t), rigtest.NewRecorder(t)
	ra.Drop, rb.Drop = true, true
	ea, _ := rigtest.Connect(t, a, b, 1, ra, rb)
	s := &rigtest.Sender{Endpoint: ea, Recorder: ra}
	send := func(data []byte) {
		if err := s.Send(data); err != nil {
			t.Fatal(err)
		}
		ra.WaitDone(s.Sent())
	}
	send([]byte("x"))
	before := heap()
	for range 3 {
		send(noise(16 << 20))
	}
	// A receipt may be here before its frame's last buffers are given back.
	after := heap()
	for deadline := time.Now().Add(rigtest.Patience); after > before+1<<20 && time.Now().Before(deadline); after = heap() {
		time.Sleep(time.Millisecond)
	}
	if after > before+1<<20 {
		t.Errorf("%d KiB in use, before %d", after>>10, before>>10)
	}
}

// TestEndAmidLarge: either end may end the endpoint while a large frame is
// under way. It is not delivered, nor is it said that it never left; the one
// behind it never did.
func TestEndAmidLarge(t *testing.T) {
	for name, end := range map[string]func(s *stranger, hangUp func()){
		"closed here":    func(s *stranger, _ func()) { s.sender.Endpoint.Close() },
		"the peer left":  func(_ *stranger, hangUp func()) { hangUp() },
		"transport over": func(s *stranger, _ func()) { _ = s.node.Close(rigtest.Context(s.t)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStranger(t, `{}`)
			st, hangUp := s.welcomeFor()
			if err := s.sender.Send(noise(15 << 20)); err != nil {
				t.Fatal(err)
			}
			if err := s.sender.Send(noise(1 << 20)); err != nil {
				t.Fatal(err)
			}
			var p pb.Packet
			if err := st.RecvMsg(&p); err != nil || p.Large != 15<<20 || len(p.Chunk) == 0 {
				t.Fatalf("%d of %d bytes came: %v", len(p.Chunk), p.Large, err)
			}
			end(s, hangUp)
			_ = s.rec.WaitEnded()
			if _, done, notPosted := s.rec.Counts(); done != 0 || notPosted != 1 {
				t.Errorf("%d done, %d never left", done, notPosted)
			}
			out := s.sender.Endpoint.(*endpoint).out
			out.mu.Lock()
			defer out.mu.Unlock()
			if out.queue != nil || out.larges != nil || out.queued != 0 {
				t.Error("the frames are still held")
			}
		})
	}
}

// TestHalfALargeFrame: the peer goes amid a large frame: nothing is delivered.
func TestHalfALargeFrame(t *testing.T) {
	s := newStranger(t, `{}`)
	st, hangUp := s.welcomeFor()
	for i := range 20 {
		p := &pb.Packet{Chunk: make([]byte, chunkBytes)}
		if i == 0 {
			p.Large = 16 << 20
		}
		if err := st.SendMsg(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := st.SendMsg(&pb.Packet{Frames: []byte{1, 'x'}}); err != nil {
		t.Fatal(err)
	}
	if got := s.rec.WaitReceived(1); len(got[0]) != 1 {
		t.Errorf("%d bytes", len(got[0]))
	}
	hangUp()
	if err := s.rec.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable {
		t.Errorf("ended with %v", err)
	}
	if n, _, _ := s.rec.Counts(); n != 1 {
		t.Errorf("%d frames were delivered", n)
	}
}
