package engine

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/sdk"
)

// Segment is all that a peer publishes of its memory, under the peer's name. It
// outlives the peer's restarts: a transfer goes to whoever has the name then,
// and finds the memory that is published then. Its methods are safe for
// concurrent use.
type Segment struct {
	e    *Engine
	name string

	mu     sync.Mutex
	held   int // by transfers
	closed bool
	cur    *source // of the life that it was last used with
}

// Buffer is one region of a peer's, as its descriptor says.
type Buffer struct {
	// Address names the first byte, Length is in bytes.
	Address, Length uint64
	Kind            sdk.MemoryKind
	// Device is the GPU's ordinal at the peer, for device memory.
	Device   int
	Writable bool
	// Capability is the publication's identity, zero at older peers.
	Capability Capability
}

// OpenSegment finds a peer, named as the registry knows it, and reads what it
// publishes. Every call gives a handle of its own; what is kept of the peer is
// given up with the last one. It fails with [Unavailable] if the peer does not
// answer. An engine that finds itself copies between its own regions of host
// memory, without a transport; a GPU's are [Unsupported] then.
func (e *Engine) OpenSegment(ctx context.Context, name string) (*Segment, error) {
	ctx, err := e.ready(ctx, "open segment")
	if err != nil {
		return nil, err
	}
	if e.closing.Load() {
		return nil, sdk.Errorf(sdk.Closed, "open segment %s: the engine is closed", name)
	}
	g := &Segment{e: e, name: name}
	s, err := g.source(ctx)
	if err == nil {
		_, err = s.current(ctx)
	}
	if err != nil {
		_ = g.Close()
		return nil, err
	}
	return g, nil
}

// Name is what the segment was opened by.
func (g *Segment) Name() string { return g.name }

// Buffers lists what the peer publishes now, as far as is known here, and the
// version of its descriptor. It asks the peer if what is known is out of date.
func (g *Segment) Buffers(ctx context.Context) (buffers []Buffer, version uint64, err error) {
	ctx = orBackground(ctx)
	s, err := g.source(ctx)
	if err != nil {
		return nil, 0, err
	}
	d, err := s.current(ctx)
	if err != nil {
		return nil, 0, err
	}
	for _, b := range d.Buffers {
		buffers = append(buffers, Buffer{b.Base, b.Length, b.Kind, b.Device, b.Writable, b.Capability})
	}
	return buffers, d.Version, nil
}

// Refresh has the peer asked for its descriptor, whether or not the one that is
// known seems to be the latest.
func (g *Segment) Refresh(ctx context.Context) error {
	ctx = orBackground(ctx)
	s, err := g.source(ctx)
	if err != nil {
		return err
	}
	_, err = s.refresh(ctx)
	return err
}

// Close gives the handle up. Transfers that were submitted go on. It is
// idempotent.
func (g *Segment) Close() error {
	g.mu.Lock()
	g.closed = true
	g.releaseLocked()
	return nil
}

// hold keeps what the segment leads to for a transfer, unless it is closed.
func (g *Segment) hold() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.held++
	}
	return !g.closed
}

// letGo is the end of such a transfer.
func (g *Segment) letGo() {
	g.mu.Lock()
	g.held--
	g.releaseLocked()
}

// releaseLocked gives up what the segment leads to if nobody needs it any more.
// It releases the lock.
func (g *Segment) releaseLocked() {
	var s *source
	if g.overLocked() {
		s, g.cur = g.cur, nil
	}
	g.mu.Unlock()
	if s != nil {
		s.close()
	}
}

func (g *Segment) overLocked() bool { return g.closed && g.held == 0 }

// source is follow for callers from outside.
func (g *Segment) source(ctx context.Context) (*source, error) {
	if g.isClosed() {
		return nil, g.errClosed()
	}
	return g.follow(ctx)
}

func (g *Segment) isClosed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

func (g *Segment) errClosed() error { return sdk.Errorf(sdk.Closed, "segment %s is closed", g.name) }

