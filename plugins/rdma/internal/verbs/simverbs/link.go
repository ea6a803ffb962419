package simverbs

import (
	"bufio"
	"net"
	"sync"
)

// linkBacklog bounds the bytes that wait for a process that does not read: a
// frozen one would otherwise grow with each retransmission. What does not fit
// is lost, as on a network.
const linkBacklog = 16 << 20

// Connections begin with one byte that says what they carry.
const (
	carriesPackets  = 'P'
	carriesCommands = 'C'
)

// link carries packets to one process. Its goroutine dials and writes; send
// never blocks.
type link struct {
	wake chan struct{} // one token: queue is not empty, or closed

	mu      sync.Mutex
	queue   [][]byte
	bytes   int
	conn    net.Conn
	isEnded bool
}

func newLink() *link { return &link{wake: make(chan struct{}, 1)} }

// send queues a packet. It reports false once the link has ended.
func (l *link) send(b []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isEnded {
		return false
	}
	if l.bytes+len(b) > linkBacklog && l.bytes > 0 {
		return true
	}
	l.queue = append(l.queue, b)
	l.bytes += len(b)
	l.wakeUp()
	return true
}

func (l *link) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run ends once the other process is gone or the link was closed.
func (l *link) run(socket string) {
	defer l.close()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer conn.Close()
	l.mu.Lock()
	l.conn = conn
	ended := l.isEnded
	l.mu.Unlock()
	if ended {
		return
	}
	// Nothing is ever received: a read returns when the other side is gone.
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = conn.Read(make([]byte, 1))
		l.close()
	}()
	defer func() { conn.Close(); <-gone }()
	if _, err := conn.Write([]byte{carriesPackets}); err != nil {
		return
	}
	for range l.wake {
		l.mu.Lock()
		batch := net.Buffers(l.queue)
		l.queue = nil
		ended := l.isEnded
		l.mu.Unlock()
		if ended {
			return
		}
		var n int64
		for _, b := range batch {
			n += int64(len(b))
		}
		if _, err := batch.WriteTo(conn); err != nil {
			return
		}
		l.mu.Lock()
		l.bytes -= int(n)
		l.mu.Unlock()
	}
}

func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isEnded = true
	l.queue, l.bytes = nil, 0
	if l.conn != nil {
		l.conn.Close()
	}
	l.wakeUp()
}

// transmit sends a packet to the process that owns a queue pair. Called with
// the provider's lock.
func (p *Provider) transmit(process string, pkt *packet) {
	if p.isClosed {
		return
	}
	l := p.links[process]
	if l == nil || !l.send(pkt.encode()) {
		l = newLink()
		p.links[process] = l
		l.send(pkt.encode())
		p.running.Go(func() {
			l.run(socketOf(p.options.Dir, process))
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.links[process] == l {
				delete(p.links, process)
			}
		})
	}
}

// serve accepts connections until the listener is closed.
func (p *Provider) serve() {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		closed := p.isClosed
		if !closed {
			p.conns[conn] = true
			p.running.Go(func() { p.receive(conn) })
		}
		p.mu.Unlock()
		if closed {
			conn.Close()
		}
	}
}

func (p *Provider) receive(conn net.Conn) {
	defer func() {
		conn.Close()
		p.mu.Lock()
		delete(p.conns, conn)
		p.mu.Unlock()
	}()
	r := bufio.NewReaderSize(conn, 128<<10)
	carries, err := r.ReadByte()
	if err != nil {
		return
	}
	if carries == carriesCommands {
		p.serveCommands(r, conn)
		return
	}
	for {
		pkt, err := readPacket(r)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.deliver(pkt)
		p.mu.Unlock()
	}
}
