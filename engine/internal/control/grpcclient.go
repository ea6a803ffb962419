package control

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/hawser-transport/hawser/engine/internal/control/pb"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
)

const (
	// maxBackoff is the longest wait before a connection is tried again, so
	// that, jitter included, it stays under a second.
	maxBackoff = 800 * time.Millisecond
	// attemptTime bounds one attempt to connect. It is short since a lost SYN
	// is repeated by the kernel at growing intervals, while a fresh attempt
	// finds a peer that is back at once.
	attemptTime = 2 * time.Second
	// lookTime bounds the look whether anything listens at an address.
	lookTime = time.Second
)

// grpcClient calls one peer. gRPC fails a call at once while a channel waits
// to reconnect, with the error of the last attempt, which may be a second old.
// Here instead every call is decided by an attempt that ended after the call
// began: a channel that has failed, or whose last call was never answered, is
// replaced, and concurrent calls share the new one's attempt.
type grpcClient struct {
	carrier *grpcCarrier
	address string
	// ctx ends with Close.
	ctx    context.Context
	cancel context.CancelFunc

	mu struct {
		sync.Mutex
		channel *channel
		closed  bool
		bound   string // see Bind
		// calls counts those under way; Close waits for them.
		calls sync.WaitGroup
	}
}

// channel is one gRPC channel. The client's lock guards users, suspect and
// retired.
type channel struct {
	cc    *grpc.ClientConn
	began time.Time
	users int
	// suspect: a call over it got no connection, or was not answered in time
	// so that its connection may lead nowhere.
	suspect bool
	retired bool

	mu struct {
		sync.Mutex
		dialErr error  // the last attempt's; nil once one succeeded
		refused error  // what TLS said against the last attempt, at either end
		first   []byte // that came over the last attempt's connection
	}
}

// firstBytes are enough to tell an HTTP/2 server from anything else.
const firstBytes = 9

// hearing bounds the wait for the last words of who has hung up.
const hearing = 50 * time.Millisecond

// listening is a connection that notes the first bytes that come.
type listening struct {
	net.Conn
	ch *channel
}

func (l *listening) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	l.ch.heard(p[:n])
	return n, err
}

// Write looks, when nobody takes what is written, for what was said before.
func (l *listening) Write(p []byte) (int, error) {
	n, err := l.Conn.Write(p)
	if err != nil {
		var b [firstBytes]byte
		_ = l.SetReadDeadline(time.Now().Add(hearing))
		k, _ := l.Conn.Read(b[:])
		l.ch.heard(b[:k])
	}
	return n, err
}

func (ch *channel) heard(b []byte) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.mu.first = append(ch.mu.first, b[:min(len(b), firstBytes-len(ch.mu.first))]...)
}

// foreign reports whether something came that no HTTP/2 server begins with: the
// header of a SETTINGS frame.
func (ch *channel) foreign() bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	b := ch.mu.first
	return len(b) > 0 && b[0] != 0 || len(b) > 3 && b[3] != 4
}

// noEngine is what is said of an address where something else answers.
func noEngine(address string) string {
	return "no Hawser engine answers at " + address + " (it speaks something else): check the address"
}

func (c *grpcClient) newChannel() (*channel, error) {
	ch := &channel{began: time.Now()}
	// The target is only a name: the dialer knows the address, which thus
	// needs no escaping and passes no proxy.
	cc, err := grpc.NewClient("passthrough:///hawser",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			ch.said(nil, nil)
			conn, err := c.carrier.options.dial(ctx, c.address, func(err error) { ch.said(nil, err) })
			if err != nil {
				ch.said(err, nil)
				return nil, err
			}
			return &listening{Conn: conn, ch: ch}, nil
		}),
		grpc.WithTransportCredentials(credentialsBelow()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: maxBackoff / 8, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff},
			// The attempt's deadline is the larger of this and the backoff.
			MinConnectTimeout: min(attemptTime, c.carrier.options.Connect),
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)),
		grpc.WithMaxHeaderListSize(maxHeaderBytes),
		grpc.WithReadBufferSize(bufferBytes), grpc.WithWriteBufferSize(bufferBytes),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithNoProxy(),
	)
	if err != nil {
		return nil, err
	}
	ch.cc = cc
	return ch, nil
}

// said notes what became of an attempt to connect.
func (ch *channel) said(dialErr, refused error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.mu.dialErr, ch.mu.refused = dialErr, refused
	if dialErr == nil && refused == nil {
		ch.mu.first = nil // of the attempt before
	}
}

// refusal is what TLS said against the last attempt, if anything: the peer is
// there, and one of the two does not want the other.
func (ch *channel) refusal() error {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if sdk.CodeOf(ch.mu.dialErr) == sdk.Refused {
		return ch.mu.dialErr
	}
	return ch.mu.refused
}

