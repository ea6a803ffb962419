package rpctransport

import (
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/plugins/internal/transfer"
	"github.com/hawser-transport/hawser/sdk"
)

// maxOp is the largest op in bytes.
const maxOp = 1 << 20

func moveLimits() sdk.MoveLimits {
	return sdk.MoveLimits{MaxOp: maxOp, Inflight: 32, InflightBytes: 16 << 20, TargetWrites: true}
}

// end is an endpoint, for frames or for memory.
type end interface {
	sdk.Endpoint
	End(cause error)
	// Arrive gives it its stream.
	Arrive(s stream)
	// Done is closed when it has ended.
	Done() <-chan struct{}
}

// mover is an endpoint for memory.
type mover struct {
	transfer.Endpoint
	hangUp func() // ends the stream
}

// Arrive implements end.
func (m *mover) Arrive(s stream) { m.Endpoint.Arrive(newPipe(s, m.hangUp)) }

// active makes the connecting end, and its goroutine.
func (t *Transport) active(target sdk.Target, s stream, hangUp func(), h sdk.Handler) (end, func()) {
	if target.Use != sdk.UseMemory {
		e := newEndpoint(t, target, h)
		return e, func() { e.run(s, hangUp) }
	}
	a := transfer.NewActive(&t.Table, moveLimits(), target, bootstrap.PeerName(target), h)
	m := &mover{a, hangUp}
	m.Arrive(s)
	return m, func() { a.Run(func() { t.Life.Forget(m) }) }
}

// passive makes the accepting end, and its goroutine.
func (t *Transport) passive(target sdk.Target, h sdk.Handler) (end, func(bootstrap.Token, time.Duration)) {
	if target.Use != sdk.UseMemory {
		e := newEndpoint(t, target, h)
		return e, e.await
	}
	p := transfer.NewPassive(&t.Regions, moveLimits(), bootstrap.PeerName(target), h)
	// The server's method returns when the endpoint ends, and that ends the
	// stream.
	m := &mover{p, func() {}}
	return m, func(token bootstrap.Token, patience time.Duration) {
		p.Run(patience, func() bool { return t.Pending.Remove(token) }, func() { t.Life.Forget(m) })
	}
}
