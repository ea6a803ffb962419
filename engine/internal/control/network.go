package control

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// Network is a control plane in memory, for engines that run in one process
// and in fake time. Messages are copied and checked as if they had crossed a
// wire. It uses channels, mutexes and timers only, so that it runs in
// testing/synctest bubbles.
//
// A call crosses two directions, the request's and the reply's, and each can
// be silenced or delayed on its own: a request that is held never reaches the
// handler, a reply that is held leaves a handler that has run.
type Network struct {
	mu struct {
		sync.Mutex
		servers map[string]*memoryCarrier
		aliases map[string]string
		silent  map[link]bool
		frozen  map[string]bool
		refused map[string]bool
		delay   map[link]time.Duration
		names   map[string]string  // address to identity
		last    map[link]time.Time // when the last delayed message arrives
		faults  Faults
		// changed is closed and replaced whenever a fault is set or cleared,
		// so that held messages look again.
		changed chan struct{}
	}
}

// link is a direction between two addresses.
type link struct{ from, to string }

// Faults counts what became of messages, so that a test can prove that its
// fault fired.
type Faults struct {
	Held    int // requests and replies that met a silent direction
	Refused int // calls that found nobody
	Delayed int
}

// NewNetwork makes a network without faults.
func NewNetwork() *Network {
	n := &Network{}
	n.mu.servers = map[string]*memoryCarrier{}
	n.mu.aliases = map[string]string{}
	n.mu.silent = map[link]bool{}
	n.mu.frozen = map[string]bool{}
	n.mu.refused = map[string]bool{}
	n.mu.delay = map[link]time.Duration{}
	n.mu.names = map[string]string{}
	n.mu.last = map[link]time.Time{}
	n.mu.changed = make(chan struct{})
	return n
}

// Carrier makes the control plane of the engine at an address. After it has
// been closed the next life of that engine takes another one.
func (n *Network) Carrier(address string) Carrier {
	c := &memoryCarrier{network: n, address: address, slots: make(chan struct{}, maxCalls)}
	c.server, c.stopServer = context.WithCancel(context.Background())
	c.clients, c.stopClients = context.WithCancel(context.Background())
	return c
}

// Alias makes another address lead to an address.
func (n *Network) Alias(alias, address string) {
	n.set(func() { n.mu.aliases[alias] = address })
}

// Vanish ends the engine that listens on an address as SIGKILL would: nobody
// can call it any more, its own calls reach nobody, and its address is free.
// The engine itself does not know; close it without waiting.
func (n *Network) Vanish(address string) {
	var c *memoryCarrier
	n.set(func() {
		c = n.mu.servers[address]
		delete(n.mu.servers, address)
	})
	if c == nil {
		return
	}
	c.mu.Lock()
	c.mu.closed = true
	c.mu.Unlock()
	c.stopClients()
	c.stopServer()
}

// route returns where an address leads.
func (n *Network) route(address string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if to, ok := n.mu.aliases[address]; ok {
		return to
	}
	return address
}

// Silence holds back, or lets pass again, whatever goes from one address to
// another.
func (n *Network) Silence(from, to string, on bool) {
	n.set(func() { n.mu.silent[link{from, to}] = on })
}

// Freeze holds back everything from and to an address, as SIGSTOP does; what
// was held goes on when the address is thawed, unless its caller has given up.
func (n *Network) Freeze(address string, on bool) {
	n.set(func() { n.mu.frozen[address] = on })
}

// Refuse makes calls to an address fail as if nothing listened there.
func (n *Network) Refuse(address string, on bool) {
	n.set(func() { n.mu.refused[address] = on })
}

// Delay makes everything from one address to another take so long.
func (n *Network) Delay(from, to string, d time.Duration) {
	n.set(func() { n.mu.delay[link{from, to}] = d })
}

// Identify gives the engine at an address a certificate, as far as others see.
func (n *Network) Identify(address, identity string) {
	n.set(func() { n.mu.names[address] = identity })
}

func (n *Network) identity(address string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.names[address]
}

// Faults returns what has fired so far.
func (n *Network) Faults() Faults {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.faults
}

func (n *Network) set(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
	close(n.mu.changed)
	n.mu.changed = make(chan struct{})
}

