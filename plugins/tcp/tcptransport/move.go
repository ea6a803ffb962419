package tcptransport

import (
	"net"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/plugins/internal/transfer"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
)

// maxOp is the largest op in bytes: what one connection carries of one transfer
// before it is the turn of another. Each op wakes both sides a few times: ops of
// a fourth of that took a quarter more processor time for the same bytes.
const maxOp = 4 << 20

func moveLimits() sdk.MoveLimits {
	return sdk.MoveLimits{MaxOp: maxOp, TargetWrites: true, Parallel: 4}
}

// end is an endpoint, for frames or for memory.
type end interface {
	sdk.Endpoint
	End(cause error)
	// Arrive gives it its connection.
	Arrive(conn net.Conn)
}

// mover is an endpoint for memory.
type mover struct{ transfer.Endpoint }

// Arrive implements end.
func (m *mover) Arrive(conn net.Conn) {
	under := tune(conn)
	if _, secured := conn.(*mtls.Conn); !secured {
		conn = under // which writes many buffers at a time
	}
	m.Endpoint.Arrive(conn)
}

// active makes the connecting end, and its goroutine.
func (t *Transport) active(target sdk.Target, conn net.Conn, h sdk.Handler) (end, func()) {
	if target.Use != sdk.UseMemory {
		e := newEndpoint(t, target, h)
		return e, func() { e.run(newSocket(conn, &t.chunks)) }
	}
	a := transfer.NewActive(&t.Table, moveLimits(), target, bootstrap.PeerName(target), h)
	m := &mover{a}
	m.Arrive(conn)
	return m, func() { a.Run(func() { t.Life.Forget(m) }) }
}

// passive makes the accepting end, and its goroutine.
func (t *Transport) passive(target sdk.Target, h sdk.Handler) (end, func(bootstrap.Token, time.Duration)) {
	if target.Use != sdk.UseMemory {
		e := newEndpoint(t, target, h)
		return e, e.await
	}
	p := transfer.NewPassive(&t.Regions, moveLimits(), bootstrap.PeerName(target), h)
	m := &mover{p}
	return m, func(token bootstrap.Token, patience time.Duration) {
		p.Run(patience, func() bool { return t.Pending.Remove(token) }, func() { t.Life.Forget(m) })
	}
}
