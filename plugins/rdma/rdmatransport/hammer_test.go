package rdmatransport

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/sdk"
)

// TestHammer: workers write, flush and read back, each in its part of a region
// that comes and goes, while their queue pairs fail and their endpoints end.
// What was done is there; in the end nothing is left, which Close sees to.
func TestHammer(t *testing.T) {
	const workers, rounds, size = 4, 25, 20_000
	f := newFabric(t)
	a, b := f.node(t, "{}"), f.node(t, "{}")
	there := rigtest.Register(t, b.Node, workers*size, true)
	there.Announce(t, a.Node)
	var generation atomic.Uint64
	var done, failed atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			here := rigtest.Register(t, a.Node, 2*size, true)
			var x, y *side
			for round := range rounds {
				if x == nil {
					if x, y = tryMemory(t, a, b, w, generation.Add(1)); x == nil {
						continue // the device makes its receive buffers anew
					}
				}
				want := bytes.Repeat(binary.LittleEndian.AppendUint32(nil, uint32(w<<16|round)), size/4)
				_, err := here.WriteAt(want, 0)
				must(t, err)
				switch rng.IntN(8) {
				case 0:
					_ = f.ToError(f.name(b, y.e))
				case 1:
					_ = f.ToReset(f.name(a, x.e))
				case 2:
					x.Close()
				case 3:
					y.Close()
				}
				ok := true
				for _, frame := range [][]byte{
					rigtest.Op(sdk.Write, here, 0, there, w*size, size),
					rigtest.Op(sdk.Flush, here, 0, there, w*size, size),
					rigtest.Op(sdk.Read, here, size, there, w*size, size),
				} {
					ok = ok && attempt(t, x, frame)
				}
				if !ok {
					failed.Add(1)
					x.Close()
					y.Close()
					x.WaitEnded()
					y.WaitEnded() // the fence: what follows is not overwritten
					x = nil
					continue
				}
				done.Add(1)
				got := make([]byte, 2*size)
				_, err = there.ReadAt(got[:size], int64(w*size))
				must(t, err)
				if _, err = here.ReadAt(got[size:], size); err != nil || !bytes.Equal(got[:size], want) || !bytes.Equal(got[size:], want) {
					t.Errorf("worker %d, round %d: what was done is not there (%v)", w, round, err)
				}
				if rng.IntN(4) == 0 {
					must(t, a.Deregister(rigtest.Context(t), here.Region.Capability))
					here = rigtest.Register(t, a.Node, 2*size, true)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d rounds are done, %d were cut short", done.Load(), failed.Load())
	if done.Load() < rounds || failed.Load() == 0 {
		t.Errorf("%d rounds are done, %d were cut short", done.Load(), failed.Load())
	}
	until(t, "the last queue pairs", func() bool {
		qps, err := f.QPs(a.host)
		return err == nil && len(qps) <= workers
	})
	for _, n := range []*node{a, b} {
		if faults := n.provider.Accounts().Faults; len(faults) > 0 {
			t.Errorf("%s: %q", n.host, faults)
		}
	}
}

// tryMemory is joinMemory, or nil if there is no endpoint.
func tryMemory(t *testing.T, a, b *node, lane int, generation uint64) (x, y *side) {
	target := rigtest.Target(a.Node, b.Node, generation)
	target.Use, target.Lane = sdk.UseMemory, lane
	ra, rb := rigtest.NewRecorder(t), rigtest.NewRecorder(t)
	e, err := a.Connect(rigtest.Context(t), target, func(ctx context.Context, offer []byte) ([]byte, error) {
		back := rigtest.Target(b.Node, a.Node, generation)
		back.Path, back.Use, back.Lane = target.Path, target.Use, lane
		e, answer, err := b.Accept(ctx, back, offer, rb)
		if err == nil {
			y = &side{rb, &rigtest.Sender{Endpoint: e, Recorder: rb}, e.(*passive).endpoint}
		}
		return answer, err
	}, ra)
	if err != nil {
		if y != nil {
			y.Close()
		}
		return nil, nil
	}
	return &side{ra, &rigtest.Sender{Endpoint: e, Recorder: ra}, e.(*mover).endpoint}, y
}

// attempt sends an op and says whether it is done.
func attempt(t *testing.T, s *side, frame []byte) bool {
	if s.Send(frame) != nil {
		return false
	}
	id := uint64(s.Sent())
	var c sdk.Completion
	until(t, "an outcome or the end", func() bool {
		var ok bool
		c, ok = s.Outcome(id)
		return ok || s.HasEnded()
	})
	return c.Outcome == sdk.Done
}
