package rpctransport

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/plugins/internal/streams"
	"github.com/hawser-transport/hawser/plugins/rpcfallback/rpctransport/pb"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
)

// Connect implements [sdk.Notifier].
func (t *Transport) Connect(ctx context.Context, target sdk.Target, exchange sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	if err := t.Admit(target, bootstrap.Connecting); err != nil {
		return nil, err
	}
	ctx, stop := t.Life.Until(ctx)
	defer stop()
	addr, j, err := bootstrap.Offering(ctx, target, t.Instance, exchange)
	if err != nil {
		return nil, err
	}
	s, hangUp, err := t.join(ctx, addr, target, j)
	if err != nil {
		return nil, err
	}
	e, run := t.active(target, s, hangUp, h)
	if err := t.Life.Start(e, run); err != nil {
		hangUp()
		return nil, err
	}
	return e, nil
}

// Accept implements [sdk.Notifier].
func (t *Transport) Accept(_ context.Context, target sdk.Target, raw []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
	return t.Answer(target, raw, func() (end, func(bootstrap.Token, time.Duration)) { return t.passive(target, h) })
}

// Probe implements [sdk.Prober].
func (t *Transport) Probe(ctx context.Context, target sdk.Target) error {
	addr, err := t.Probed(target)
	if err != nil {
		return err
	}
	ctx, stop := t.Life.Until(ctx)
	defer stop()
	conn, no, err := t.client(addr, target)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing is left on it
	if _, err := pb.NewFallbackClient(conn).Probe(ctx, &pb.ProbeRequest{}); err != nil {
		return t.Unreached(ctx, addr, no.or(err))
	}
	return nil
}

// join opens a stream and presents the message until it is welcome. hangUp
// ends the stream and its connection.
func (t *Transport) join(ctx context.Context, addr string, target sdk.Target, j bootstrap.Join) (s stream, hangUp func(), err error) {
	err = t.Persist(ctx, addr, func(ctx context.Context) (verdict bootstrap.Verdict, err error) {
		s, hangUp, verdict, err = t.dial(ctx, addr, target, j)
		return verdict, err
	})
	if err != nil {
		return nil, nil, err
	}
	return s, hangUp, nil
}

// dial opens one stream on a connection of its own and asks for a verdict. The
// stream is the caller's only with Welcome.
func (t *Transport) dial(ctx context.Context, addr string, target sdk.Target, j bootstrap.Join) (s stream, hangUp func(), verdict bootstrap.Verdict, err error) {
	conn, no, err := t.client(addr, target)
	if err != nil {
		return nil, nil, 0, err
	}
	// The stream outlives ctx, which only bounds its beginning.
	streamCtx, cancel := context.WithCancel(context.Background())
	hangUp = func() {
		cancel()
		_ = conn.Close()
	}
	stop := context.AfterFunc(ctx, cancel)
	s, verdict, err = open(streamCtx, pb.NewFallbackClient(conn), j)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err = no.or(err); err != nil || verdict != bootstrap.Welcome {
		hangUp()
	}
	return s, hangUp, verdict, err
}

func open(ctx context.Context, client pb.FallbackClient, j bootstrap.Join) (stream, bootstrap.Verdict, error) {
	ctx = metadata.AppendToOutgoingContext(ctx, joinKey, string(j.Marshal()))
	var s grpc.ClientStream
	var err error
	if j.Kind == bootstrap.Memory {
		s, err = client.Move(ctx)
	} else {
		s, err = client.Carry(ctx)
	}
	if err != nil {
		return nil, 0, err
	}
	header, err := s.Header()
	if err != nil {
		return nil, 0, err
	}
	values := header.Get(verdictKey)
	if len(values) != 1 {
		// It ends the stream with an error, or is no peer of ours.
		if err := s.RecvMsg(new(pb.ProbeResponse)); err != nil {
			return nil, 0, err
		}
		return nil, 0, sdk.Errorf(sdk.Refused, "what answers there does not speak this transport's protocol")
	}
	verdict, err := bootstrap.ParseVerdict([]byte(values[0]))
	return s, verdict, err
}

// refusal is what TLS said at either end about a connection. gRPC would only
// pass on its text.
type refusal struct {
	mu  sync.Mutex
	err error
}

func (r *refusal) set(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// or returns the refusal in place of the error that followed from it.
func (r *refusal) or(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil && r.err != nil {
		return r.err
	}
	return err
}

// client makes a connection that dials when it is first used, once: a broken
// one ends its endpoint, and what then happens is the engine's decision.
func (t *Transport) client(addr string, target sdk.Target) (*grpc.ClientConn, *refusal, error) {
	no := &refusal{}
	patience := streams.Milliseconds(t.settings.ConnectTimeoutMS)
	conn, err := grpc.NewClient("passthrough:///"+addr,
		// TLS, if any, is the dialer's.
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			raw, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			if err != nil {
				return nil, err
			}
			conn := mtls.Client(raw, t.Keys, protocol, no.set)
			err = mtls.Handshake(ctx, conn)
			if err == nil {
				err = bootstrap.Expected(target, conn)
				no.set(err)
			}
			if err != nil {
				_ = conn.Close()
				return nil, err
			}
			return conn, nil
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: time.Second, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Minute},
			MinConnectTimeout: patience,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingPatience}),
		grpc.WithInitialWindowSize(windowBytes),
		grpc.WithInitialConnWindowSize(windowBytes),
		grpc.WithMaxHeaderListSize(8<<10),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.ForceCodecV2(newCodec())),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableHealthCheck(),
	)
	if err != nil {
		return nil, nil, sdk.Errorf(sdk.InvalidArgument, "address %q: %w", addr, err)
	}
	return conn, no, nil
}
