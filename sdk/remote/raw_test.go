//go:build linux

package remote

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/internal/bounds"
	"github.com/hawser-transport/hawser/sdk/internal/link"
	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// raw is a plugin without the SDK: it says what a test wants it to say.
type raw struct {
	pb.UnimplementedPluginServer
	t       *testing.T
	server  *grpc.Server
	socket  *net.UnixConn
	carrier link.Carrier

	describe *pb.DescribeResponse
	openLink *pb.OpenLinkResponse
	paths    *pb.PathsResponse
	setup    *pb.ConfigureResponse
	accept   *pb.AcceptResponse
	register *pb.RegisterResponse
	connect  func(grpc.BidiStreamingServer[pb.ConnectRequest, pb.ConnectResponse]) error
	// dieAt names the step at which the plugin's process dies.
	dieAt string
	// silent answers no pings.
	silent bool

	died   sync.Once
	read   chan struct{}
	mu     sync.Mutex
	closes []uint64
	ends   []uint64   // of windows
	keys   []*pb.Keys // of each Configure and SetKeys
}

func honest() *pb.DescribeResponse {
	return &pb.DescribeResponse{
		Name: "raw", Contract: sdk.ContractVersion, Features: []uint32{1, 2, 3, 6},
		Limits: &pb.Limits{MaxFrame: 1000},
	}
}

