package engine

import (
	"context"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
)

// goodbyeTimeout is what a goodbye may take, and so may what has to be given up
// before it.
const goodbyeTimeout = 500 * time.Millisecond

// owed is a goodbye that is still to be said.
type owed struct {
	a       *association
	to      Incarnation
	lastAck []byte
}

// farewell says goodbye to every peer at once, as soon as no transport holds any
// of its memory: the peer takes it for the word that it may free that. Those for
// whom that takes longer are returned. Those of whose memory ops are under way are
// told nothing: they are to wait until nobody answers here.
func (e *Engine) farewell(ctx context.Context) (late []owed) {
	var mu sync.Mutex
	var calls sync.WaitGroup
	for _, a := range e.directory.all() {
		n := a.node.Load()
		if n == nil || n.Incarnation == e.incarnation || e.memory.uses(n.Incarnation) {
			continue
		}
		calls.Go(func() {
			if !e.memory.leave(ctx, n.Incarnation) {
				mu.Lock()
				defer mu.Unlock()
				late = append(late, owed{a, n.Incarnation, a.lastAck()})
				return
			}
			e.goodbye(ctx, a.client, a.lastAck())
		})
	}
	calls.Wait()
	return late
}

// lateFarewell says the goodbyes that are owed, now that the transports have
// stopped, but to those whose memory a process holds that does not die.
func (e *Engine) lateFarewell(ctx context.Context, late []owed) {
	var calls sync.WaitGroup
	for _, o := range late {
		calls.Go(func() {
			if !e.memory.leave(ctx, o.to) {
				return
			}
			client := e.control.Dial(o.a.address) // the association's is closed
			client.Bind(o.a.identity)
			defer client.Close() //nolint:errcheck // it has no more to say
			e.goodbye(ctx, client, o.lastAck)
		})
	}
	calls.Wait()
}

func (e *Engine) goodbye(ctx context.Context, client control.Client, lastAck []byte) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbyeTimeout)
	defer cancel()
	_ = client.Goodbye(ctx, control.GoodbyeRequest{From: e.incarnation, LastAck: lastAck})
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
