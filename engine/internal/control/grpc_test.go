package control

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/hawser-transport/hawser/engine/internal/control/pb"
	"github.com/hawser-transport/hawser/sdk"
)

type grpcWorld struct{}

// carrier listens, where it can, at an address that nobody else on the machine
// uses, so that a port which a test gave up can be taken again.
func (grpcWorld) carrier(*testing.T, string) Carrier {
	if runtime.GOOS == "linux" {
		return NewGRPC(Options{Listen: "127.0.7.1:0"})
	}
	return NewGRPC(Options{})
}

// dial returns a client that the test closes.
func dial(t *testing.T, address string, o Options) Client {
	t.Helper()
	c := NewGRPC(o)
	t.Cleanup(func() { closeCarrier(t, c) })
	return c.Dial(address)
}

func aProbe(ctx context.Context, c Client) error {
	_, err := c.Probe(ctx, ProbeRequest{From: incarnation(1)})
	return err
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestListenBindsLoopbackOnly(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "192.0.2.1:0", "[::]:0", "example.org:0", "nonsense", ""} {
		if address == "" {
			address = "127.0.0.1" // no port
		}
		c := NewGRPC(Options{Listen: address})
		_, err := c.Listen(&stub{})
		if !errors.Is(err, sdk.InvalidArgument) {
			t.Errorf("%s: %v", address, err)
		}
		if strings.Contains(address, ":") && !strings.Contains(err.Error(), "security.cert") {
			t.Errorf("%s: %v does not say what would permit it", address, err)
		}
		closeCarrier(t, c)
	}
	for _, address := range []string{"127.0.0.1:0", "localhost:0", ""} {
		c := NewGRPC(Options{Listen: address})
		if got, err := c.Listen(&stub{}); err != nil || strings.HasSuffix(got, ":0") {
			t.Errorf("%q: %q, %v", address, got, err)
		}
		closeCarrier(t, c)
	}
}

// serveRaw runs a gRPC server that is not ours.
func serveRaw(t *testing.T, register func(*grpc.Server)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	register(s)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Stop(); wg.Wait() })
	return l.Addr().String()
}

