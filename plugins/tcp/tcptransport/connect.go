package tcptransport

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/address"
	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
)

// Paths implements [sdk.Notifier].
func (t *Transport) Paths(remote sdk.Attributes) ([]string, error) { return address.Paths(remote) }

// Connect implements [sdk.Notifier].
func (t *Transport) Connect(ctx context.Context, target sdk.Target, exchange sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	if err := t.admit(target, bootstrap.Connecting); err != nil {
		return nil, err
	}
	ctx, stop := t.life.Until(ctx)
	defer stop()
	addr, j, err := bootstrap.Offering(ctx, target, t.instance, exchange)
	if err != nil {
		return nil, err
	}
	conn, err := t.join(ctx, addr, target, j)
	if err != nil {
		return nil, err
	}
	e, sock := newEndpoint(t, target, h), newSocket(conn, &t.chunks)
	if err := t.life.Start(e, func() { e.run(sock) }); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return e, nil
}

// Accept implements [sdk.Notifier].
func (t *Transport) Accept(_ context.Context, target sdk.Target, raw []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
	if err := t.life.Ready(); err != nil {
		return nil, nil, err
	}
	offer, answer, err := bootstrap.Answering(target, t.instance, t.addr, raw)
	if err != nil {
		return nil, nil, err
	}
	if err := t.admit(target, bootstrap.Accepting); err != nil {
		return nil, nil, err
	}
	e := newEndpoint(t, target, h)
	if err := t.pending.Add(answer.Token, offer, target, e); err != nil {
		return nil, nil, err
	}
	patience := milliseconds(t.settings.AcceptWaitMS)
	if err := t.life.Start(e, func() { e.await(answer.Token, patience) }); err != nil {
		t.pending.Remove(answer.Token)
		return nil, nil, err
	}
	return e, answer.Marshal(), nil
}

// admit says whether a new endpoint may be made for the target.
func (t *Transport) admit(target sdk.Target, side bootstrap.Side) error {
	if err := t.life.Ready(); err != nil {
		return err
	}
	if err := address.OnPath(target); err != nil {
		return err
	}
	return t.generations.Admit(target, side)
}

// Probe implements [sdk.Prober].
func (t *Transport) Probe(ctx context.Context, target sdk.Target) error {
	if err := t.life.Running(); err != nil {
		return err
	}
	if err := address.OnPath(target); err != nil {
		return err
	}
	addr, err := address.Remote(target.Remote)
	if err != nil {
		return err
	}
	ctx, stop := t.life.Until(ctx)
	defer stop()
	conn, err := t.join(ctx, addr, target, bootstrap.Join{Kind: bootstrap.Probe})
	if err != nil {
		return err
	}
	_ = conn.Close()
	return nil
}

// join dials and presents the message until it is welcome.
func (t *Transport) join(ctx context.Context, addr string, target sdk.Target, j bootstrap.Join) (conn net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, milliseconds(t.settings.ConnectTimeoutMS))
	defer cancel()
	err = bootstrap.Persist(ctx, func() (verdict bootstrap.Verdict, err error) {
		conn, verdict, err = t.dial(ctx, addr, target, j)
		return verdict, err
	})
	if err != nil {
		return nil, t.unreached(ctx, addr, err)
	}
	return conn, nil
}

// dial makes one connection and asks for a verdict. The connection is the
// caller's only with Welcome.
func (t *Transport) dial(ctx context.Context, addr string, target sdk.Target, j bootstrap.Join) (net.Conn, bootstrap.Verdict, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, 0, err
	}
	conn := mtls.Client(raw, t.keys, protocol, nil)
	// A context that ends makes the handshake fail at once.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	verdict, err := handshake(ctx, conn, target, j)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil || verdict != bootstrap.Welcome {
		_ = conn.Close()
	}
	return conn, verdict, err
}

func handshake(ctx context.Context, conn net.Conn, target sdk.Target, j bootstrap.Join) (bootstrap.Verdict, error) {
	if err := mtls.Handshake(ctx, conn); err != nil {
		return 0, err
	}
	if err := bootstrap.Expected(target, conn); err != nil {
		return 0, err
	}
	// A peer that has refused the certificate has left its word to be read.
	_, failed := conn.Write(j.Marshal())
	var reply [bootstrap.VerdictLen]byte
	if _, err := io.ReadFull(conn, reply[:]); err != nil {
		if failed != nil && sdk.CodeOf(err) == 0 {
			err = failed
		}
		return 0, err
	}
	return bootstrap.ParseVerdict(reply[:])
}

// unreached words a failed join: who did not answer, who said no, and whose
// time was over.
func (t *Transport) unreached(ctx context.Context, addr string, err error) error {
	switch {
	case sdk.CodeOf(err) != 0:
		return err
	case t.life.Running() != nil:
		return t.life.Running()
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return sdk.Errorf(sdk.Unavailable, "%s did not answer in time: %w", addr, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return sdk.Errorf(sdk.Unavailable, "nobody listens on %s: %w", addr, err)
	}
	return sdk.Errorf(sdk.Unavailable, "cannot reach %s: %w", addr, err)
}
