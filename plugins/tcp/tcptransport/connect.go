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
)

// Paths implements [sdk.Notifier].
func (t *Transport) Paths(remote sdk.Attributes) ([]string, error) { return address.Paths(remote) }

// Connect implements [sdk.Notifier].
func (t *Transport) Connect(ctx context.Context, target sdk.Target, exchange sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	if err := t.ready(); err != nil {
		return nil, err
	}
	if err := address.OnPath(target); err != nil {
		return nil, err
	}
	if err := t.generations.Admit(target, bootstrap.Connecting); err != nil {
		return nil, err
	}
	ctx, stop := t.untilClose(ctx)
	defer stop()
	offer := bootstrap.Offer{
		Token: bootstrap.NewToken(), Generation: target.Generation, Instance: t.instance,
		From: target.Local, To: target.Peer,
	}
	reply, err := exchange(ctx, offer.Marshal())
	if err != nil {
		return nil, sdk.Errorf(codeOr(err, sdk.Unavailable), "bootstrap with %s: %w", peerName(target), err)
	}
	answer, err := bootstrap.ParseAnswer(reply)
	if err != nil {
		return nil, err
	}
	if answer.Generation != target.Generation {
		return nil, sdk.Errorf(sdk.Refused, "answer is of generation %d, not %d", answer.Generation, target.Generation)
	}
	if err := address.Check(answer.Address); err != nil {
		return nil, sdk.Errorf(sdk.Refused, "answer: %w", err)
	}
	conn, err := t.join(ctx, answer.Address, bootstrap.Join{
		Kind: bootstrap.Frames, Instance: answer.Instance, Generation: answer.Generation,
		Answered: answer.Token, Offered: offer.Token,
	})
	if err != nil {
		return nil, err
	}
	e, sock := newEndpoint(t, target, h), newSocket(conn, &t.chunks)
	if err := t.start(e, func() { e.run(sock) }); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return e, nil
}

// Accept implements [sdk.Notifier].
func (t *Transport) Accept(_ context.Context, target sdk.Target, raw []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
	if err := t.ready(); err != nil {
		return nil, nil, err
	}
	if err := address.OnPath(target); err != nil {
		return nil, nil, err
	}
	offer, err := bootstrap.ParseOffer(raw)
	if err != nil {
		return nil, nil, err
	}
	if err := offer.Check(target); err != nil {
		return nil, nil, err
	}
	if err := t.generations.Admit(target, bootstrap.Accepting); err != nil {
		return nil, nil, err
	}
	answer := bootstrap.Answer{
		Token: bootstrap.NewToken(), Generation: target.Generation, Instance: t.instance, Address: t.addr,
	}
	e := newEndpoint(t, target, h)
	if err := t.pending.Add(answer.Token, offer, e); err != nil {
		return nil, nil, err
	}
	patience := milliseconds(t.settings.AcceptWaitMS)
	if err := t.start(e, func() { e.await(answer.Token, patience) }); err != nil {
		t.pending.Remove(answer.Token)
		return nil, nil, err
	}
	return e, answer.Marshal(), nil
}

// Probe implements [sdk.Prober].
func (t *Transport) Probe(ctx context.Context, target sdk.Target) error {
	if err := t.ready(); errors.Is(err, errUnready) || errors.Is(err, errShut) {
		return err
	}
	if err := address.OnPath(target); err != nil {
		return err
	}
	addr, err := address.Remote(target.Remote)
	if err != nil {
		return err
	}
	ctx, stop := t.untilClose(ctx)
	defer stop()
	conn, err := t.join(ctx, addr, bootstrap.Join{Kind: bootstrap.Probe})
	if err != nil {
		return err
	}
	_ = conn.Close()
	return nil
}

// While a listener is shared, during a replacement, a connection may reach the
// instance that did not answer. Dialing again has an even chance each time.
const (
	firstRetry = time.Millisecond
	lastRetry  = 100 * time.Millisecond
	maxRetries = 16
)

// join dials and presents the message until it is welcome.
func (t *Transport) join(ctx context.Context, addr string, j bootstrap.Join) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, milliseconds(t.settings.ConnectTimeoutMS))
	defer cancel()
	wait := firstRetry
	for attempt := 0; ; attempt++ {
		conn, verdict, err := t.dial(ctx, addr, j)
		if err == nil && verdict == bootstrap.Welcome {
			return conn, nil
		}
		if err == nil && (verdict != bootstrap.WrongInstance || attempt == maxRetries) {
			err = verdict.Err()
		}
		if err != nil {
			return nil, t.unreached(ctx, addr, err)
		}
		select {
		case <-time.After(wait):
			wait = min(2*wait, lastRetry)
		case <-ctx.Done():
			return nil, t.unreached(ctx, addr, ctx.Err())
		}
	}
}

// dial makes one connection and asks for a verdict. The connection is the
// caller's only with Welcome.
func (t *Transport) dial(ctx context.Context, addr string, j bootstrap.Join) (net.Conn, bootstrap.Verdict, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, 0, err
	}
	// A context that ends makes the handshake fail at once.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	verdict, err := handshake(conn, j)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil || verdict != bootstrap.Welcome {
		_ = conn.Close()
	}
	return conn, verdict, err
}

func handshake(conn net.Conn, j bootstrap.Join) (bootstrap.Verdict, error) {
	if _, err := conn.Write(j.Marshal()); err != nil {
		return 0, err
	}
	var reply [bootstrap.VerdictLen]byte
	if _, err := io.ReadFull(conn, reply[:]); err != nil {
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
	case t.ctx.Err() != nil:
		return errShut
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return sdk.Errorf(sdk.Unavailable, "%s did not answer in time: %w", addr, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return sdk.Errorf(sdk.Unavailable, "nobody listens on %s: %w", addr, err)
	}
	return sdk.Errorf(sdk.Unavailable, "cannot reach %s: %w", addr, err)
}

func codeOr(err error, otherwise sdk.Code) sdk.Code {
	if c := sdk.CodeOf(err); c != 0 {
		return c
	}
	return otherwise
}