func (ch *channel) dialErr() error {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.mu.dialErr
}

// acquire returns a channel that has not failed yet; release gives it back.
func (c *grpcClient) acquire() (*channel, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed || c.ctx.Err() != nil {
		return nil, sdk.Closed
	}
	if ch := c.mu.channel; ch != nil {
		if s := ch.cc.GetState(); ch.suspect || s == connectivity.TransientFailure || s == connectivity.Shutdown {
			c.retireLocked()
		}
	}
	if c.mu.channel == nil {
		ch, err := c.newChannel()
		if err != nil {
			return nil, err
		}
		c.mu.channel = ch
	}
	c.mu.channel.users++
	return c.mu.channel, nil
}

// retireLocked takes the current channel out of use; its last user closes it.
func (c *grpcClient) retireLocked() {
	ch := c.mu.channel
	c.mu.channel = nil
	ch.retired = true
	if ch.users == 0 {
		_ = ch.cc.Close() // has no calls to wait for
	}
}

func (c *grpcClient) release(ch *channel, suspect bool) {
	c.mu.Lock()
	ch.users--
	ch.suspect = ch.suspect || suspect
	last := ch.retired && ch.users == 0
	c.mu.Unlock()
	if last {
		_ = ch.cc.Close()
	}
}

// Bind implements [Client].
func (c *grpcClient) Bind(identity string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.bound = identity
}

func (c *grpcClient) binding() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.bound
}

// ResetBackoff implements [Client].
func (c *grpcClient) ResetBackoff() {
	c.mu.Lock()
	ch := c.mu.channel
	c.mu.Unlock()
	if ch != nil {
		ch.cc.ResetConnectBackoff()
	}
}

// Close implements [Client].
func (c *grpcClient) Close() error {
	c.mu.Lock()
	c.mu.closed = true
	c.mu.Unlock()
	c.cancel()
	c.mu.calls.Wait()
	c.mu.Lock()
	if c.mu.channel != nil {
		c.retireLocked()
	}
	c.mu.Unlock()
	c.carrier.forget(c)
	return nil
}

// begin counts a call in, unless the client is closed.
func (c *grpcClient) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed || c.ctx.Err() != nil {
		return false
	}
	c.mu.calls.Add(1)
	return true
}

// callGRPC makes one call. It is sent at most once, unless gRPC itself knows
// that the peer has not seen it.
func callGRPC[Q request[Q], R reply[Q, R], PQ, PR any](ctx context.Context, c *grpcClient, m method[Q, R], q Q,
	to func(Q) PQ, rpc func(pb.ControlClient, context.Context, PQ, ...grpc.CallOption) (PR, error), from func(PR) (R, error),
) (R, error) {
	var zero R
	if !c.begin() {
		return zero, clientClosed(m.name, c.address)
	}
	defer c.mu.calls.Done()
	if err := q.check(); err != nil {
		return zero, callError(fromHere, sdk.CodeOf(err), m.name, c.address, err.Error(), nil)
	}
	ctx, cancel := withDeadline(ctx, m.timeout(c.carrier.options.Timeouts))
	defer cancel()
	ctx, cancelCall := context.WithCancel(ctx)
	defer cancelCall()
	defer context.AfterFunc(c.ctx, cancelCall)()

	in := to(q)
	var out PR
	by, err := c.carry(ctx, m.name, func(ctx context.Context, cc pb.ControlClient, opts ...grpc.CallOption) (err error) {
		out, err = rpc(cc, ctx, in, opts...)
		return err
	})
	if err != nil {
		return zero, err
	}
	r, err := from(out)
	if err == nil {
		err = r.checkFor(q)
	}
	if err != nil {
		return zero, invalidReply(m.name, c.address, err)
	}
	witness(&r, by)
	return r, nil
}

