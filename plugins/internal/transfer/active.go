package transfer

import (
	"io"
	"net"
	"slices"
	"sync"

	"github.com/hawser-transport/hawser/plugins/internal/memory"
	"github.com/hawser-transport/hawser/sdk"
)

// Active is the end of the side that connected. The goroutine of Run is the
// only one that calls the handler.
type Active struct {
	end
	table    *memory.Table
	limits   sdk.MoveLimits
	provider sdk.Incarnation
	handler  sdk.Handler
	kick     chan struct{} // wakes the writing half, holds one
	news     chan struct{} // wakes Run, holds one

	q struct {
		sync.Mutex
		over    bool
		waiting []*op // of which nothing was written
		flight  []*op // that have no reply, in the order of their requests
		last    uint64
		open    int // without an outcome that was reported
		bytes   int // of those in both queues
		reports []sdk.Completion
	}
}

// op is one under way. It holds both of its regions.
type op struct {
	sdk.Op
	frame uint64
	here  memory.Use
	there memory.RemoteUse
	// sent is closed once a write has been written, and nobody reads here.
	sent chan struct{}
}

func (o *op) release() {
	o.here.End()
	o.there.End()
}

// NewActive makes the end that leads to a target.
func NewActive(table *memory.Table, limits sdk.MoveLimits, t sdk.Target, peer string, h sdk.Handler) *Active {
	return &Active{
		end: newEnd(peer), table: table, limits: limits.WithDefaults(), provider: t.Peer, handler: h,
		kick: make(chan struct{}, 1), news: make(chan struct{}, 1),
	}
}

// Send implements [sdk.Endpoint].
func (a *Active) Send(frames []sdk.Frame, _ bool) (n int, err error) {
	a.q.Lock()
	defer a.q.Unlock()
	for ; n < len(frames) && err == nil; n++ {
		if err = a.takeLocked(frames[n]); err != nil {
			break
		}
	}
	if n > 0 {
		wake(a.kick)
	}
	return n, err
}

// takeLocked takes a frame, whose op may have its outcome at once: that it was
// not posted.
func (a *Active) takeLocked(f sdk.Frame) error {
	o, bad := a.limits.ParseOp(f.Data)
	size := int(o.Length)
	select {
	case <-a.done:
		return errClosed
	default:
	}
	if a.q.over {
		return errClosed
	}
	if a.q.open >= a.limits.Inflight || a.q.bytes > 0 && a.q.bytes+size > a.limits.InflightBytes {
		return errFull
	}
	a.q.open++
	if bad == nil {
		bad = a.postLocked(&op{Op: o, frame: f.ID})
	}
	if bad != nil {
		a.reportLocked(f.ID, sdk.NotPosted, sdk.CodeOf(bad))
	}
	return nil
}

// postLocked finds both regions of an op and queues it.
func (a *Active) postLocked(o *op) (err error) {
	if o.Event != nil {
		return sdk.Errorf(sdk.Unsupported, "events are of device memory, which this transport does not move")
	}
	if o.there, err = a.table.Remotes.Use(a.provider, &o.Op); err != nil {
		return err
	}
	if o.here, err = a.table.Regions.Use(o.Local, o.Kind == sdk.Read, o.LocalOffset, o.Length); err != nil {
		o.there.End()
		return err
	}
	a.q.waiting = append(a.q.waiting, o)
	a.q.bytes += int(o.Length)
	return nil
}

func (a *Active) reportLocked(frame uint64, outcome sdk.Outcome, code sdk.Code) {
	a.q.reports = append(a.q.reports, sdk.Completion{ID: frame, Outcome: outcome, Code: code})
	wake(a.news)
}

// Run carries ops over the connection, which has arrived, until the endpoint
// ends. Once nothing of it touches memory, the last it does is to call forget
// and Ended.
func (a *Active) Run(forget func()) {
	a.carry(<-a.arrived, a.read, a.write, a.tell)
	a.withdraw()
	forget()
	a.handler.Ended(a.cause)
}

// tell reports outcomes until the end.
func (a *Active) tell() {
	var cs []sdk.Completion
	for {
		select {
		case <-a.news:
		case <-a.done:
			return
		}
		a.q.Lock()
		cs, a.q.reports = a.q.reports, cs[:0]
		a.q.open -= len(cs)
		a.q.Unlock()
		if len(cs) > 0 {
			a.handler.Completed(cs)
		}
	}
}

