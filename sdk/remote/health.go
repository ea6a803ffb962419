package remote

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/internal/link"
	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

// closePatience is how long an endpoint that was closed may go without its
// end before the plugin counts as sick: the contract says soon.
const closePatience = 10 * time.Second

// Health returns nil if the plugin answers, within ctx, on both channels: a
// call, and a ping on the link that it answers once it has handled everything
// before. Its default deadline is 2 s.
//
// A plugin that is busy with a full link may miss a ping; whoever kills it
// should first see whether [Transport.Progress] grows.
func (t *Transport) Health(ctx context.Context) error {
	if _, err := t.ready("health"); err != nil {
		return err
	}
	ctx, cancel := t.callContext(ctx, probeTimeout)
	defer cancel()
	resp, err := t.rpc.Health(ctx, &pb.HealthRequest{}, t.options...)
	if err := t.callResult(ctx, "health", err, resp.GetError()); err != nil {
		return err
	}
	if err := t.ping(ctx); err != nil {
		return err
	}
	return t.overdue(time.Now())
}

// overdue finds an endpoint that the plugin does not end.
func (t *Transport) overdue(now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.mu.endpoints {
		if since := e.closedFor(now); since > closePatience {
			return sdk.Errorf(sdk.Busy, "plugin %s: endpoint %d was closed %s ago and has not ended", t.label, e.id, since.Round(time.Second))
		}
	}
	return nil
}

// pings are the pings without an answer. Their number is bounded by that of
// the callers, who wait.
type pings struct {
	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan struct{}
	blocked bool // one ping waits for room on the link; more would not help
}

// ping returns once the plugin has answered a ping.
func (t *Transport) ping(ctx context.Context) error {
	l := t.link()
	p := &t.pings
	came := make(chan struct{})
	p.mu.Lock()
	p.last++
	id := p.last
	p.waiting[id] = came
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.waiting, id)
		p.mu.Unlock()
	}()
	rec := []link.Record{{Type: link.Ping, ID: id}}
	_, err := l.carrier.Send(rec, 0)
	if errors.Is(err, link.ErrFull) {
		err = t.pingLater(l.carrier, rec)
	}
	if err != nil {
		return t.sendError("ping", err)
	}
	select {
	case <-came:
		return nil
	case <-t.ctx.Done():
		return t.gone("ping")
	case <-ctx.Done():
		return sdk.Errorf(sdk.DeadlineExceeded, "plugin %s: no answer to a ping on the link: %w", t.label, ctx.Err())
	}
}

// pingLater sends the ping once there is room, unless another one waits.
func (t *Transport) pingLater(c link.Carrier, rec []link.Record) error {
	p := &t.pings
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.blocked {
		return link.ErrFull
	}
	p.blocked = true
	t.sendLater(c, rec, func() {
		p.mu.Lock()
		p.blocked = false
		p.mu.Unlock()
	})
	return nil
}

// ponged reports whether the id was waited for.
func (p *pings) ponged(id uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	came, ok := p.waiting[id]
	if ok {
		delete(p.waiting, id)
		close(came)
	}
	return ok
}

// sendLater waits for room on a goroutine of its own, up to the link's end.
func (t *Transport) sendLater(c link.Carrier, recs []link.Record, after func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.down {
		return
	}
	t.senders.Add(1)
	go func() {
		defer t.senders.Done()
		_, _ = c.Send(recs, link.Wait)
		if after != nil {
			after()
		}
	}()
}
