package demo

import (
	"net"
	"sync"
	"sync/atomic"
)

// proxy is a path to a node's transport that can be cut, in either direction:
// then nothing passes, and whoever sends there learns nothing of it, as with a
// cable. What was on its way arrives when the path is healed. It has no other
// end of its own: connections end when one of their ends does.
type proxy struct {
	ln net.Listener
	// in is towards the node that is behind it, out is away from it.
	in, out *lane
	led     chan struct{} // closed when to is known
	to      string
	over    chan struct{} // closed by close
	tasks   sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil once closed
}

// lane is one direction.
type lane struct {
	passed atomic.Int64 // bytes
	held   atomic.Int64 // bytes that wait for it to be healed

	mu   sync.Mutex
	open chan struct{} // closed while it is not cut
	// first is what passed first, at most so many bytes.
	first []byte
	most  int
}

// sniff keeps what passes first.
func (l *lane) sniff(most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.most = most
}

func (l *lane) sniffed() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first
}

// keep counts what has passed.
func (l *lane) keep(b []byte) {
	l.passed.Add(int64(len(b)))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first = append(l.first, b[:min(len(b), l.most-len(l.first))]...)
}

func newLane() *lane {
	l := &lane{open: make(chan struct{})}
	close(l.open)
	return l
}

func (l *lane) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = make(chan struct{})
}

func (l *lane) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.open)
}

// whole is closed while the lane is not cut.
func (l *lane) whole() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

func newProxy() (*proxy, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{ln: ln, in: newLane(), out: newLane(), led: make(chan struct{}), over: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	p.tasks.Go(p.accept)
	return p, nil
}

func (p *proxy) address() string { return p.ln.Addr().String() }

// lead says where the proxy leads. It is called once.
func (p *proxy) lead(to string) {
	p.to = to
	close(p.led)
}

func (p *proxy) close() {
	_ = p.ln.Close()
	close(p.over)
	p.mu.Lock()
	for c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
	p.mu.Unlock()
	p.tasks.Wait()
}

// keep lists a connection, or closes it if it is too late.
func (p *proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		_ = c.Close()
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *proxy) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	_ = c.Close()
}

func (p *proxy) accept() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			return
		}
		if p.keep(c) {
			p.tasks.Go(func() { p.carry(c) })
		}
	}
}

// pass waits until all of these are closed, and says whether they were before
// the proxy was.
func (p *proxy) pass(all ...<-chan struct{}) bool {
	for _, open := range all {
		select {
		case <-open:
		case <-p.over:
			return false
		}
	}
	return true
}

// carry is a connection's life. To be made it needs both directions.
func (p *proxy) carry(near net.Conn) {
	defer p.drop(near)
	if !p.pass(p.led, p.in.whole(), p.out.whole()) {
		return
	}
	far, err := net.Dial("tcp", p.to)
	if err != nil || !p.keep(far) {
		return
	}
	defer p.drop(far)
	var ways sync.WaitGroup
	ways.Go(func() { p.copy(far, near, p.in) })
	ways.Go(func() { p.copy(near, far, p.out) })
	ways.Wait()
}

// copy carries one direction until either end is gone, and ends the other one
// then: over a path that is cut not even that is heard.
func (p *proxy) copy(to, from net.Conn, l *lane) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		l.held.Add(int64(n))
		ok := p.pass(l.whole())
		l.held.Add(-int64(n))
		if !ok || err != nil {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
		l.keep(buf[:n])
	}
}
