package engine

import (
	"context"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/sdk"
)

// goodbyeTimeout is what a goodbye may take, and so may what has to be given up
// before it.
const goodbyeTimeout = 500 * time.Millisecond

// owed is a goodbye that is still to be said. used says that ops on the peer's
// memory were under way.
type owed struct {
	a       *association
	to      Incarnation
	lastAck []byte
	used    bool
}

// farewell says goodbye to every peer at once, as soon as no transport holds any
// of its memory: the peer takes it for the word that it may free that. Those for
// whom that takes longer are returned, and those of whose memory ops are under
// way: they are to wait until nobody answers here.
func (e *Engine) farewell(ctx context.Context) (late []owed) {
	var mu sync.Mutex
	var calls sync.WaitGroup
	for _, a := range e.directory.all() {
		n := a.node.Load()
		if n == nil || n.Incarnation == e.incarnation {
			continue
		}
		calls.Go(func() {
			used := e.memory.uses(n.Incarnation)
			if used || !e.memory.leave(ctx, n.Incarnation) {
				mu.Lock()
				defer mu.Unlock()
				late = append(late, owed{a, n.Incarnation, a.lastAck(), used})
				return
			}
			e.goodbye(ctx, a.client, a.lastAck(), false)
		})
	}
	calls.Wait()
	return late
}

// lateFarewell says the goodbyes that are owed, now that the transports have
// stopped, and tells those whose memory a process may map that does not die.
func (e *Engine) lateFarewell(ctx context.Context, late []owed) {
	var calls sync.WaitGroup
	for _, o := range late {
		calls.Go(func() {
			left := e.memory.leave(ctx, o.to)
			if left && o.used {
				return
			}
			client := e.control.Dial(o.a.address) // the association's is closed
			client.Bind(o.a.identity)
			defer client.Close() //nolint:errcheck // it has no more to say
			e.goodbye(ctx, client, o.lastAck, !left)
		})
	}
	calls.Wait()
}

// leave has the transports give up what they hold of a provider's memory, for
// good, and waits a moment for that. It reports whether nothing is left.
func (m *memory) leave(ctx context.Context, i Incarnation) bool {
	for _, s := range m.lives(i) {
		s.die(sdk.Errorf(sdk.Closed, "the engine was closed"))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbyeTimeout)
	defer cancel()
	for {
		m.mu.Lock()
		changed := m.changed
		m.mu.Unlock()
		if len(m.lives(i)) == 0 {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

func (e *Engine) goodbye(ctx context.Context, client control.Client, lastAck []byte, mapped bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbyeTimeout)
	defer cancel()
	_ = client.Goodbye(ctx, control.GoodbyeRequest{From: e.incarnation, LastAck: lastAck, Mapped: mapped})
}

// lastAck acknowledges all that was received of the peer, if anything was.
func (a *association) lastAck() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.in == nil || !a.acks() {
		return nil
	}
	return a.appendAckLocked(nil, &batch{})
}
