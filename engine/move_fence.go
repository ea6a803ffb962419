package engine

import (
	"context"
	"errors"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/sdk"
)

// Fence before repeat: what may have been posted over an endpoint that has ended
// is repeated, or its op reported as ended, only when nothing can carry it out
// any more.

// fencingLocked begins the fence of an endpoint that has ended with chunks. own
// says that the end was its instance's own word, which is the local fence.
// Chunks that had landed there, and are not visible, go the same way.
func (m *mover) fencingLocked(ch *channel, chunks []*chunk, reason string, own bool) {
	var pieces []*chunk
	seen := map[*chunk]bool{}
	add := func(c *chunk) {
		if !seen[c] {
			seen[c] = true
			pieces = append(pieces, c)
		}
	}
	for _, c := range chunks {
		if c.flush != nil {
			c.flush.flushing--
			continue // what it was to make visible is still among the landed
		}
		add(c)
	}
	for _, o := range m.liveLocked() {
		for _, c := range o.takeLanded(ch) {
			o.posted++
			o.restLocked()
			add(c)
		}
	}
	for _, c := range chunks {
		if c.flush != nil {
			m.flushLocked(c.flush) // over the other endpoints
		}
	}
	if len(pieces) == 0 {
		return
	}
	for _, c := range pieces {
		c.op.tried(ch.l, reason)
	}
	m.s.e.stats.fences[fenceBegun].Add(1)
	m.s.e.tasks.Go(func() { m.fence(ch, pieces, own) })
}

// fence confirms both ends' fences, and lets the chunks go on.
func (m *mover) fence(ch *channel, chunks []*chunk, own bool) {
	s := m.s
	if !own {
		// The link to the plugin is gone, or was cut: the process may run on.
		s.e.stats.fences[fenceWaited].Add(1)
		select {
		case <-ch.inst.Gone:
		case <-s.e.ctx.Done():
			return // the engine's close has reported them
		}
	}
	remote, local := partition(chunks, func(c *chunk) bool { return c.op.kind == sdk.Write && ch.limits.TargetWrites })
	m.fenced(ch, local, nil)
	if len(remote) == 0 {
		return
	}
	m.fenced(ch, remote, m.fenceThere(ch))
}

// fenceThere asks the peer's engine, until it has confirmed. An error means that
// it never will: the provider's life is over, or it cannot.
func (m *mover) fenceThere(ch *channel) error {
	s := m.s
	req := control.FenceRequest{
		From: s.e.incarnation, To: s.incarnation, Transport: ch.l.transport, Path: ch.l.path,
		Lane: ch.l.lane, Generation: ch.generation,
	}
	ctx, cancel := context.WithCancel(s.e.ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	s.e.watch.ask(s.a.address) // so that a silent peer is known as such soon
	for wait := helloMin; ; wait = min(2*wait, helloMax) {
		err := s.a.client.Fence(ctx, req)
		s.e.stats.fences[fenceThere+boolean(err != nil)].Add(1)
		switch {
		case err == nil:
			return nil
		case s.e.ctx.Err() != nil || !s.alive():
			return sdk.Errorf(sdk.Unavailable, "the peer's life is over: %w", err)
		case s.a.lost(err):
			return err
		case errors.Is(err, sdk.PeerRestarted):
			s.a.die(sdk.Errorf(sdk.PeerRestarted, "the peer at %s is a new incarnation", s.a.address))
			return err
		case errors.Is(err, sdk.SessionUnknown):
			_ = s.a.greetAgain(ctx)
		}
		s.e.log.Debug("fence not confirmed yet", "peer", s.a.peer(), "transport", ch.l.transport, "path", ch.l.path, "generation", ch.generation, "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		s.e.freeze.Awake()
	}
}

// fenced lets chunks go on whose fence is confirmed, or, with an error, never
// will be since nobody is left who could confirm it.
func (m *mover) fenced(ch *channel, chunks []*chunk, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range chunks {
		o := c.op
		if err != nil {
			o.unknown = true
			m.failLocked(o, err)
		}
		m.backLocked(c, ch.l.id, nil)
	}
	m.pumpLocked()
}