// pass waits until a message has crossed the link, or until abort or ctx ends.
func (n *Network) pass(ctx context.Context, l link, abort <-chan struct{}) bool {
	n.mu.Lock()
	delay := n.mu.delay[l]
	if delay > 0 {
		n.mu.faults.Delayed++
		// What was sent at one time arrives one after the other.
		if now, last := time.Now(), n.mu.last[l]; last.Sub(now) >= delay && last.Sub(now) < delay+time.Microsecond {
			delay = last.Sub(now) + 1
		}
		n.mu.last[l] = time.Now().Add(delay)
	}
	n.mu.Unlock()
	if delay > 0 && !sleep(ctx, delay, abort) {
		return false
	}
	for held := false; ; held = true {
		n.mu.Lock()
		silent := n.mu.silent[l] || n.mu.frozen[l.from] || n.mu.frozen[l.to]
		if silent && !held {
			n.mu.faults.Held++
		}
		changed := n.mu.changed
		n.mu.Unlock()
		if !silent {
			return ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-abort:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

func sleep(ctx context.Context, d time.Duration, abort <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-abort:
	case <-ctx.Done():
	}
	return false
}

// server returns who listens on an address, or nil.
func (n *Network) server(address string) *memoryCarrier {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.mu.servers[address]
	if s == nil || n.mu.refused[address] {
		n.mu.faults.Refused++
		return nil
	}
	return s
}

// memoryCarrier is one engine's end of a [Network].
type memoryCarrier struct {
	network *Network
	address string
	slots   chan struct{}
	// clients ends when Close begins, server when its calls have ended.
	clients, server         context.Context
	stopClients, stopServer context.CancelFunc

	mu struct {
		sync.Mutex
		handler Handler
		closed  bool
		serving sync.WaitGroup
	}
}

// Listen implements [Carrier].
func (c *memoryCarrier) Listen(h Handler) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.mu.closed:
		return "", sdk.Errorf(sdk.Closed, "listen on %s: the control plane is closed", c.address)
	case c.mu.handler != nil:
		return "", sdk.Errorf(sdk.InvalidArgument, "listen on %s: already listening", c.address)
	}
	var err error
	c.network.set(func() {
		if c.network.mu.servers[c.address] != nil {
			err = addressInUse(c.address, nil)
			return
		}
		c.network.mu.servers[c.address] = c
	})
	if err != nil {
		return "", err
	}
	c.mu.handler = h
	return c.address, nil
}

// Dial implements [Carrier].
func (c *memoryCarrier) Dial(address string) Client {
	ctx, cancel := context.WithCancel(c.clients)
	return &memoryClient{carrier: c, address: address, ctx: ctx, cancel: cancel}
}

// Close implements [Carrier].
func (c *memoryCarrier) Close(ctx context.Context) error {
	c.mu.Lock()
	c.mu.closed = true
	c.mu.Unlock()
	c.network.set(func() {
		if c.network.mu.servers[c.address] == c {
			delete(c.network.mu.servers, c.address)
		}
	})
	c.stopClients()
	defer c.stopServer()
	done := make(chan struct{})
	go func() {
		c.mu.serving.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return sdk.Errorf(sdk.DeadlineExceeded, "close the control plane on %s: calls are still being served", c.address)
	}
}

// enter admits one call to be served.
func (c *memoryCarrier) enter() (Handler, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil, errClosing
	}
	select {
	case c.slots <- struct{}{}:
	default:
		return nil, tooManyCalls()
	}
	c.mu.serving.Add(1)
	return c.mu.handler, nil
}

func (c *memoryCarrier) leave() {
	<-c.slots
	c.mu.serving.Done()
}

var errClosing = sdk.Errorf(sdk.Closed, "the control plane is closed")

// memoryClient calls one address of a [Network].
type memoryClient struct {
	carrier *memoryCarrier
	address string
	ctx     context.Context
	cancel  context.CancelFunc
	bound   atomic.Value // string; see Bind
}

// Bind implements [Client].
func (c *memoryClient) Bind(identity string) { c.bound.Store(identity) }

// Hello implements [Handler], as the other calls do.
func (c *memoryClient) Hello(ctx context.Context, q HelloRequest) (HelloReply, error) {
	return callMemory(ctx, c, hello, q)
}

func (c *memoryClient) Bootstrap(ctx context.Context, q BootstrapRequest) (BootstrapReply, error) {
	return callMemory(ctx, c, bootstrap, q)
}

func (c *memoryClient) Probe(ctx context.Context, q ProbeRequest) (ProbeReply, error) {
	return callMemory(ctx, c, probe, q)
}

