package control

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/hawser-transport/hawser/engine/internal/control/pb"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
)

// grpcServer answers peers' calls with a handler.
type grpcServer struct {
	pb.UnimplementedControlServer
	handler  Handler
	timeouts Timeouts
	address  string
	listener net.Listener
	server   *grpc.Server
	slots    chan struct{}
	accepts  sync.WaitGroup

	mu struct {
		sync.Mutex
		closing bool
		serving sync.WaitGroup
	}
}

func serveGRPC(l net.Listener, h Handler, o Options) *grpcServer {
	s := &grpcServer{handler: h, timeouts: o.Timeouts, address: l.Addr().String(),
		listener: o.secure(&boundedListener{Listener: l, slots: make(chan struct{}, maxConnections)}),
		slots:    make(chan struct{}, maxCalls)}
	s.server = grpc.NewServer(
		grpc.Creds(credentialsBelow()),
		grpc.MaxRecvMsgSize(maxMessageBytes), grpc.MaxSendMsgSize(maxMessageBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes), grpc.MaxConcurrentStreams(maxStreams),
		grpc.ReadBufferSize(bufferBytes), grpc.WriteBufferSize(bufferBytes),
		grpc.ConnectionTimeout(10*time.Second),
		// Frees the connections of peers that vanished without a word.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
	)
	pb.RegisterControlServer(s.server, s)
	s.accepts.Go(func() { _ = s.server.Serve(s.listener) }) // ends with the listener
	return s
}

// close refuses new connections and calls, waits for the calls being served
// and for their answers to leave, then cuts what is left.
func (s *grpcServer) close(ctx context.Context) error {
	s.mu.Lock()
	s.mu.closing = true
	s.mu.Unlock()
	_ = s.listener.Close()
	served := make(chan struct{})
	go func() {
		s.mu.serving.Wait()
		close(served)
	}()
	var err error
	select {
	case <-served:
		s.flush(ctx)
	case <-ctx.Done():
		err = sdk.Errorf(sdk.DeadlineExceeded, "close the control plane on %s: calls are still being served", s.address)
	}
	s.server.Stop()
	s.accepts.Wait()
	return err
}

// flush lets the last answers leave. A frozen peer does not take part, so it
// is not waited for.
func (s *grpcServer) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	flushed := make(chan struct{})
	go func() {
		s.server.GracefulStop() // also ends with Stop
		close(flushed)
	}()
	select {
	case <-flushed:
	case <-ctx.Done():
	}
}

// enter admits one call to be served.
func (s *grpcServer) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closing {
		// Without details: it is not an answer, the engine is as good as gone.
		return status.Error(codes.Unavailable, "closing")
	}
	select {
	case s.slots <- struct{}{}:
	default:
		return statusOf(tooManyCalls())
	}
	s.mu.serving.Add(1)
	return nil
}

func (s *grpcServer) leave() {
	<-s.slots
	s.mu.serving.Done()
}

// answerGRPC serves one call: nothing that fails the checks reaches the
// handler.
func answerGRPC[Q request[Q], R reply[Q, R], PQ, PR any](ctx context.Context, s *grpcServer, m method[Q, R],
	in PQ, from func(PQ) (Q, error), to func(R) PR,
) (PR, error) {
	var zero PR
	if err := s.enter(); err != nil {
		return zero, err
	}
	defer s.leave()
	q, err := from(in)
	if err == nil {
		err = q.check()
	}
	if err != nil {
		return zero, statusOf(err)
	}
	ctx, cancel := withDeadline(ctx, m.timeout(s.timeouts))
	defer cancel()
	ctx, cancelLong := context.WithTimeout(ctx, maxServeTime)
	defer cancelLong()
	if p, ok := peer.FromContext(ctx); ok {
		ctx = withCaller(ctx, mtls.IdentityAt(p.Addr))
	}
	r, err := m.call(ctx, s.handler, q)
	if err != nil {
		return zero, statusOf(err)
	}
	// The caller would refuse it too, but would not know whose fault it is.
	if err := r.checkFor(q); sdk.CodeOf(err) == sdk.TooLarge {
		return zero, statusOf(err)
	}
	return to(r), nil
}

func (s *grpcServer) Hello(ctx context.Context, in *pb.HelloRequest) (*pb.HelloReply, error) {
	return answerGRPC(ctx, s, hello, in, helloRequestFrom, helloReplyTo)
}

func (s *grpcServer) Bootstrap(ctx context.Context, in *pb.BootstrapRequest) (*pb.BootstrapReply, error) {
	return answerGRPC(ctx, s, bootstrap, in, bootstrapRequestFrom, bootstrapReplyTo)
}

func (s *grpcServer) Probe(ctx context.Context, in *pb.ProbeRequest) (*pb.ProbeReply, error) {
	return answerGRPC(ctx, s, probe, in, probeRequestFrom, probeReplyTo)
}

func (s *grpcServer) Changed(ctx context.Context, in *pb.ChangedRequest) (*pb.ChangedReply, error) {
	return answerGRPC(ctx, s, changed, in, changedRequestFrom, changedReplyTo)
}

func (s *grpcServer) Goodbye(ctx context.Context, in *pb.GoodbyeRequest) (*pb.GoodbyeReply, error) {
	return answerGRPC(ctx, s, goodbye, in, goodbyeRequestFrom, goodbyeReplyTo)
}

func (s *grpcServer) Fence(ctx context.Context, in *pb.FenceRequest) (*pb.FenceReply, error) {
	return answerGRPC(ctx, s, fence, in, fenceRequestFrom, fenceReplyTo)
}

func (s *grpcServer) Describe(ctx context.Context, in *pb.DescribeRequest) (*pb.DescribeReply, error) {
	return answerGRPC(ctx, s, describe, in, describeRequestFrom, describeReplyTo)
}

func (s *grpcServer) Invalidate(ctx context.Context, in *pb.InvalidateRequest) (*pb.InvalidateReply, error) {
	return answerGRPC(ctx, s, invalidate, in, invalidateRequestFrom, invalidateReplyTo)
}

// boundedListener closes connections over a bound at once: somebody who opens
// connections for nothing must not make others wait.
type boundedListener struct {
	net.Listener
	slots chan struct{}
}

func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.slots <- struct{}{}:
			return &boundedConn{Conn: c, free: sync.OnceFunc(func() { <-l.slots })}, nil
		default:
			_ = c.Close()
		}
	}
}

type boundedConn struct {
	net.Conn
	free func()
}

func (c *boundedConn) Close() error {
	c.free()
	return c.Conn.Close()
}
