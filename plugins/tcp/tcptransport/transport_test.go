package tcptransport

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/sdk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func pair(t testing.TB) (a, b *rigtest.Node) {
	t.Helper()
	return rigtest.Start(t, New(), sdk.Config{Instance: 1}), rigtest.Start(t, New(), sdk.Config{Instance: 2})
}

// joined is two nodes with one endpoint.
type joined struct {
	a, b   *rigtest.Node
	ra, rb *rigtest.Recorder
	sa, sb *rigtest.Sender
}

func join(t testing.TB) *joined {
	t.Helper()
	j := &joined{ra: rigtest.NewRecorder(t), rb: rigtest.NewRecorder(t)}
	j.a, j.b = pair(t)
	ea, eb := rigtest.Connect(t, j.a, j.b, 1, j.ra, j.rb)
	j.sa, j.sb = &rigtest.Sender{Endpoint: ea, Recorder: j.ra}, &rigtest.Sender{Endpoint: eb, Recorder: j.rb}
	return j
}

// TestLoad sends random sizes both ways at once.
func TestLoad(t *testing.T) {
	const frames = 5000
	j := join(t)
	sizes := func(r *rand.Rand) int {
		switch r.IntN(20) {
		case 0:
			return 0
		case 1:
			return maxFrame
		case 2:
			return r.IntN(maxFrame)
		}
		return r.IntN(300)
	}
	var wg sync.WaitGroup
	for side, s := range []*rigtest.Sender{j.sa, j.sb} {
		peer := []*rigtest.Recorder{j.rb, j.ra}[side]
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(side)))
			var want [][]byte
			for range frames {
				b := make([]byte, sizes(r))
				for k := range b {
					b[k] = byte(r.Uint32())
				}
				want = append(want, b)
				if err := s.Send(b); err != nil {
					t.Errorf("Send: %v", err)
					return
				}
			}
			s.Recorder.WaitDone(frames)
			got := peer.WaitReceived(frames)
			for i := range want {
				if !bytes.Equal(got[i], want[i]) {
					t.Errorf("frame %d is wrong: %d bytes, want %d", i, len(got[i]), len(want[i]))
					return
				}
			}
		})
	}
	wg.Wait()
}
