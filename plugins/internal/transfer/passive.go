package transfer

import (
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/memory"
	"github.com/hawser-transport/hawser/sdk"
)

// A passive end holds a region in the middle of an op, and the region's owner
// may want it back: so a peer has Stall for each stride of the op's bytes.
const (
	Stall  = 30 * time.Second
	stride = 1 << 20
)

// Passive is the end of the side that accepted. It carries out what the other
// one asks, and believes nothing of it.
type Passive struct {
	end
	regions *memory.Regions
	limits  sdk.MoveLimits
	handler sdk.Handler
	// When the op that is being read, and those that are being written, last
	// came forward; 0 while there is none. In nanoseconds since began.
	began            time.Time
	reading, writing atomic.Int64
}

// NewPassive makes the end that a target's peer leads to.
func NewPassive(regions *memory.Regions, limits sdk.MoveLimits, peer string, h sdk.Handler) *Passive {
	return &Passive{
		end: newEnd(peer), regions: regions, limits: limits.WithDefaults(), handler: h, began: time.Now(),
	}
}

// Send implements [sdk.Endpoint]: this end sends nothing.
func (p *Passive) Send([]sdk.Frame, bool) (int, error) { return 0, errPassive }

// Run waits for the connection and carries out ops until the endpoint ends.
// unexpect says that it is waited for no more, and whether it was. Once nothing
// of it touches memory, the last it does is to call forget and Ended.
func (p *Passive) Run(patience time.Duration, unexpect func() bool, forget func()) {
	p.await(patience, unexpect)
	forget()
	p.handler.Ended(p.cause)
}

func (p *Passive) await(patience time.Duration, unexpect func() bool) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case conn := <-p.arrived:
		p.serve(conn)
		return
	case <-timer.C:
		p.End(sdk.Errorf(sdk.Unavailable, "%s did not connect within %s", p.peer, patience))
	case <-p.done:
	}
	if !unexpect() {
		// It was claimed a moment ago, and comes too late.
		_ = (<-p.arrived).Close()
	}
}

// answer is a request that a reply is due to.
type answer struct {
	request
	code sdk.Code
}

func (p *Passive) serve(conn Conn) {
	// The active end has no more open than that; one that does is not read.
	answers := make(chan answer, p.limits.Inflight)
	p.carry(conn,
		func(conn Conn) error { return p.read(conn, answers) },
		func(conn Conn) error { return p.write(conn, answers) },
		p.watch)
}

// watch ends an endpoint whose peer holds a region and does nothing.
func (p *Passive) watch() {
	tick := time.NewTicker(Stall / 4)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-p.done:
			return
		}
		for _, at := range []*atomic.Int64{&p.reading, &p.writing} {
			if t := at.Load(); t != 0 && time.Since(p.began)-time.Duration(t) > Stall {
				p.End(sdk.Errorf(sdk.Unavailable, "%s has stopped in the middle of an op for %s", p.peer, Stall))
			}
		}
	}
}

func (p *Passive) forward(at *atomic.Int64) { at.Store(int64(time.Since(p.began)) | 1) }

// read is the reading half: it carries out writes.
func (p *Passive) read(conn Conn, answers chan<- answer) error {
	var head [requestLen]byte
	for id := uint64(1); ; id++ {
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return err
		}
		r, err := parseRequest(head[:], id, p.limits.MaxOp)
		if err != nil {
			return err
		}
		a := answer{request: r}
		if r.kind == sdk.Write {
			if a.code, err = p.take(conn, &r); err != nil {
				return err
			}
		}
		select {
		case answers <- a:
		case <-p.done:
			return nil
		}
	}
}

// take puts a write's bytes into the region, or drops them and says why.
func (p *Passive) take(conn Conn, r *request) (sdk.Code, error) {
	use, bad := p.regions.Use(r.region, true, r.offset, uint64(r.length))
	if bad != nil {
		_, err := io.CopyN(io.Discard, conn, int64(r.length))
		return sdk.CodeOf(bad), err
	}
	defer use.End()
	defer p.reading.Store(0)
	for b := use.Bytes; len(b) > 0; {
		p.forward(&p.reading)
		n, err := io.ReadFull(conn, b[:min(stride, len(b))])
		if b = b[n:]; err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// write is the writing half: it carries out reads, and replies to everything.
func (p *Passive) write(conn Conn, answers <-chan answer) error {
	b := batch{heads: make([]byte, 0, batchOps*replyLen)} // never grows
	for {
		select {
		case a := <-answers:
			p.add(&b, a)
		case <-p.done:
			return nil
		}
		for more := true; more && !b.full(); {
			select {
			case a := <-answers:
				p.add(&b, a)
			default:
				more = false
			}
		}
		err := p.send(conn, b.bufs, len(b.uses) > 0)
		b.reset()
		if err != nil {
			return err
		}
	}
}

// send writes a batch, of which only the last buffer is ever large.
func (p *Passive) send(conn Conn, bufs net.Buffers, reads bool) error {
	if !reads {
		return writeAll(conn, bufs)
	}
	defer p.writing.Store(0)
	last := len(bufs) - 1
	first := min(stride, len(bufs[last]))
	rest := bufs[last][first:]
	bufs[last] = bufs[last][:first]
	p.forward(&p.writing)
	err := writeAll(conn, bufs)
	for len(rest) > 0 && err == nil {
		p.forward(&p.writing)
		n := min(stride, len(rest))
		_, err = conn.Write(rest[:n])
		rest = rest[n:]
	}
	return err
}

// batch is replies that are written at a time, and the regions that they read.
type batch struct {
	heads []byte
	bufs  net.Buffers
	uses  []memory.Use
	size  int
}

// add adds the reply to a request, and begins to read what it asks for.
func (p *Passive) add(b *batch, a answer) {
	r := reply{code: a.code, id: a.id}
	var bytes []byte
	if a.kind == sdk.Read {
		if use, bad := p.regions.Use(a.region, false, a.offset, uint64(a.length)); bad != nil {
			r.code = sdk.CodeOf(bad)
		} else {
			r.length, bytes = a.length, use.Bytes
			b.uses = append(b.uses, use)
		}
	}
	b.heads = r.append(b.heads)
	b.bufs = append(b.bufs, b.heads[len(b.heads)-replyLen:])
	if len(bytes) > 0 {
		b.bufs = append(b.bufs, bytes)
		b.size += len(bytes)
	}
}

func (b *batch) full() bool { return len(b.heads) == cap(b.heads) || b.size >= batchBytes }

func (b *batch) reset() {
	for _, u := range b.uses {
		u.End()
	}
	b.heads, b.bufs, b.uses, b.size = b.heads[:0], b.bufs[:0], b.uses[:0], 0
}
