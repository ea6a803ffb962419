//go:build linux

package remote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/internal/link"
	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

// stopper is a handler that holds its endpoint while it is told to.
type stopper struct {
	mu                   sync.Mutex
	held                 bool
	brief                bool // the next hold ends before Offer returns
	taken, kept, dropped int  // bytes, bytes, frames
	ended                error
	resume               func()
}

func (s *stopper) MayHold() bool              { return true }
func (s *stopper) Completed([]sdk.Completion) {}
func (s *stopper) Received([][]byte)          { panic("it would wait") }

func (s *stopper) Offer(frames [][]byte, resume func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range frames {
		s.taken += len(f) + sdk.HoldOverhead
		if s.held {
			s.kept += len(f) + sdk.HoldOverhead
		}
	}
	if s.resume = resume; s.brief {
		s.brief, s.held, s.kept, s.resume = false, false, 0, nil
		resume()
		return true
	}
	return s.held
}

func (s *stopper) Dropped(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped += n
}

func (s *stopper) Ended(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = err
}

// release ends the hold. What resumes is called later, as by another goroutine.
func (s *stopper) release() (resume func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held, s.kept = false, 0
	resume, s.resume = s.resume, nil
	return resume
}

func (s *stopper) see(f func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f()
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// A plugin that ignores its windows, or knows none, costs its endpoint: what
// comes beyond is dropped and counted, and the other endpoints go on.
func TestAPluginIgnoresTheWindow(t *testing.T) {
	for _, knows := range []bool{true, false} {
		t.Run(fmt.Sprint("knows windows: ", knows), func(t *testing.T) {
			p := &raw{accept: &pb.AcceptResponse{}, openLink: &pb.OpenLinkResponse{Carrier: link.CarrierUnix, Windows: knows}}
			tr := openRaw(t, p)
			held, free := &stopper{held: true}, &stopper{}
			for _, h := range []*stopper{held, free} {
				if _, _, err := tr.Accept(testContext(t), sdk.Target{}, nil, h); err != nil {
					t.Fatal(err)
				}
			}
			frame := make([]byte, 1000)
			const each = 2 * sdk.HoldBytes / 1024
			for range each {
				p.say(link.Record{Type: link.Received, Endpoint: 1, Payload: frame})
			}
			until(t, "the end", func() bool { return held.see(func() bool { return held.ended != nil }) })
			if !errors.Is(held.ended, sdk.Backpressure) || held.dropped != 1 {
				t.Errorf("%v, %d dropped", held.ended, held.dropped)
			}
			if limit := sdk.HoldBytes + len(frame) + sdk.HoldOverhead; held.taken < sdk.HoldBytes || held.taken > limit {
				t.Errorf("%d bytes were taken, at most %d may be", held.taken, limit)
			}
			until(t, "the rest to be dropped", func() bool {
				return tr.Dropped() == uint64(each-held.taken/(len(frame)+sdk.HoldOverhead))
			})
			until(t, "the plugin to be told", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.closes) == 1 && p.closes[0] == 1 })
			// More than two windows, one after the other, over the free one.
			for range 5 * each {
				p.say(link.Record{Type: link.Received, Endpoint: 2, Payload: frame})
			}
			until(t, "the free endpoint's frames", func() bool {
				return free.see(func() bool { return free.ended != nil || free.taken == 5*each*(len(frame)+sdk.HoldOverhead) })
			})
			if knows {
				until(t, "windows to be ended", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.ends) > 0 })
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			if free.ended != nil || knows != (len(p.ends) > 0) {
				t.Errorf("%v, %d windows", free.ended, len(p.ends))
			}
		})
	}
}

// Whatever the order of frames, holds and late resumes: a plugin that keeps to
// its window never has more kept for it than a window and a frame, and is
// always let go on.
func TestTheWindowBoundsWhatIsKept(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		tr := newTransport(context.Background(), "x", nil)
		tr.windows = true
		c := &teller{}
		h := &stopper{}
		w := newWindow(&endpoint{t: tr, carrier: c, id: 1}, h)
		var late []func()
		sent, data := uint64(0), make([]byte, 100_000)
		for range 500 {
			switch rng.IntN(5) {
			case 0:
				h.held = true
			case 4:
				h.held, h.brief = true, true
			case 1:
				if resume := h.release(); resume != nil {
					late = append(late, resume)
				}
			case 2:
				if len(late) > 0 {
					late[0]()
					late = late[1:]
				}
			default:
				var batch [][]byte
				for n := rng.IntN(8); n >= 0 && sent < max(c.end, sdk.HoldBytes); n-- {
					f := data[:rng.IntN(len(data))]
					if !w.takes(len(f)) {
						t.Fatalf("seed %d: refused within its window", seed)
					}
					sent += uint64(link.HeaderSize + len(f))
					batch = append(batch, f)
				}
				if len(batch) > 0 {
					w.deliver(batch)
				}
			}
			if h.kept >= sdk.HoldBytes+100_000+sdk.HoldOverhead {
				t.Fatalf("seed %d: %d bytes are kept", seed, h.kept)
			}
		}
		if resume := h.release(); resume != nil {
			late = append(late, resume)
		}
		for _, resume := range late {
			resume()
		}
		if c.end != 0 && sent >= c.end || c.end == 0 && sent >= sdk.HoldBytes {
			t.Fatalf("seed %d: %d of %d bytes, and nobody opens the window", seed, sent, c.end)
		}
		tr.cancel()
	}
}

// teller keeps the latest window.
type teller struct {
	nowhere
	end uint64
}

func (c *teller) Send(recs []link.Record, _ link.Mode) (int, error) {
	for _, r := range recs {
		c.end = max(c.end, r.ID)
	}
	return len(recs), nil
}