// startRaw serves the plugin and makes the host's end, not opened.
func startRaw(t *testing.T, p *raw) (*Transport, *net.UnixConn) {
	t.Helper()
	host, theirs, err := SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	if p.socket, err = link.FileConn(theirs); err != nil {
		t.Fatal(err)
	}
	p.t, p.read = t, make(chan struct{})
	if p.describe == nil {
		p.describe = honest()
	}
	// The carrier takes the socket out of its connection: p.socket is another
	// one, for tests that write past the carrier.
	file, err := p.socket.File()
	if err != nil {
		t.Fatal(err)
	}
	mine := p.socket
	if p.socket, err = link.FileConn(file); err != nil {
		t.Fatal(err)
	}
	p.carrier = link.NewSocket(mine, bounds.MaxRecord(1000))
	go p.readLink()
	p.server = grpc.NewServer()
	pb.RegisterPluginServer(p.server, p)
	lis := bufconn.Listen(1 << 16)
	served := make(chan struct{})
	go func() { defer close(served); _ = p.server.Serve(lis) }()
	conn, err := grpc.NewClient("passthrough:raw", grpc.WithContextDialer(
		func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	tr := newTransport(context.Background(), "raw", conn)
	t.Cleanup(func() {
		tr.Abort(nil)
		p.die()
		<-tr.Done()
		_ = conn.Close()
		<-served
		<-p.read
	})
	return tr, host
}

func openRaw(t *testing.T, p *raw) *Transport {
	t.Helper()
	tr, host := startRaw(t, p)
	if err := tr.Open(testContext(t), host, nil); err != nil {
		t.Fatal(err)
	}
	return tr
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// die is what a killed process looks like from outside.
func (p *raw) die() {
	p.socket.Close()
	p.died.Do(func() {
		_ = p.carrier.Close()
		p.server.Stop()
	})
}

// step dies if it is the step to die at.
func (p *raw) step(ctx context.Context, name string) error {
	if p.dieAt != name {
		return nil
	}
	go p.die()
	<-ctx.Done()
	return ctx.Err()
}

func (p *raw) readLink() {
	defer close(p.read)
	var recs []link.Record
	var err error
	for err == nil {
		recs, err = p.carrier.Recv(recs[:0])
		for _, r := range recs {
			switch r.Type {
			case link.Ping:
				if !p.silent {
					p.say(link.Record{Type: link.Pong, ID: r.ID})
				}
			case link.Window:
				p.mu.Lock()
				p.ends = append(p.ends, r.ID)
				p.mu.Unlock()
			case link.CloseEndpoint:
				p.mu.Lock()
				p.closes = append(p.closes, r.Endpoint)
				p.mu.Unlock()
			}
		}
	}
}

func (p *raw) say(recs ...link.Record) {
	if _, err := p.carrier.Send(recs, link.Wait); err != nil && !errors.Is(err, link.ErrClosed) {
		p.t.Error(err)
	}
}

func (p *raw) Describe(ctx context.Context, _ *pb.DescribeRequest) (*pb.DescribeResponse, error) {
	return p.describe, p.step(ctx, "describe")
}

func (p *raw) OpenLink(ctx context.Context, _ *pb.OpenLinkRequest) (*pb.OpenLinkResponse, error) {
	if p.openLink == nil {
		p.openLink = &pb.OpenLinkResponse{Carrier: link.CarrierUnix}
	}
	return p.openLink, p.step(ctx, "open link")
}

func (p *raw) Configure(ctx context.Context, req *pb.ConfigureRequest) (*pb.ConfigureResponse, error) {
	p.mu.Lock()
	p.keys = append(p.keys, req.GetKeys())
	p.mu.Unlock()
	return p.setup, p.step(ctx, "configure")
}

func (p *raw) SetKeys(ctx context.Context, req *pb.SetKeysRequest) (*pb.SetKeysResponse, error) {
	p.mu.Lock()
	p.keys = append(p.keys, req.GetKeys())
	p.mu.Unlock()
	return nil, p.step(ctx, "set keys")
}

func (p *raw) Health(ctx context.Context, _ *pb.HealthRequest) (*pb.HealthResponse, error) {
	return nil, p.step(ctx, "health")
}

func (p *raw) Paths(ctx context.Context, _ *pb.PathsRequest) (*pb.PathsResponse, error) {
	return p.paths, p.step(ctx, "paths")
}

func (p *raw) Probe(ctx context.Context, _ *pb.ProbeRequest) (*pb.ProbeResponse, error) {
	return nil, p.step(ctx, "probe")
}

func (p *raw) Drain(ctx context.Context, _ *pb.DrainRequest) (*pb.DrainResponse, error) {
	return nil, p.step(ctx, "drain")
}

func (p *raw) Close(ctx context.Context, _ *pb.CloseRequest) (*pb.CloseResponse, error) {
	return nil, p.step(ctx, "close")
}

func (p *raw) Register(ctx context.Context, _ *pb.RegisterRequest) (*pb.RegisterResponse, error) {
	return p.register, p.step(ctx, "register")
}

func (p *raw) Deregister(ctx context.Context, _ *pb.DeregisterRequest) (*pb.DeregisterResponse, error) {
	return nil, p.step(ctx, "deregister")
}

func (p *raw) Announce(ctx context.Context, _ *pb.AnnounceRequest) (*pb.AnnounceResponse, error) {
	return nil, p.step(ctx, "announce")
}

func (p *raw) Withdraw(ctx context.Context, _ *pb.WithdrawRequest) (*pb.WithdrawResponse, error) {
	return nil, p.step(ctx, "withdraw")
}

func (p *raw) Accept(ctx context.Context, req *pb.AcceptRequest) (*pb.AcceptResponse, error) {
	return p.accept, p.step(ctx, "accept")
}

func (p *raw) Connect(stream grpc.BidiStreamingServer[pb.ConnectRequest, pb.ConnectResponse]) error {
	if p.connect != nil {
		return p.connect(stream)
	}
	ctx := stream.Context()
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if err := p.step(ctx, "connect start"); err != nil {
		return err
	}
	if err := stream.Send(offerStep(nil)); err != nil {
		return err
	}
	if err := p.step(ctx, "connect offer"); err != nil {
		return err
	}
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if err := p.step(ctx, "connect answer"); err != nil {
		return err
	}
	return stream.Send(doneStep(nil))
}

func offerStep(offer []byte) *pb.ConnectResponse {
	return &pb.ConnectResponse{Step: &pb.ConnectResponse_Offer_{Offer: &pb.ConnectResponse_Offer{Offer: offer}}}
}

func doneStep(e *pb.Error) *pb.ConnectResponse {
	return &pb.ConnectResponse{Step: &pb.ConnectResponse_Done_{Done: &pb.ConnectResponse_Done{Error: e}}}
}

func noAnswer(context.Context, []byte) ([]byte, error) { return nil, nil }

// waiting is a Handler that announces its end.
type waiting struct {
	strict
	mu    sync.Mutex
	got   []string
	done  chan struct{}
	block chan struct{} // Received waits for it
}

func newWaiting(t *testing.T) *waiting {
	return &waiting{strict: strict{t: t, sent: 100}, done: make(chan struct{})}
}

func (w *waiting) Received(frames [][]byte) {
	if w.block != nil {
		<-w.block
	}
	w.mu.Lock()
	for _, f := range frames {
		w.got = append(w.got, string(f))
	}
	w.mu.Unlock()
	w.strict.Received(frames)
}

func (w *waiting) Ended(err error) {
	w.strict.Ended(err)
	close(w.done)
}

func (w *waiting) await(t *testing.T) error {
	t.Helper()
	select {
	case <-w.done:
		return w.ended
	case <-time.After(10 * time.Second):
		t.Fatal("no end")
		return nil
	}
}
