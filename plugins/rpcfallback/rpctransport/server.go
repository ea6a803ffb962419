package rpctransport

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/plugins/rpcfallback/rpctransport/pb"
	"github.com/hawser-transport/hawser/sdk/mtls"
)

const (
	// protocol is what TLS connections are negotiated for.
	protocol = "h2"

	// joinKey and verdictKey are metadata; the suffix makes their values
	// binary.
	joinKey    = "hawser-join-bin"
	verdictKey = "hawser-verdict-bin"

	// A connection that is silent for pingAfter is asked, and given up after
	// pingPatience without an answer. Ten seconds is the least that gRPC
	// clients may choose.
	pingAfter    = 10 * time.Second
	pingPatience = 5 * time.Second

	// greetingTime bounds the wait for a new connection's HTTP/2 preface,
	// idleTime a connection's life without a call.
	greetingTime = 2 * time.Second
	idleTime     = 30 * time.Second

	// windowBytes is gRPC's flow control: how far a peer may get ahead of a
	// handler that does not return.
	windowBytes = 1 << 20

	// maxConnections bounds what strangers can open.
	maxConnections = 8192
)

func newServer(t *Transport) *grpc.Server {
	s := grpc.NewServer(
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxHeaderListSize(8<<10),
		grpc.MaxConcurrentStreams(4),
		grpc.InitialWindowSize(windowBytes),
		grpc.InitialConnWindowSize(windowBytes),
		grpc.ConnectionTimeout(greetingTime),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTime, Time: pingAfter, Timeout: pingPatience}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAfter / 2, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	)
	pb.RegisterFallbackServer(s, &service{t: t})
	return s
}

// service is the server's side of the protocol.
type service struct {
	pb.UnimplementedFallbackServer
	t *Transport
}

// Probe implements the service: that it is called is the answer.
func (s *service) Probe(context.Context, *pb.ProbeRequest) (*pb.ProbeResponse, error) {
	return &pb.ProbeResponse{}, nil
}

// Carry implements the service: it gives the stream to the endpoint that
// expects it and returns, which ends the stream, when the endpoint ends.
func (s *service) Carry(stream grpc.BidiStreamingServer[pb.Packet, pb.Packet]) error {
	return s.join(stream, bootstrap.Frames)
}

// Move implements the service, like Carry.
func (s *service) Move(stream grpc.BidiStreamingServer[pb.Segment, pb.Segment]) error {
	return s.join(stream, bootstrap.Memory)
}

func (s *service) join(stream grpc.ServerStream, kind bootstrap.Kind) error {
	e, verdict := s.claim(stream.Context(), kind)
	if err := stream.SendHeader(metadata.Pairs(verdictKey, string(verdict.Marshal()))); err != nil && e == nil {
		return err
	}
	if e == nil {
		return nil
	}
	e.Arrive(stream)
	<-e.Done()
	return nil
}

func (s *service) claim(ctx context.Context, kind bootstrap.Kind) (end, bootstrap.Verdict) {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get(joinKey)
	if len(values) != 1 {
		return nil, bootstrap.NotHawser
	}
	j, verdict := bootstrap.ParseJoin([]byte(values[0]))
	switch {
	case verdict != bootstrap.Welcome:
		return nil, verdict
	case j.Kind != kind:
		return nil, bootstrap.WrongKind
	}
	from, _ := peer.FromContext(ctx) // a server's always has one
	e, verdict := s.t.Pending.Claim(j, mtls.IdentityAt(from.Addr))
	switch verdict {
	case bootstrap.WrongInstance:
		s.t.gate.courtesy.Ask()
	case bootstrap.WrongIdentity:
		s.t.gate.turnAway(s.t.Log, from.Addr, verdict.String())
	}
	return e, verdict
}

// gate is a listener that turns connections away while there are too many.
type gate struct {
	net.Listener
	done     <-chan struct{} // closed when the transport closes
	open     atomic.Int64
	courtesy bootstrap.Courtesy
	// turnedAway counts the connections that TLS has refused, and the streams
	// that came over another peer's.
	turnedAway atomic.Uint64
}

// refused logs peers that TLS refuses.
func (g *gate) refused(log *slog.Logger) func(net.Conn, error) {
	return func(conn net.Conn, err error) {
		if err != nil {
			g.turnAway(log, conn.RemoteAddr(), err.Error())
		}
	}
}

func (g *gate) turnAway(log *slog.Logger, from net.Addr, why string) {
	n := g.turnedAway.Add(1)
	// One line for each power of two: a scanner must not fill the log.
	if n&(n-1) == 0 {
		log.Warn("turned a connection away", "from", from.String(), "why", why, "so far", n)
	}
}

// Accept implements net.Listener.
func (g *gate) Accept() (net.Conn, error) {
	for {
		g.courtesy.Pause(g.done)
		conn, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if g.open.Add(1) <= maxConnections {
			return &guest{Conn: conn, left: sync.OnceFunc(func() { g.open.Add(-1) })}, nil
		}
		g.open.Add(-1)
		_ = conn.Close()
	}
}

// guest is a connection that the gate counts.
type guest struct {
	net.Conn
	left func()
}

// Close implements net.Conn.
func (c *guest) Close() error {
	c.left()
	return c.Conn.Close()
}
