package sdktest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// note is a handler that keeps what it was told.
type note struct {
	mu       sync.Mutex
	done     []uint64
	received [][]byte
	err      error
	hold     chan struct{}
}

func (n *note) Completed(cs []sdk.Completion) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range cs {
		if c.Outcome == sdk.Done {
			n.done = append(n.done, c.ID)
		}
	}
}

func (n *note) Received(frames [][]byte) {
	if n.hold != nil {
		<-n.hold
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, f := range frames {
		n.received = append(n.received, bytes.Clone(f))
	}
}

func (n *note) Ended(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.err = err
}

func (n *note) state() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return fmt.Sprintf("done %d received %d ended %v", len(n.done), len(n.received), sdk.CodeOf(n.err))
}

// fabricPair is two configured nodes "a" and "b" with an endpoint between them.
type fabricPair struct {
	f      *Fabric
	a, b   sdk.Transport
	ha, hb *note
	ea, eb sdk.Endpoint
	target sdk.Target // a's
}

func newFabricPair(t *testing.T, opt FabricOptions) *fabricPair {
	t.Helper()
	f := NewFabric(opt)
	p := &fabricPair{f: f, a: f.New("a"), b: f.New("b"), ha: &note{}, hb: &note{}}
	ctx := t.Context()
	var setups [2]sdk.Setup
	for i, tr := range []sdk.Transport{p.a, p.b} {
		var err error
		setups[i], err = tr.Configure(ctx, sdk.Config{
			Instance: uint64(i + 1), Incarnation: sdk.Incarnation{15: byte(i + 1)},
			Settings: json.RawMessage("{}"), Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	p.target = sdk.Target{
		Local: sdk.Incarnation{15: 1}, Peer: sdk.Incarnation{15: 2}, Path: f.opt.Paths[0],
		Remote: setups[1].Attributes, Generation: 1,
	}
	var err error
	p.ea, err = p.a.(sdk.Notifier).Connect(ctx, p.target, func(ctx context.Context, offer []byte) ([]byte, error) {
		back := p.target
		back.Local, back.Peer, back.Remote = p.target.Peer, p.target.Local, setups[0].Attributes
		var answer []byte
		var err error
		p.eb, answer, err = p.b.(sdk.Notifier).Accept(ctx, back, offer, p.hb)
		return answer, err
	}, p.ha)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *fabricPair) close(t *testing.T) {
	t.Helper()
	for _, tr := range []sdk.Transport{p.a, p.b} {
		if err := tr.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
	synctest.Wait()
	if n := p.f.Endpoints(""); n != 0 {
		t.Errorf("%d ends left", n)
	}
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	if len(p.f.conns)+len(p.f.pending)+len(p.f.members) != 0 {
		t.Errorf("left: %d conns, %d pending, %d members", len(p.f.conns), len(p.f.pending), len(p.f.members))
	}
}

func (p *fabricPair) send(t *testing.T, from, to uint64) {
	t.Helper()
	for id := from; id <= to; id++ {
		if n, err := p.ea.Send([]sdk.Frame{{ID: id, Data: fmt.Appendf(nil, "frame %d", id)}}, false); n != 1 || err != nil {
			t.Fatalf("send %d: %d %v", id, n, err)
		}
	}
}

func (p *fabricPair) expect(t *testing.T, a, b string) {
	t.Helper()
	synctest.Wait()
	if got := p.ha.state(); got != a {
		t.Errorf("a: %s, want %s", got, a)
	}
	if got := p.hb.state(); got != b {
		t.Errorf("b: %s, want %s", got, b)
	}
}

func inFabric(t *testing.T, opt FabricOptions, test func(t *testing.T, p *fabricPair)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := newFabricPair(t, opt)
		defer p.close(t)
		test(t, p)
	})
}

func TestFabricCutHoldsAndHealDelivers(t *testing.T) {
	inFabric(t, FabricOptions{}, func(t *testing.T, p *fabricPair) {
		p.f.Cut("a", "b", "")
		p.send(t, 1, 3)
		p.expect(t, "done 0 received 0 ended code-0", "done 0 received 0 ended code-0")
		if n := p.f.Counters().Held; n != 3 {
			t.Errorf("held %d", n)
		}
		p.f.Heal("a", "b", "")
		p.expect(t, "done 3 received 0 ended code-0", "done 0 received 3 ended code-0")
		p.f.Cut("b", "a", "p0") // receipts only
		p.send(t, 4, 5)
		p.expect(t, "done 3 received 0 ended code-0", "done 0 received 5 ended code-0")
		p.f.HealBoth("a", "b", "")
		p.expect(t, "done 5 received 0 ended code-0", "done 0 received 5 ended code-0")
	})
}

func TestFabricStallEnds(t *testing.T) {
	inFabric(t, FabricOptions{StallTimeout: 3 * time.Second}, func(t *testing.T, p *fabricPair) {
		p.f.CutBoth("a", "b", "")
		p.send(t, 1, 1)
		time.Sleep(2 * time.Second)
		p.f.HealBoth("a", "b", "")
		p.expect(t, "done 1 received 0 ended code-0", "done 0 received 1 ended code-0")
		p.f.Cut("b", "a", "")
		p.send(t, 2, 2)
		time.Sleep(2 * time.Second)
		p.expect(t, "done 1 received 0 ended code-0", "done 0 received 2 ended code-0")
		time.Sleep(2 * time.Second)
		p.expect(t, "done 1 received 0 ended unavailable", "done 0 received 2 ended unavailable")
		if n := p.f.Counters().Ended; n != 1 {
			t.Errorf("ended %d", n)
		}
	})
}

func TestFabricDelay(t *testing.T) {
	inFabric(t, FabricOptions{}, func(t *testing.T, p *fabricPair) {
		p.f.Delay("a", "b", "", 10*time.Millisecond)
		p.f.Delay("b", "", "", 5*time.Millisecond)
		start := time.Now()
		p.send(t, 1, 2)
		time.Sleep(9 * time.Millisecond)
		p.expect(t, "done 0 received 0 ended code-0", "done 0 received 0 ended code-0")
		time.Sleep(time.Millisecond)
		p.expect(t, "done 0 received 0 ended code-0", "done 0 received 2 ended code-0")
		time.Sleep(5 * time.Millisecond)
		p.expect(t, "done 2 received 0 ended code-0", "done 0 received 2 ended code-0")
		if err := p.a.(sdk.Prober).Probe(t.Context(), p.target); err != nil || time.Since(start) != 30*time.Millisecond {
			t.Errorf("probe: %v after %v", err, time.Since(start))
		}
	})
}

func TestFabricPathDeath(t *testing.T) {
	inFabric(t, FabricOptions{Paths: []string{"p0", "p1"}}, func(t *testing.T, p *fabricPair) {
		if n := p.f.End("b", "a", "p1"); n != 0 {
			t.Errorf("%d ends on another path", n)
		}
		p.f.Cut("b", "a", "")
		p.send(t, 1, 1)
		synctest.Wait()
		if n := p.f.End("b", "a", "p0"); n != 2 {
			t.Errorf("%d ends", n)
		}
		p.expect(t, "done 0 received 0 ended unavailable", "done 0 received 1 ended unavailable")
	})
}

func TestFabricKillAndSuccessor(t *testing.T) {
	inFabric(t, FabricOptions{}, func(t *testing.T, p *fabricPair) {
		p.f.Cut("b", "a", "")
		p.send(t, 1, 1)
		synctest.Wait()
		if n := p.f.Kill("b"); n != 1 {
			t.Errorf("killed %d", n)
		}
		p.f.Heal("b", "a", "")
		p.expect(t, "done 0 received 0 ended unavailable", "done 0 received 1 ended plugin exited")
		if err := p.a.(sdk.Prober).Probe(t.Context(), p.target); sdk.CodeOf(err) != sdk.Unavailable {
			t.Errorf("probe of the dead: %v", err)
		}
		next := p.f.New("b")
		if _, err := next.Configure(t.Context(), sdk.Config{Instance: 3, Settings: json.RawMessage("{}")}); err != nil {
			t.Error(err)
		}
		if err := next.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestFabricFreeze(t *testing.T) {
	inFabric(t, FabricOptions{}, func(t *testing.T, p *fabricPair) {
		p.f.Freeze("b")
		p.send(t, 1, 3)
		p.expect(t, "done 0 received 0 ended code-0", "done 0 received 0 ended code-0")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.a.(sdk.Prober).Probe(ctx, p.target); sdk.CodeOf(err) != sdk.DeadlineExceeded {
			t.Errorf("probe of the frozen: %v", err)
		}
		p.f.Thaw("b")
		p.expect(t, "done 3 received 0 ended code-0", "done 0 received 3 ended code-0")
		p.f.Freeze("b") // closing works all the same
	})
}

func TestFabricBoundedInbox(t *testing.T) {
	inFabric(t, FabricOptions{Limits: sdk.Limits{InflightFrames: 4}}, func(t *testing.T, p *fabricPair) {
		p.hb.hold = make(chan struct{})
		taken := uint64(0)
		for {
			n, err := p.ea.Send([]sdk.Frame{{ID: taken + 1}}, false)
			if n == 0 {
				if sdk.CodeOf(err) != sdk.Backpressure {
					t.Error(err)
				}
				break
			}
			taken++
			synctest.Wait()
		}
		if taken > 4+4+1+4 {
			t.Errorf("%d frames without a reader", taken)
		}
		close(p.hb.hold)
		want := fmt.Sprintf("done %d received 0 ended code-0", taken)
		p.expect(t, want, fmt.Sprintf("done 0 received %d ended code-0", taken))
	})
}