// carry finds a connection, sends, and says what became of it, and whose
// connection it was.
func (c *grpcClient) carry(ctx context.Context, method string,
	send func(context.Context, pb.ControlClient, ...grpc.CallOption) error,
) (by string, err error) {
	for began := time.Now(); ; {
		ch, err := c.acquire()
		if errors.Is(err, sdk.Closed) {
			return "", clientClosed(method, c.address)
		}
		if err != nil {
			return "", callError(fromHere, sdk.InvalidArgument, method, c.address, err.Error(), err)
		}
		var to peer.Peer // set once the call has a connection
		err = send(ctx, pb.NewControlClient(ch.cc), grpc.Peer(&to))
		sent, dialErr, refusal := to.Addr != nil, ch.dialErr(), ch.refusal()
		ended := ctx.Err()
		// Not answered in time, or no connection: whoever calls next does not
		// use this channel, whose state may yet lag behind its failure.
		c.release(ch, err != nil && (errors.Is(ended, context.DeadlineExceeded) && sent || ended == nil && !sent))
		by := mtls.IdentityAt(to.Addr)
		if err == nil {
			return by, bound(c.binding(), by, method, c.address)
		}
		if s := status.Convert(err); isForeign(s) {
			return "", callError(fromPeer, sdk.Refused, method, c.address, noEngine(c.address), err)
		}
		if e, ok := answerOf(status.Convert(err)); ok {
			if err := bound(c.binding(), by, method, c.address); err != nil {
				return "", err
			}
			return "", callError(fromPeer, e.Code, method, c.address, e.Message, nil)
		}
		switch {
		case c.ctx.Err() != nil:
			return "", clientClosed(method, c.address)
		case ended != nil:
			return "", contextEnded(ctx, method, c.address)
		case sent:
			return "", c.lost(ctx, method, err)
		case refusal != nil:
			return "", callError(fromPeer, sdk.Refused, method, c.address, refusal.Error(), refusal)
		case errors.Is(dialErr, syscall.ECONNREFUSED):
			return "", peerGone(method, c.address, dialErr)
		case ch.foreign():
			return "", callError(fromPeer, sdk.Refused, method, c.address, noEngine(c.address), err) // it is not silent
		case timedOut(ch, dialErr) && time.Since(began) < c.carrier.options.Connect:
			continue
		case dialErr != nil:
			err = dialErr
		}
		return "", callError(fromSilence, sdk.Unavailable, method, c.address, bounded("no connection: "+err.Error(), maxMessage), err)
	}
}

// timedOut reports whether an attempt to connect ended since its time was
// over, as opposed to an error that a further one would only repeat.
func timedOut(ch *channel, dialErr error) bool {
	if dialErr != nil {
		var timeout net.Error
		return errors.As(dialErr, &timeout) && timeout.Timeout()
	}
	// A connection was made, but nobody spoke, as when the peer is frozen.
	return time.Since(ch.began) > attemptTime*3/4
}

// lost is the error of a call whose connection broke before the answer. A look
// at the address tells a process that died from a network that failed.
func (c *grpcClient) lost(ctx context.Context, method string, cause error) error {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.address)
	if err == nil {
		_ = conn.Close()
	}
	switch {
	case c.ctx.Err() != nil:
		return clientClosed(method, c.address)
	case errors.Is(err, syscall.ECONNREFUSED):
		return peerGone(method, c.address, err)
	}
	return callError(fromSilence, sdk.Unavailable, method, c.address, "the connection was lost before the answer came", cause)
}

// Hello implements [Handler], as the other calls do.
func (c *grpcClient) Hello(ctx context.Context, q HelloRequest) (HelloReply, error) {
	return callGRPC(ctx, c, hello, q, helloRequestTo, pb.ControlClient.Hello, helloReplyFrom)
}

func (c *grpcClient) Bootstrap(ctx context.Context, q BootstrapRequest) (BootstrapReply, error) {
	return callGRPC(ctx, c, bootstrap, q, bootstrapRequestTo, pb.ControlClient.Bootstrap, bootstrapReplyFrom)
}

func (c *grpcClient) Probe(ctx context.Context, q ProbeRequest) (ProbeReply, error) {
	return callGRPC(ctx, c, probe, q, probeRequestTo, pb.ControlClient.Probe, probeReplyFrom)
}

func (c *grpcClient) Changed(ctx context.Context, q ChangeRequest) error {
	_, err := callGRPC(ctx, c, changed, q, changedRequestTo, pb.ControlClient.Changed, changedReplyFrom)
	return err
}

func (c *grpcClient) Goodbye(ctx context.Context, q GoodbyeRequest) error {
	_, err := callGRPC(ctx, c, goodbye, q, goodbyeRequestTo, pb.ControlClient.Goodbye, goodbyeReplyFrom)
	return err
}

func (c *grpcClient) Fence(ctx context.Context, q FenceRequest) error {
	_, err := callGRPC(ctx, c, fence, q, fenceRequestTo, pb.ControlClient.Fence, fenceReplyFrom)
	return err
}

func (c *grpcClient) Describe(ctx context.Context, q DescribeRequest) (DescribeReply, error) {
	return callGRPC(ctx, c, describe, q, describeRequestTo, pb.ControlClient.Describe, describeReplyFrom)
}

func (c *grpcClient) Invalidate(ctx context.Context, q InvalidateRequest) (InvalidateReply, error) {
	return callGRPC(ctx, c, invalidate, q, invalidateRequestTo, pb.ControlClient.Invalidate, invalidateReplyFrom)
}
