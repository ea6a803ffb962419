//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
)

// stubborn is a mover whose passive ends do not end until they are told to.
type stubborn struct {
	sdk.Mover
	ends []sdk.Handler
}

func (s *stubborn) Accept(_ context.Context, _ sdk.Target, _ []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
	s.ends = append(s.ends, h)
	return s, nil, nil
}
func (s *stubborn) Send([]sdk.Frame, bool) (int, error) { return 0, sdk.Closed }
func (s *stubborn) Close()                              {}

// A peer that names ever other lanes, or whose ends do not end, gets so many and
// no more; what it fences meanwhile stays fenced, and there is room again once
// something has ended.
func TestWhatAPeerConnectsIsBounded(t *testing.T) {
	e := &Engine{}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	defer e.cancel()
	gs := &e.memory.gates
	gs.init(e)
	s := &stubborn{}
	inst := &pluginhost.Instance{Mover: s, Description: sdk.Description{Name: "fast"}, Gone: make(chan struct{})}
	peer := Incarnation{1}
	accept := func(path string, generation, remote uint64) (uint64, error) {
		reply, err := gs.accept(context.Background(), inst, remote, sdk.Target{Peer: peer, Path: path, Generation: generation}, nil)
		return reply.Newest, err
	}
	fence := func(path string, generation uint64) {
		t.Helper()
		short, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := gs.fence(short, peer, laneKey{"fast", path, 0}, generation); err != nil {
			t.Error(err)
		}
	}

	// Lanes that nothing is connected over are forgotten, but not their generations.
	for i := range 3 * maxDoorways {
		fence(fmt.Sprint("x", i), uint64(i+1))
	}
	if n := len(gs.by[peer].lanes); n > maxDoorways {
		t.Errorf("%d lanes are remembered", n)
	}
	if newest, err := accept("x0", 1, 1); err != nil || newest == 0 {
		t.Errorf("what is fenced was accepted: %d, %v", newest, err)
	}

	const high = 10 * maxDoorways
	for i := range maxDoorways {
		if newest, err := accept(fmt.Sprint("y", i), high, 1); err != nil || newest != 0 {
			t.Fatalf("lane %d: newest %d, %v", i, newest, err)
		}
	}
	if _, err := accept("one more", high, 1); !errors.Is(err, Busy) {
		t.Errorf("one lane more: %v", err)
	}
	fence("one more", 2*high) // no room to remember it

	// Ends of other instances of the peer's are not ended by newer ones.
	for i := range maxEnds - maxDoorways {
		if newest, err := accept("y0", high+uint64(i)+1, uint64(i)+2); err != nil || newest != 0 {
			t.Fatalf("end %d: newest %d, %v", i, newest, err)
		}
	}
	if _, err := accept("y0", 3*high, maxEnds); !errors.Is(err, Busy) {
		t.Errorf("one end more: %v", err)
	}

	for _, h := range s.ends {
		h.Ended(sdk.Closed)
	}
	if newest, err := accept("one more", 2*high, 1); err != nil || newest != 2*high {
		t.Errorf("what was fenced without room was accepted: %d, %v", newest, err)
	}
	if newest, err := accept("one more", 2*high+1, 1); err != nil || newest != 0 {
		t.Errorf("there is no room although all have ended: %d, %v", newest, err)
	}
	gs.sweep()
	if gs.by[peer] == nil {
		t.Error("a peer that has an end was forgotten")
	}
	s.ends[len(s.ends)-1].Ended(sdk.Closed)
	gs.sweep()
	if len(gs.by) != 0 {
		t.Error("a peer that is not known and has nothing is remembered")
	}
	e.tasks.Wait()
}