func TestOlderPeerIsUnsupported(t *testing.T) {
	for name, register := range map[string]func(*grpc.Server){
		"method":  func(s *grpc.Server) { pb.RegisterControlServer(s, pb.UnimplementedControlServer{}) },
		"service": func(*grpc.Server) {},
	} {
		t.Run(name, func(t *testing.T) {
			err := aProbe(testContext(t), dial(t, serveRaw(t, register), Options{}))
			if !errors.Is(err, sdk.Unsupported) || !Answered(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// rawServer answers every probe with one error or an empty reply.
type rawServer struct {
	pb.UnimplementedControlServer
	err error
}

func (s rawServer) Probe(context.Context, *pb.ProbeRequest) (*pb.ProbeReply, error) {
	return &pb.ProbeReply{}, s.err
}

func TestForeignAnswers(t *testing.T) {
	detail := func(code uint32) error {
		s, err := status.New(codes.Aborted, "x").WithDetails(&pb.Error{Code: code, Message: "m"})
		if err != nil {
			t.Fatal(err)
		}
		return s.Err()
	}
	for _, tt := range []struct {
		err              error
		code             sdk.Code
		answered, silent bool
	}{
		{nil, sdk.Refused, true, false}, // an empty reply is not a success
		{detail(uint32(sdk.Busy)), sdk.Busy, true, false},
		{detail(0), sdk.Refused, true, false},
		{detail(17), sdk.Refused, true, false},
		{detail(256 + uint32(sdk.Busy)), sdk.Refused, true, false},
		{status.Error(codes.Internal, "x"), sdk.Refused, true, false},
		{status.Error(codes.ResourceExhausted, "x"), sdk.TooLarge, true, false},
		{status.Error(codes.PermissionDenied, strings.Repeat("x", 8000)), sdk.Refused, true, false},
		{status.Error(codes.Unavailable, "a proxy"), sdk.Unavailable, false, true},
		{status.Error(codes.Code(99), "x"), sdk.Refused, true, false},
	} {
		address := serveRaw(t, func(s *grpc.Server) { pb.RegisterControlServer(s, rawServer{err: tt.err}) })
		err := aProbe(testContext(t), dial(t, address, Options{}))
		if !errors.Is(err, tt.code) || Answered(err) != tt.answered || Silent(err) != tt.silent || len(err.Error()) > 2*maxMessage {
			t.Errorf("%v: got %v (answered %v, silent %v)", tt.err, err, Answered(err), Silent(err))
		}
	}
}

// Requests that no engine of ours would send.
func TestRawRequestsAreChecked(t *testing.T) {
	h := &stub{
		hello: func(context.Context, HelloRequest) (HelloReply, error) {
			t.Error("the handler was called")
			return someHelloReply(), nil
		},
		probe: func(context.Context, ProbeRequest) (ProbeReply, error) {
			t.Error("the handler was called")
			return ProbeReply{}, nil
		},
	}
	s := NewGRPC(Options{})
	address, err := s.Listen(h)
	if err != nil {
		t.Fatal(err)
	}
	defer closeCarrier(t, s)
	cc, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	client := pb.NewControlClient(cc)
	ctx := testContext(t)
	hello := func(m *pb.HelloRequest) error { _, err := client.Hello(ctx, m); return err }
	probe := func(m *pb.ProbeRequest) error { _, err := client.Probe(ctx, m); return err }
	for _, tt := range []struct {
		err  error
		code sdk.Code
		say  string
	}{
		{hello(&pb.HelloRequest{}), sdk.InvalidArgument, "from.name is missing"},
		{probe(&pb.ProbeRequest{}), sdk.InvalidArgument, "from is missing"},
		{probe(&pb.ProbeRequest{From: make([]byte, 16)}), sdk.InvalidArgument, "from is missing"},
		{probe(&pb.ProbeRequest{From: make([]byte, 17)}), sdk.InvalidArgument, "from has 17 bytes, not 16"},
		{hello(&pb.HelloRequest{From: nodeTo(node("a", 1)), Session: 1, Proto: 1 << 31}), sdk.InvalidArgument, "proto is"},
		{hello(&pb.HelloRequest{Transports: make([]*pb.Transport, 33)}), sdk.TooLarge, "transports has 33"},
		{probe(&pb.ProbeRequest{From: make([]byte, maxMessageBytes)}), sdk.TooLarge, "larger than max"},
	} {
		e, ok := answerOf(status.Convert(tt.err))
		if !ok || e.Code != tt.code || !strings.Contains(e.Message, tt.say) {
			t.Errorf("got %v, want %s", tt.err, tt.say)
		}
	}
}

// mute is a listener that accepts and then says nothing, as a frozen process
// does, or says something that is not HTTP/2.
func mute(t *testing.T, say string) (address string, accepted *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted = &atomic.Int32{}
	var wg sync.WaitGroup
	wg.Go(func() {
		var conns []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			accepted.Add(1)
			if say != "" {
				_, _ = io.WriteString(c, say)
				_ = c.Close()
				continue
			}
			conns = append(conns, c)
		}
		for _, c := range conns {
			_ = c.Close()
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String(), accepted
}

func TestFrozenPeer(t *testing.T) {
	address, accepted := mute(t, "")
	c := dial(t, address, Options{})
	for range 2 {
		err := aProbe(within(t, 100*time.Millisecond), c)
		if !errors.Is(err, sdk.Unavailable) || !Silent(err) || Gone(err) {
			t.Errorf("got %v", err)
		}
	}
	if accepted.Load() != 1 {
		t.Errorf("%d connections to a frozen peer, want the one that is still under way", accepted.Load())
	}
	// Without a deadline of the caller's the connect timeout decides.
	c = dial(t, address, Options{Timeouts: Timeouts{Connect: 50 * time.Millisecond}})
	err := c.Goodbye(context.Background(), GoodbyeRequest{From: incarnation(1)})
	if !errors.Is(err, sdk.Unavailable) || !Silent(err) {
		t.Errorf("got %v", err)
	}
}

func TestNotAnEngine(t *testing.T) {
	address, accepted := mute(t, "HTTP/1.1 400 Bad Request\r\n\r\n")
	err := aProbe(testContext(t), dial(t, address, Options{}))
	if err == nil || Gone(err) || accepted.Load() == 0 {
		t.Errorf("got %v", err)
	}
	for _, say := range []string{"HTTP/1.1 400 Bad Request\r\n\r\n", "SSH-2.0-OpenSSH_9.6\r\n", "hi"} {
		address, _ := mute(t, say)
		expectNoEngine(t, address)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Server{Handler: http.NotFoundHandler(), Protocols: &http.Protocols{}}
	web.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = web.Serve(l) }()
	defer web.Close()
	expectNoEngine(t, l.Addr().String())
}

func expectNoEngine(t *testing.T, address string) {
	t.Helper()
	err := aProbe(testContext(t), dial(t, address, Options{Timeouts: Timeouts{Connect: time.Second}}))
	want := "no Hawser engine answers at " + address + " (it speaks something else): check the address"
	if !errors.Is(err, sdk.Refused) || !Answered(err) || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %v", err)
	}
}

// relay passes connections on to a server until it is cut.
type relay struct {
	net.Listener
	to string
	wg sync.WaitGroup
	mu struct {
		sync.Mutex
		conns  []net.Conn
		hold   chan struct{} // closed: nothing passes any more
		passed int
	}
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: l, to: to}
	r.mu.hold = make(chan struct{})
	r.wg.Go(r.accept)
	t.Cleanup(func() { _ = l.Close(); r.drop(); r.wg.Wait() })
	return r
}

func (r *relay) accept() {
	for {
		in, err := r.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", r.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		r.mu.Lock()
		r.mu.conns = append(r.mu.conns, in, out)
		r.mu.passed++
		hold := r.mu.hold
		r.mu.Unlock()
		r.wg.Go(func() { r.copy(out, in, hold) })
		r.wg.Go(func() { r.copy(in, out, hold) })
	}
}

func (r *relay) copy(to, from net.Conn, hold chan struct{}) {
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		select {
		case <-hold:
			n = 0 // swallowed
		default:
		}
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			_ = to.Close()
			return
		}
	}
}

// freeze makes the connections so far lead nowhere; later ones work.
func (r *relay) freeze() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.mu.hold)
	r.mu.hold = make(chan struct{})
}

// drop breaks the connections so far.
func (r *relay) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.mu.conns {
		_ = c.Close()
	}
	r.mu.conns = nil
}

