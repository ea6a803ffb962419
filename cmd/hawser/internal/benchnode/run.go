package benchnode

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
)

// Options say what to measure.
type Options struct {
	// Setup is both nodes' configuration; it runs one transport.
	Setup lab.Setup
	// Size is the payload's, in bytes.
	Size int
	// Pings, BurstCount and RateCount are how many notifications each
	// measurement takes; 0 leaves it out.
	Pings, BurstCount, RateCount int
	// Window is how many the rate has under way.
	Window int
	// NodeArgs follow the hidden command's name.
	NodeArgs []string
}

// Round is what one round measured. What was left out is nil.
type Round struct {
	RoundTrip *Latency     `json:"round_trip,omitempty"`
	Burst     *BurstResult `json:"burst,omitempty"`
	Rate      *RateResult  `json:"rate,omitempty"`
	// Carrier is the link's between the engine and its plugin.
	Carrier string `json:"carrier"`
}

const (
	// roundTimeout bounds each measurement.
	roundTimeout = 2 * time.Minute
	// endTimeout is how long a node may take to end.
	endTimeout = 10 * time.Second
	// warmUp is how many notifications go before each measurement.
	warmUp = 200
)

// pair is two nodes in processes of their own.
type pair struct {
	o    Options
	a, b *lab.Process
	peer string // b's address
	sent int64  // what b has to have counted
}

// Run starts two fresh nodes, measures a round between them, and ends them.
func Run(ctx context.Context, o Options) (r Round, err error) {
	if err := o.Setup.Check(); err != nil {
		return r, err
	}
	p := &pair{o: o}
	defer p.close()
	if err := p.open(ctx); err != nil {
		return r, err
	}
	return p.round(ctx)
}

func (p *pair) open(ctx context.Context) error {
	var opened [2]lab.Opened
	var both errgroup.Group
	for i, at := range []**lab.Process{&p.a, &p.b} {
		n, err := lab.Start(lab.Options{Args: append([]string{NodeCommand}, p.o.NodeArgs...)})
		if err != nil {
			return err
		}
		*at = n
		s := p.o.Setup
		s.Name = []string{"a", "b"}[i]
		both.Go(func() error { return n.Call(ctx, "open", s, &opened[i]) })
	}
	if err := both.Wait(); err != nil {
		return err
	}
	p.peer = opened[1].Address
	return p.b.Call(ctx, "echo", nil, nil)
}

// round measures what is asked for, one after the other.
func (p *pair) round(ctx context.Context) (r Round, err error) {
	var up []lab.Transport
	if err := p.a.Call(ctx, "transports", nil, &up); err != nil {
		return r, err
	}
	if len(up) == 1 {
		r.Carrier = up[0].Carrier
	}
	o := p.o
	if o.Pings > 0 {
		r.RoundTrip = &Latency{}
		if err := p.measure(ctx, "roundtrip", measureArgs{Count: o.Pings}, r.RoundTrip); err != nil {
			return r, err
		}
	}
	if o.BurstCount > 0 {
		r.Burst = &BurstResult{}
		if err := p.measure(ctx, "burst", measureArgs{Count: o.BurstCount}, r.Burst); err != nil {
			return r, err
		}
	}
	if o.RateCount > 0 {
		r.Rate = &RateResult{}
		if err := p.measure(ctx, "rate", measureArgs{Count: o.RateCount, Window: o.Window}, r.Rate); err != nil {
			return r, err
		}
	}
	return r, p.compare(ctx)
}

// measure makes a small measurement to warm up, and then the real one.
func (p *pair) measure(ctx context.Context, what string, a measureArgs, result any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, roundTimeout, fmt.Errorf("it took longer than %v", roundTimeout))
	defer cancel()
	a.Peer, a.Size = p.peer, p.o.Size
	warm := a
	warm.Count = min(warmUp, a.Count)
	if err := p.a.Call(ctx, what, warm, nil); err != nil {
		return fmt.Errorf("%s, warming up: %w", what, err)
	}
	if err := p.a.Call(ctx, what, a, result); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if what != "roundtrip" {
		p.sent += int64(warm.Count + a.Count)
	}
	return nil
}

// compare checks that what was sent was received.
func (p *pair) compare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	for {
		var received int64
		if err := p.b.Call(ctx, "received", nil, &received); err != nil {
			return err
		}
		if received == p.sent {
			return nil
		}
		// Acknowledged is queued there; the application may be behind.
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%d were sent and acknowledged, and %d received", p.sent, received)
		}
	}
}

func (p *pair) close() {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	for _, n := range []*lab.Process{p.a, p.b} {
		if n != nil {
			_ = n.Close(ctx)
		}
	}
}