func (c *memoryClient) Changed(ctx context.Context, q ChangeRequest) error {
	_, err := callMemory(ctx, c, changed, q)
	return err
}

func (c *memoryClient) Goodbye(ctx context.Context, q GoodbyeRequest) error {
	_, err := callMemory(ctx, c, goodbye, q)
	return err
}

func (c *memoryClient) Fence(ctx context.Context, q FenceRequest) error {
	_, err := callMemory(ctx, c, fence, q)
	return err
}

func (c *memoryClient) Describe(ctx context.Context, q DescribeRequest) (DescribeReply, error) {
	return callMemory(ctx, c, describe, q)
}

func (c *memoryClient) Invalidate(ctx context.Context, q InvalidateRequest) (InvalidateReply, error) {
	return callMemory(ctx, c, invalidate, q)
}

// ResetBackoff implements [Client]: there is no connection here.
func (c *memoryClient) ResetBackoff() {}

// Close implements [Client].
func (c *memoryClient) Close() error {
	c.cancel()
	return nil
}

// callMemory carries one call there and back.
func callMemory[Q request[Q], R reply[Q, R]](ctx context.Context, c *memoryClient, m method[Q, R], q Q) (R, error) {
	var zero R
	if c.ctx.Err() != nil {
		return zero, clientClosed(m.name, c.address)
	}
	if err := q.check(); err != nil {
		return zero, callError(fromHere, sdk.CodeOf(err), m.name, c.address, err.Error(), nil)
	}
	ctx, cancel := withDeadline(ctx, m.timeout(Timeouts{}.withDefaults()))
	defer cancel()
	q = q.clone()

	network, here, there := c.carrier.network, c.carrier.address, c.carrier.network.route(c.address)
	if !network.pass(ctx, link{here, there}, c.ctx.Done()) {
		return zero, c.ended(ctx, m.name)
	}
	server := network.server(there)
	if server == nil {
		return zero, peerGone(m.name, there, nil)
	}
	type outcome struct {
		reply R
		err   error
	}
	done := make(chan outcome, 1)
	h, err := server.enter()
	switch {
	case err == errClosing:
		return zero, peerGone(m.name, there, nil)
	case err != nil:
		done <- outcome{err: err}
	default:
		serveCtx, stop := serverContext(ctx, server.server)
		serveCtx = withCaller(serveCtx, network.identity(here))
		go func() {
			defer server.leave()
			defer stop()
			r, err := m.call(serveCtx, h, q)
			if err == nil {
				r = r.clone()
			}
			done <- outcome{reply: r, err: err}
		}()
	}
	var out outcome
	select {
	case out = <-done:
	case <-server.server.Done():
		select {
		case out = <-done:
		default:
			return zero, peerGone(m.name, there, nil)
		}
	case <-c.ctx.Done():
		return zero, c.ended(ctx, m.name)
	case <-ctx.Done():
		return zero, c.ended(ctx, m.name)
	}
	if !network.pass(ctx, link{there, here}, c.ctx.Done()) {
		return zero, c.ended(ctx, m.name)
	}
	by := network.identity(there)
	to, _ := c.bound.Load().(string)
	if err := bound(to, by, m.name, there); err != nil {
		return zero, err
	}
	r, err := received(m, there, q, out.reply, out.err)
	if err == nil {
		witness(&r, by)
	}
	return r, err
}

func (c *memoryClient) ended(ctx context.Context, method string) error {
	if ctx.Err() == nil {
		return clientClosed(method, c.address)
	}
	return contextEnded(ctx, method, c.address)
}

// received turns what a peer sent back into the call's result.
func received[Q request[Q], R reply[Q, R]](m method[Q, R], address string, q Q, r R, err error) (R, error) {
	var zero R
	if err != nil {
		code, text := answer(err)
		return zero, callError(fromPeer, code, m.name, address, text, nil)
	}
	if err := r.checkFor(q); err != nil {
		return zero, invalidReply(m.name, address, err)
	}
	return r, nil
}

// serverContext is what a handler sees of its caller's context: its end, but
// none of its values. It also ends with the server.
func serverContext(caller, server context.Context) (context.Context, func()) {
	d, ok := caller.Deadline()
	if !ok {
		panic("control: a call without a deadline")
	}
	ctx, cancel := context.WithDeadline(server, d)
	stop := context.AfterFunc(caller, cancel)
	return ctx, func() { stop(); cancel() }
}
