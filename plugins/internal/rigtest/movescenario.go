package rigtest

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
)

// fill gives all of a memory's bytes a value.
func (m *Memory) fill(t testing.TB, b byte) {
	t.Helper()
	if _, err := m.WriteAt(bytes.Repeat([]byte{b}, int(m.Region.Length)), 0); err != nil {
		t.Fatal(err)
	}
}

// stays fails the test unless all bytes have the value that fill gave them.
func (m *Memory) stays(t testing.TB, b byte, when string) {
	t.Helper()
	got := make([]byte, m.Region.Length)
	if _, err := m.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if n := len(got) - bytes.Count(got, []byte{b}); n > 0 {
		t.Errorf("%s: %d bytes were changed", when, n)
	}
}

// open is how many frames have no outcome.
func (s *Sender) open() int {
	s.Recorder.mu.Lock()
	defer s.Recorder.mu.Unlock()
	return s.Sent() - len(s.Recorder.outcomes)
}

// load sends ops over an endpoint until as many are under way as may be.
func load(t testing.TB, s *Sender, kind sdk.OpKind, here, there *Memory, size int) {
	t.Helper()
	l := here.Node.Describe().Move.WithDefaults()
	for s.open() < min(l.Inflight, l.InflightBytes/size) {
		if err := s.Try(Op(kind, here, 0, there, 0, size)); err != nil {
			t.Fatal(err)
		}
	}
}

// MoveEnds ends endpoints under load, by either side, again and again: what was
// theirs does not change afterwards. The memory of a round is watched until the
// next one is over, so that nothing has to be waited for.
func MoveEnds(t *testing.T, fresh func() sdk.Transport, rounds int) {
	const size = 256 << 10
	a, b := Start(t, fresh(), sdk.Config{Instance: 1}), Start(t, fresh(), sdk.Config{Instance: 2})
	var last [2]*Memory
	unfinished := 0
	for round := range rounds {
		here, there := Register(t, a, size, true), Register(t, b, size, true)
		there.Region.Base = uint64(round+1) << 32
		there.Announce(t, a)
		ra, rb := NewRecorder(t), NewRecorder(t)
		active, passive := ConnectMemory(t, a, b, 0, uint64(round+1), ra, rb)
		kind := []sdk.OpKind{sdk.Write, sdk.Read}[round%2]
		s := &Sender{Endpoint: active, Recorder: ra}
		load(t, s, kind, here, there, size)
		ra.WaitDone(1)
		first, second := active, passive
		if round%4 < 2 {
			first, second = passive, active
		}
		first.Close()
		second.Close()
		ra.WaitEnded()
		rb.WaitEnded()
		if s.open() > 0 {
			unfinished++
		}
		here.fill(t, 0xAA)
		there.fill(t, 0xAA)
		for _, m := range last {
			if m != nil {
				m.stays(t, 0xAA, "after the end of an endpoint")
				if err := m.Node.Mover().Deregister(Context(t), m.Region.Capability); err != nil {
					t.Error(err)
				}
			}
		}
		last = [2]*Memory{here, there}
	}
	if unfinished == 0 {
		t.Error("no endpoint ended in the middle of an op")
	}
}

// MoveFlat moves many bytes, and wants no more memory than for a few.
func MoveFlat(t *testing.T, fresh func() sdk.Transport, total, most int) {
	a, b := Start(t, fresh(), sdk.Config{Instance: 1}), Start(t, fresh(), sdk.Config{Instance: 2})
	size := fresh().Describe().Move.WithDefaults().MaxOp
	here, there := Register(t, a, size, true), Register(t, b, size, true)
	there.Announce(t, a)
	ra := NewRecorder(t)
	active, _ := ConnectMemory(t, a, b, 0, 1, ra, NewRecorder(t))
	s := &Sender{Endpoint: active, Recorder: ra}
	var stats runtime.MemStats
	inUse := func() int {
		runtime.ReadMemStats(&stats)
		return int(stats.HeapInuse + stats.StackInuse)
	}
	runtime.GC()
	before, peak := inUse(), 0
	for n := 0; n*size < total; n++ {
		if err := s.Send(Op([]sdk.OpKind{sdk.Write, sdk.Read}[n%2], here, 0, there, 0, size)); err != nil {
			t.Fatal(err)
		}
		if n%16 == 0 {
			peak = max(peak, inUse())
		}
	}
	ra.WaitDone(s.Sent())
	if peak-before > most {
		t.Errorf("%d KiB in use while %d MiB were moved, %d KiB before", peak>>10, total>>20, before>>10)
	}
}