// withdraw ends everything: what has not begun was not posted.
func (a *Active) withdraw() {
	a.q.Lock()
	a.q.over = true
	for _, o := range a.q.flight {
		o.release()
	}
	for _, o := range a.q.waiting {
		o.release()
		a.reportLocked(o.frame, sdk.NotPosted, sdk.CodeOf(a.cause))
	}
	cs := a.q.reports
	a.q.flight, a.q.waiting, a.q.reports = nil, nil, nil
	a.q.Unlock()
	if len(cs) > 0 {
		a.handler.Completed(cs)
	}
}

// write is the writing half.
func (a *Active) write(conn Conn) error {
	heads := make([]byte, 0, batchOps*requestLen) // never grows
	var batch []*op
	var bufs net.Buffers
	for {
		first := a.next(&batch)
		if len(batch) == 0 {
			select {
			case <-a.kick:
				continue
			case <-a.done:
				return nil
			}
		}
		heads, bufs = heads[:0], bufs[:0]
		for i, o := range batch {
			r := request{o.Kind, uint32(o.Length), first + uint64(i), o.there.Name, o.RemoteOffset}
			heads = r.append(heads)
			bufs = append(bufs, heads[len(heads)-requestLen:])
			if o.Kind == sdk.Write {
				bufs = append(bufs, o.here.Bytes)
			}
		}
		if err := writeAll(conn, bufs); err != nil {
			return err
		}
		close(batch[0].sent)
	}
}

// writeAll writes buffers, at once where the connection can.
func writeAll(conn Conn, bufs net.Buffers) error {
	_, err := bufs.WriteTo(conn)
	return err
}

// next takes what is to be written next, and returns the first one's id.
func (a *Active) next(batch *[]*op) (first uint64) {
	a.q.Lock()
	defer a.q.Unlock()
	n, size := 0, 0
	sent := make(chan struct{})
	for _, o := range a.q.waiting {
		if o.Kind == sdk.Write {
			size += int(o.Length)
		}
		if n == batchOps || n > 0 && size > batchBytes {
			break
		}
		o.sent = sent
		n++
	}
	*batch = append((*batch)[:0], a.q.waiting[:n]...)
	a.q.flight = append(a.q.flight, *batch...)
	a.q.waiting = slices.Delete(a.q.waiting, 0, n)
	first = a.q.last + 1
	a.q.last += uint64(n)
	return first
}

// read is the reading half.
func (a *Active) read(conn Conn) error {
	var head [replyLen]byte
	for {
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return err
		}
		r, err := parseReply(head[:])
		if err != nil {
			return err
		}
		o, err := a.asked(&r)
		if err != nil {
			return err
		}
		if r.length > 0 {
			if _, err := io.ReadFull(conn, o.here.Bytes); err != nil {
				return err
			}
		}
		if o.Kind == sdk.Write {
			// Its bytes may be on their way still, if the peer answers what it
			// has not got.
			select {
			case <-o.sent:
			case <-a.done:
				return nil
			}
		}
		a.finish(o, r.code)
	}
}

// asked returns the op that a reply is for: the oldest one.
func (a *Active) asked(r *reply) (*op, error) {
	a.q.Lock()
	defer a.q.Unlock()
	if first := a.q.last + 1 - uint64(len(a.q.flight)); len(a.q.flight) == 0 || r.id != first {
		return nil, broken("a reply to request %d, %d are open up to %d", r.id, len(a.q.flight), a.q.last)
	}
	o, length := a.q.flight[0], uint64(0)
	if o.Kind == sdk.Read && r.code == 0 {
		length = o.Length
	}
	if uint64(r.length) != length {
		return nil, broken("a reply with %d bytes to a %v of %d, code %d", r.length, o.Kind, o.Length, r.code)
	}
	return o, nil
}

// finish ends the oldest op.
func (a *Active) finish(o *op, code sdk.Code) {
	o.release()
	a.q.Lock()
	defer a.q.Unlock()
	a.q.flight = slices.Delete(a.q.flight, 0, 1)
	a.q.bytes -= int(o.Length)
	outcome := sdk.Done
	if code != 0 {
		outcome = sdk.NotPosted
	}
	a.reportLocked(o.frame, outcome, code)
}