// follow returns what is known of the peer that has the name now, after hello
// with it if need be.
func (g *Segment) follow(ctx context.Context) (*source, error) {
	g.mu.Lock()
	s := g.cur
	g.mu.Unlock()
	if s != nil && s.alive() {
		return s, nil
	}
	s, err := g.e.find(ctx, g.name)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch old := g.cur; {
	case g.overLocked():
		s.close()
		return nil, g.errClosed()
	case old == s:
		s.close() // another call has found it, too
	case old != nil:
		old.close()
		g.cur = s
	default:
		g.cur = s
	}
	return s, nil
}

// find opens the source of a peer by name. Where the registry can tell of
// another address by now, a failed call is repeated once.
func (e *Engine) find(ctx context.Context, name string) (*source, error) {
	address, err := e.resolve(ctx, name)
	if err != nil {
		return nil, err
	}
	a, err := e.meet(ctx, address)
	if err != nil && e.cfg.Registry.Type != "p2p" && (silent(err) || control.Gone(err)) {
		if now, again := e.resolve(ctx, name); again == nil && now != address {
			address = now
			a, err = e.meet(ctx, address)
		}
	}
	if err != nil {
		return nil, err
	}
	for {
		if s, err := e.memory.open(a); s != nil || err != nil {
			return s, err
		}
		if a, err = e.meet(ctx, address); err != nil { // that life has ended just now
			return nil, err
		}
	}
}

// meet returns the association of who is at an address, once hello was
// answered. One hello serves all who wait; its failure is theirs.
func (e *Engine) meet(ctx context.Context, address string) (*association, error) {
	for {
		a, err := e.associationAt(address)
		if err != nil {
			return nil, err
		}
		a = a.lockLatest()
		if a.gone {
			a.mu.Unlock()
			continue // it was taken out since it was looked up
		}
		if a.node.Load() != nil && a.box.Session() != 0 {
			a.used = time.Now()
			a.mu.Unlock()
			return a, nil
		}
		if err := a.silentLocked(time.Now()); err != nil {
			a.mu.Unlock()
			e.stats.FailedFast.Add(1)
			return nil, err
		}
		a.hello.wanted++
		a.helloIfNeededLocked() // unless it is dead, and being taken out
		try := a.hello.try
		a.mu.Unlock()
		select {
		case <-try.done:
		case <-ctx.Done():
		case <-e.ctx.Done():
		}
		a.mu.Lock()
		a.hello.wanted--
		a.mu.Unlock()
		switch {
		case isClosed(try.done) && try.err != nil:
			return nil, try.err
		case ctx.Err() != nil:
			peer := "the peer at " + address
			return nil, ended(ctx, peer+" did not answer hello in time", "cancelled before "+peer+" answered hello")
		case e.ctx.Err() != nil:
			return nil, sdk.Errorf(sdk.Closed, "the engine is closed")
		}
	}
}

// greetAgain says hello to a peer that does not know this engine any more, or is
// another one by now. Ops do not wait for a session, so nothing else would.
func (a *association) greetAgain(ctx context.Context) error {
	a.mu.Lock()
	a.reopenLocked()
	a.mu.Unlock()
	_, err := a.e.meet(ctx, a.address)
	return err
}

// open returns the source of the association's peer, with one more user, or nil
// if the association has ended: nobody would end a source that comes later.
func (m *memory) open(a *association) (*source, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dead != nil || a.successor != nil {
		return nil, nil
	}
	n := a.node.Load()
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sources[n.Incarnation]
	if s == nil || !s.alive() {
		if m.e.closing.Load() {
			return nil, sdk.Errorf(sdk.Closed, "the engine is closed")
		}
		if s != nil {
			m.fading[s] = struct{}{} // it is ending
		}
		s = newSource(m.e, a)
		m.sources[n.Incarnation] = s
		m.e.tasks.Go(s.watch)
		m.e.tasks.Go(func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			m.routed(a)
		})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opens++
	return s, nil
}

// routed takes in which transports, and which of their paths, lead to a peer.
// The association's lock is held.
func (m *memory) routed(a *association) {
	if n := a.node.Load(); n != nil {
		if s := m.source(n.Incarnation); s != nil && s.a == a {
			s.mover.routed(slices.Clone(a.found))
			m.e.tasks.Go(s.mover.stir) // without the association's lock
		}
	}
}
