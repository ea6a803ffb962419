package streams

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"syscall"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/address"
	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/plugins/internal/lifecycle"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
)

// Endpoint is a transport's.
type Endpoint interface {
	lifecycle.Endpoint
	sdk.Endpoint
	// End ends it for a reason.
	End(cause error)
}

// Base is embedded in a transport. Its zero value with a Life is not
// configured.
type Base[E Endpoint] struct {
	Life        *lifecycle.Life[E]
	generations bootstrap.Generations

	// Set by Listen, which comes before everything else.
	Log      *slog.Logger
	Keys     *mtls.Keyring // nil without TLS
	Instance uint64
	Pending  *bootstrap.Pending[E]
	common   Settings
	addr     string
}

// NewBase makes the base of a transport that is not configured.
func NewBase[E Endpoint]() Base[E] { return Base[E]{Life: lifecycle.New[E]()} }

// Listen opens the transport: serve starts what accepts connections.
func (b *Base[E]) Listen(ctx context.Context, cfg sdk.Config, s Settings, serve func(net.Listener)) (sdk.Setup, error) {
	keys, err := mtls.Ring(cfg.Keys)
	if err != nil {
		return sdk.Setup{}, err
	}
	ln, err := address.Open(ctx, cfg, ListenerName, s.Listen)
	if err != nil {
		return sdk.Setup{}, err
	}
	addr, err := address.Published(ln.Addr(), s.Advertise)
	if err == nil {
		err = b.Life.Open(func() error {
			if b.Log = cfg.Log; b.Log == nil {
				b.Log = slog.New(slog.DiscardHandler)
			}
			b.Keys, b.Instance, b.common, b.addr = keys, cfg.Instance, s, addr
			b.Pending = bootstrap.NewPending[E](cfg.Instance)
			serve(ln)
			return nil
		})
	}
	if err != nil {
		_ = ln.Close()
		return sdk.Setup{}, err
	}
	return sdk.Setup{
		Attributes: sdk.Attributes{address.Attribute: addr},
		Paths:      []sdk.LocalPath{{Name: sdk.MainPath, Detail: "listening on " + ln.Addr().String() + ", reached at " + addr}},
	}, nil
}

// SetKeys implements [sdk.Keyed].
func (b *Base[E]) SetKeys(_ context.Context, k sdk.Keys) error {
	if err := b.Life.Running(); err != nil {
		return err
	}
	return b.Keys.Replace(k)
}

// Stop is the transport's Drain: shut closes what accepts connections.
// Endpoints whose peer has not arrived end now: its connection would reach
// another instance, if any.
func (b *Base[E]) Stop(shut func()) error {
	if err := b.Life.Drain(); err != nil {
		return err
	}
	shut()
	for _, e := range b.Pending.All() {
		e.End(sdk.Errorf(sdk.Unavailable, "draining before its peer has connected"))
	}
	return nil
}

// Paths implements [sdk.Notifier].
func (b *Base[E]) Paths(remote sdk.Attributes) ([]string, error) { return address.Paths(remote) }

// Admit says whether a new endpoint may be made for the target.
func (b *Base[E]) Admit(target sdk.Target, side bootstrap.Side) error {
	if err := b.Life.Ready(); err != nil {
		return err
	}
	if err := address.OnPath(target); err != nil {
		return err
	}
	return b.generations.Admit(target, side)
}

// Answer is the transport's Accept; endpoint makes one, and its goroutine, which
// ends it if its peer does not present the token in time.
func (b *Base[E]) Answer(target sdk.Target, raw []byte, endpoint func() (E, func(bootstrap.Token, time.Duration))) (sdk.Endpoint, []byte, error) {
	if err := b.Life.Ready(); err != nil {
		return nil, nil, err
	}
	offer, answer, err := bootstrap.Answering(target, b.Instance, b.addr, raw)
	if err != nil {
		return nil, nil, err
	}
	if err := b.Admit(target, bootstrap.Accepting); err != nil {
		return nil, nil, err
	}
	e, await := endpoint()
	if err := b.Pending.Add(answer.Token, offer, target, e); err != nil {
		return nil, nil, err
	}
	patience := Milliseconds(b.common.AcceptWaitMS)
	if err := b.Life.Start(e, func() { await(answer.Token, patience) }); err != nil {
		b.Pending.Remove(answer.Token)
		return nil, nil, err
	}
	return e, answer.Marshal(), nil
}

// Probed returns the address of a target that is to be probed.
func (b *Base[E]) Probed(target sdk.Target) (string, error) {
	if err := b.Life.Running(); err != nil {
		return "", err
	}
	if err := address.OnPath(target); err != nil {
		return "", err
	}
	return address.Remote(target.Remote)
}

// Persist calls dial until the peer welcomes the connection or has no more
// time.
func (b *Base[E]) Persist(ctx context.Context, addr string, dial func(context.Context) (bootstrap.Verdict, error)) error {
	ctx, cancel := context.WithTimeout(ctx, Milliseconds(b.common.ConnectTimeoutMS))
	defer cancel()
	if err := bootstrap.Persist(ctx, func() (bootstrap.Verdict, error) { return dial(ctx) }); err != nil {
		return b.Unreached(ctx, addr, err)
	}
	return nil
}

// Unreached words a failed join: who did not answer, who said no, and whose
// time was over.
func (b *Base[E]) Unreached(ctx context.Context, addr string, err error) error {
	switch {
	case sdk.CodeOf(err) != 0:
		return err
	case b.Life.Running() != nil:
		return b.Life.Running()
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return sdk.Errorf(sdk.Unavailable, "%s did not answer in time: %w", addr, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return sdk.Errorf(sdk.Unavailable, "nobody listens on %s: %w", addr, err)
	}
	return sdk.Errorf(sdk.Unavailable, "cannot reach %s: %w", addr, err)
}