func (r *relay) passed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.passed
}

// A connection that leads nowhere costs one call, not all that follow.
func TestSilentConnectionIsReplaced(t *testing.T) {
	s := NewGRPC(Options{})
	address, err := s.Listen(&stub{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeCarrier(t, s)
	r := newRelay(t, address)
	c := dial(t, r.Addr().String(), Options{})
	if err := aProbe(testContext(t), c); err != nil {
		t.Fatal(err)
	}
	r.freeze()
	if err := aProbe(within(t, 50*time.Millisecond), c); !Silent(err) {
		t.Errorf("got %v", err)
	}
	if err := aProbe(testContext(t), c); err != nil {
		t.Errorf("over a fresh connection: %v", err)
	}
	if r.passed() != 2 {
		t.Errorf("%d connections", r.passed())
	}
}

// A connection that breaks during a call: silence while somebody listens
// there, gone if nobody does. The call is not sent twice.
func TestBrokenConnection(t *testing.T) {
	for _, listening := range []bool{true, false} {
		var served atomic.Int32
		entered := make(chan struct{}, 10)
		s := NewGRPC(Options{})
		address, err := s.Listen(&stub{changed: func(ctx context.Context, _ ChangeRequest) error {
			served.Add(1)
			entered <- struct{}{}
			<-ctx.Done()
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer closeCarrier(t, s)
		r := newRelay(t, address)
		c := dial(t, r.Addr().String(), Options{})
		done := make(chan error, 1)
		go func() { done <- c.Changed(testContext(t), ChangeRequest{From: incarnation(1)}) }()
		<-entered
		if !listening {
			_ = r.Close()
		}
		r.drop()
		err = <-done
		if !errors.Is(err, sdk.Unavailable) || Silent(err) != listening || Gone(err) == listening {
			t.Errorf("listening %v: got %v", listening, err)
		}
		if served.Load() != 1 {
			t.Errorf("served %d times", served.Load())
		}
	}
}

func TestConcurrentCallersShareOneConnection(t *testing.T) {
	s := NewGRPC(Options{})
	address, err := s.Listen(&stub{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeCarrier(t, s)
	r := newRelay(t, address)
	c := dial(t, r.Addr().String(), Options{})
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			if err := aProbe(testContext(t), c); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	c.ResetBackoff()
	if r.passed() != 1 {
		t.Errorf("%d connections", r.passed())
	}
}

func TestListenerIsBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b := &boundedListener{Listener: l, slots: make(chan struct{}, 1)}
	accepted := make(chan net.Conn)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := b.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	})
	connect := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	one := connect()
	defer one.Close()
	held := <-accepted
	over := connect()
	defer over.Close()
	_ = over.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := over.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection over the bound was not closed: %v", err)
	}
	_ = held.Close()
	_ = held.Close() // frees one place, not two
	next := connect()
	defer next.Close()
	_ = (<-accepted).Close()
	_ = l.Close()
	wg.Wait()
}
