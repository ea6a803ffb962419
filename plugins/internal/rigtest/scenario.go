package rigtest

import (
	"bytes"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// Load sends frames of random sizes both ways at once and compares all of
// them. Those larger than
// [sdk.OvertakenFrame] may be overtaken.
func Load(t *testing.T, fresh func() sdk.Transport, frames, largest int) {
	t.Helper()
	a, b := Start(t, fresh(), sdk.Config{Instance: 1}), Start(t, fresh(), sdk.Config{Instance: 2})
	ra, rb := NewRecorder(t), NewRecorder(t)
	ea, eb := Connect(t, a, b, 1, ra, rb)
	ways := []struct {
		from *Sender
		to   *Recorder
	}{{&Sender{Endpoint: ea, Recorder: ra}, rb}, {&Sender{Endpoint: eb, Recorder: rb}, ra}}
	var wg sync.WaitGroup
	for side, way := range ways {
		wg.Go(func() {
			want := randomFrames(uint64(side), frames, largest)
			for _, f := range want {
				if err := way.from.Send(f); err != nil {
					t.Errorf("Send: %v", err)
					return
				}
			}
			way.from.Recorder.WaitDone(frames)
			small, large := split(way.to.WaitReceived(frames))
			wantSmall, wantLarge := split(want)
			compare(t, small, wantSmall)
			compare(t, large, wantLarge)
		})
	}
	wg.Wait()
}

func split(frames [][]byte) (small, large [][]byte) {
	for _, f := range frames {
		if len(f) > sdk.OvertakenFrame {
			large = append(large, f)
		} else {
			small = append(small, f)
		}
	}
	return small, large
}

func compare(t *testing.T, got, want [][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d frames, want %d", len(got), len(want))
		return
	}
	for i := range got {
		if !bytes.Equal(got[i], want[i]) {
			t.Errorf("frame %d is wrong: %d bytes, want %d", i, len(got[i]), len(want[i]))
			return
		}
	}
}

// randomFrames are mostly small, with some empty and some of the largest size.
func randomFrames(seed uint64, n, largest int) [][]byte {
	r := rand.New(rand.NewPCG(1, seed))
	noise := make([]byte, largest+4096)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	frames := make([][]byte, n)
	for i := range frames {
		size := r.IntN(300)
		switch r.IntN(20) {
		case 0:
			size = 0
		case 1:
			size = largest
		case 2:
			size = r.IntN(largest)
		}
		at := r.IntN(4096)
		frames[i] = noise[at : at+size]
	}
	return frames
}

// Cycles connects and closes, from either side in turn, and looks for
// descriptors that are left; the caller's TestMain looks for goroutines.
func Cycles(t *testing.T, fresh func() sdk.Transport, n int) {
	t.Helper()
	a, b := Start(t, fresh(), sdk.Config{Instance: 1}), Start(t, fresh(), sdk.Config{Instance: 2})
	cycle := func(i int) {
		ra, rb := NewRecorder(t), NewRecorder(t)
		ea, eb := Connect(t, a, b, uint64(i+1), ra, rb)
		s := Sender{Endpoint: ea, Recorder: ra}
		if err := s.Send([]byte("x")); err != nil {
			t.Fatalf("Send: %v", err)
		}
		ra.WaitDone(1)
		if i%2 == 0 {
			ea, eb, ra, rb = eb, ea, rb, ra
		}
		ea.Close()
		if err := ra.WaitEnded(); sdk.CodeOf(err) != sdk.Closed {
			t.Fatalf("the closing side ended with %v", err)
		}
		if err := rb.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable {
			t.Fatalf("the other side ended with %v", err)
		}
		eb.Close()
	}
	cycle(0)
	before := Descriptors()
	for i := 1; i < n; i++ {
		cycle(i)
	}
	WaitDescriptors(t, before+8)
}

// Descriptors counts the process's open descriptors, or returns 0 where that
// cannot be known.
func Descriptors() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

// WaitDescriptors waits until the process has no more open descriptors than
// this: the last ones may still be on their way out.
func WaitDescriptors(t testing.TB, most int) {
	t.Helper()
	for deadline := time.Now().Add(Patience); Descriptors() > most; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("%d descriptors are left, at most %d should be", Descriptors(), most)
			return
		}
	}
}

// SharedListener lets two instances accept on one socket, as during a
// replacement, and connects to each of them many times; then one drains and
// the other goes on.
func SharedListener(t *testing.T, listener string, fresh func() sdk.Transport) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() //nolint:errcheck // the test's own
	lend := func() map[string]net.Listener {
		f, err := ln.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close() //nolint:errcheck // the copy lives
		lent, err := net.FileListener(f)
		if err != nil {
			t.Fatal(err)
		}
		return map[string]net.Listener{listener: lent}
	}
	a := Start(t, fresh(), sdk.Config{Instance: 1})
	before := Start(t, fresh(), sdk.Config{Instance: 2, Listeners: lend()})
	after := Start(t, fresh(), sdk.Config{Instance: 3, Listeners: lend()})
	if before.Setup.Attributes["addr"] != after.Setup.Attributes["addr"] {
		t.Fatalf("two addresses: %v and %v", before.Setup.Attributes, after.Setup.Attributes)
	}
	talk := func(generation uint64, b *Node) (*Sender, *Recorder) {
		ra, rb := NewRecorder(t), NewRecorder(t)
		ea, _ := Connect(t, a, b, generation, ra, rb)
		s := &Sender{Endpoint: ea, Recorder: ra}
		if err := s.Send([]byte("x")); err != nil {
			t.Fatalf("Send: %v", err)
		}
		rb.WaitReceived(1)
		ra.WaitDone(1)
		return s, ra
	}
	old, oldRecorder := talk(1, before)
	for g := range uint64(20) {
		talk(2+g, before)
		talk(2+g, after)
	}
	if err := before.Transport.(sdk.Drainer).Drain(Context(t)); err != nil {
		t.Fatalf("Drain: %v", err)
	}
	for g := range uint64(20) {
		talk(100+g, after)
	}
	if err := old.Send([]byte("still here")); err != nil {
		t.Fatalf("an endpoint of the draining instance: %v", err)
	}
	oldRecorder.WaitDone(2)
}
