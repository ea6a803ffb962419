package engine

import (
	"runtime"
	"slices"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/frame"
	"github.com/hawser-transport/hawser/engine/internal/health"
	"github.com/hawser-transport/hawser/engine/internal/inbox"
	"github.com/hawser-transport/hawser/engine/internal/outbox"
	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
)

// endpoint is the engine's side of a transport's endpoint: what was given to
// it and has no outcome, and the handler of what comes from it. It is bound to
// one association, so that its frames count for that pair of incarnations
// only. The association's lock guards it; a, p and generation are constant.
type endpoint struct {
	a          *association
	p          *path
	generation uint64
	inst       *pluginhost.Instance
	remote     uint64 // the peer's instance
	session    uint64 // in use when the endpoint was begun
	lane       *outbox.Lane

	se        sdk.Endpoint // nil until Connect or Accept has returned
	outgoing  bool         // this side connects
	begun     time.Time    // when its making was
	cause     error        // of its end
	ended     bool
	owes      bool // an ack; it is in a.owed
	installed time.Time
	retired   time.Time // since when nothing new is to go over it

	inflight inflight

	hold hold
	over chan struct{} // closed when it has ended
}

// newEndpointLocked makes the engine's side for the path's next endpoint.
func (a *association) newEndpointLocked(p *path) *endpoint {
	return &endpoint{
		a: a, p: p, generation: p.generation, inst: p.inst, remote: p.remote, session: a.box.Session(),
		begun: time.Now(), lane: a.box.NewLane(p), inflight: newInflight(), over: make(chan struct{}),
	}
}

// failedLocked ends an endpoint that was never installed.
func (ep *endpoint) failedLocked() {
	if !ep.ended {
		ep.ended = true
		close(ep.over)
		ep.handoverLocked("ended while connecting")
	}
}

// post records a frame that is about to be given to the endpoint; x is nil for
// frames that are not notifications.
func (ep *endpoint) post(x *outbox.Entry, size int) uint64 {
	copies := 0
	if x != nil {
		copies = x.Copies()
	}
	return ep.inflight.add(slot{entry: x, copy: copies, size: size})
}

// postAck records an ack; if it is not taken it is owed again.
func (ep *endpoint) postAck() uint64 { return ep.inflight.add(slot{ack: true}) }

// hasRoom reports whether the endpoint may be given a notification's frame.
func (ep *endpoint) hasRoom(size int) bool {
	l := ep.inst.Description.Limits.WithDefaults()
	return ep.inflight.frames < l.InflightFrames &&
		(ep.inflight.bytes == 0 || ep.inflight.bytes+size <= l.InflightBytes)
}

// Completed is the transport's report of outcomes.
func (ep *endpoint) Completed(cs []sdk.Completion) {
	a := ep.a
	a.mu.Lock()
	defer a.mu.Unlock()
	if ep.ended {
		return
	}
	lost := false
	for _, c := range cs {
		switch c.Outcome {
		case sdk.Done:
			if s, ok := ep.inflight.take(c.ID); ok {
				ep.takenOverLocked(s)
			} else {
				a.e.stats.Nonsense.Add(1)
			}
		case sdk.NotPosted:
			ep.notPosted(c.ID, c.Code)
		default:
			ep.p.countersLocked(a.e).unknown.Add(1)
			s, ok := ep.inflight.take(c.ID)
			if !ok {
				a.e.stats.Nonsense.Add(1)
			} else if s.entry != nil && s.entry.Held() {
				ep.lostLocked(s, "may have left: "+c.Code.Error())
				lost = true
			}
		}
	}
	if lost {
		ep.p.shun(time.Now())
	}
	a.pumpLocked()
}

// notPosted deals with a frame that never left: any other path is safe, at
// once; for want of room the same one is, in a moment.
func (ep *endpoint) notPosted(id uint64, why error) {
	s, ok := ep.inflight.take(id)
	if !ok {
		ep.a.e.stats.Nonsense.Add(1)
		return
	}
	noRoom := sdk.CodeOf(why) == sdk.Backpressure
	if noRoom {
		ep.p.blockedUntil = time.Now().Add(retrySend)
	}
	if s.ack {
		ep.oweLocked()
	}
	if s.entry == nil {
		return
	}
	ep.a.e.stats.NotPosted.Add(1)
	ep.p.countersLocked(ep.a.e).notPosted.Add(1)
	if !s.entry.Held() {
		return // it ended meanwhile, and is its reader's
	}
	ep.a.box.NotPosted(s.entry, s.copy)
	if noRoom {
		if ep.p.fullSince.IsZero() {
			ep.p.fullSince = time.Now()
		}
		s.entry.Avoid = nil
		return
	}
	ep.p.shun(time.Now())
	ep.a.blameLocked(ep.p, health.Failure{Kind: health.SendKind(why), Began: s.entry.SentAt()})
	s.entry.Owner.(*Delivery).failed(Attempt{ep.p.transport, ep.p.name, "not sent: " + errorText(why)})
}

// Ended is the transport's last word: everything pending on the endpoint is
// handed over in one piece.
func (ep *endpoint) Ended(err error) {
	ep.a.mu.Lock()
	defer ep.a.mu.Unlock()
	ep.endLocked(err)
	ep.a.pumpLocked()
}

func (ep *endpoint) endLocked(err error) {
	if ep.ended {
		return
	}
	ep.ended, ep.cause = true, err
	close(ep.over)
	ep.inflight = inflight{}
	a, p := ep.a, ep.p
	if i := slices.Index(p.retiring, ep); i >= 0 {
		p.retiring = slices.Delete(p.retiring, i, i+1)
		a.retiring--
	}
	reason := "ended"
	if err != nil {
		reason = err.Error()
	}
	for x := range ep.lane.Entries() {
		x.Owner.(*Delivery).failed(Attempt{p.transport, p.name, reason})
	}
	n := ep.handoverLocked(reason)
	a.e.stats.HandedOver.Add(uint64(n))
	p.countersLocked(a.e).handedOver.Add(uint64(n))
	if p.ep != ep {
		return // replaced, or never installed
	}
	p.ep = nil
	p.fullSince = time.Time{}
	if a.dead != nil || a.successor != nil {
		return
	}
	p.note(reason)
	a.blameLocked(p, health.Failure{Kind: health.EndKind(err), Began: ep.installed, Endpoint: ep.generation})
	a.mournLocked(ep)
	a.e.log.Info("endpoint ended", "peer", a.peer(), "transport", p.transport, "path", p.name, "pending", n, "reason", reason)
	// While it is connected anew the next path carries. An endpoint that did
	// not last is a failure, so that one that never lasts is no storm.
	now := time.Now()
	if now.Sub(ep.installed) < reconnectMax {
		a.failedLocked(p, now, reason)
		return
	}
	p.fresh, p.failures, p.retryAt = false, 0, now
}

// shut ends the endpoint from this side.
func (ep *endpoint) shut() {
	ep.a.mu.Lock()
	se := ep.se
	ep.endLocked(sdk.Closed)
	ep.a.mu.Unlock()
	if se != nil {
		se.Close()
	}
}

// take takes frames in. Notifications go to the queue without the
// association's lock; what has to be said and sent because of them follows
// once per read, under it. bounded says that what is held is limited.
func (ep *endpoint) take(frames [][]byte, bounded bool) {
	a := ep.a
	in := intake{now: time.Now(), bounded: bounded}
	a.mu.Lock()
	in.session, in.from = a.in, a.node.Load()
	a.heard = in.now
	a.mu.Unlock()
	for _, f := range frames {
		ep.frame(f, &in)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	ep.p.countersLocked(a.e).received.Add(in.entered)
	ep.applyLocked(&in)
	if in.owes {
		// Whoever the notification woke may have something to say: then the
		// ack shares its write.
		a.mu.Unlock()
		runtime.Gosched()
		a.mu.Lock()
	}
	a.pumpLocked()
}

// intake is what a read of frames is judged by, and what it leads to.
type intake struct {
	now     time.Time
	session *inbox.Session // the peer's, or nil
	from    *Node
	bounded bool

	owes    bool   // an ack over this endpoint
	owesAll bool   // and over every connected one: a duplicate, a request
	unknown uint64 // a session that is not held
	acks    []inAck
	entered uint64 // into the queue
}

type inAck struct {
	h    frame.Header
	body []byte // valid during the call
}

// frame sorts one frame.
func (ep *endpoint) frame(f []byte, in *intake) {
	a := ep.a
	if !frame.IsTyped(f) {
		ep.raw(f, in)
		return
	}
	h, payload, err := frame.Decode(f)
	if err != nil {
		a.e.stats.Malformed.Add(1)
		return
	}
	switch h.Type {
	case frame.NotifyCompat, frame.CreditRequest:
		ep.asked(h, payload, in)
	case frame.CtrlAck:
		in.acks = append(in.acks, inAck{h, payload})
	case frame.SessionClose:
		in.acks = append(in.acks, inAck{h, nil})
	default:
		a.e.stats.Malformed.Add(1)
	}
}

// raw delivers a notification without a stamp.
func (ep *endpoint) raw(f []byte, in *intake) {
	a := ep.a
	name, msg, err := frame.DecodeRaw(f, false)
	if err != nil {
		a.e.stats.Malformed.Add(1)
		return
	}
	if ep.enqueue(in, Stamp{}, name, msg) != inbox.Entered {
		a.e.stats.dropped[dropLost].Add(1)
		return
	}
	a.e.stats.Unstamped.Add(1)
	in.entered++
}

// asked deals with a frame of the peer's session: a notification, or a request
// for room.
func (ep *endpoint) asked(h frame.Header, payload []byte, in *intake) {
	a, session, now := ep.a, in.session, in.now
	if !a.stamps() || h.Type == frame.CreditRequest && !a.acks() {
		a.e.stats.Malformed.Add(1)
		return
	}
	if h.Epoch != a.epochHere() {
		a.e.stats.WrongLife.Add(1)
		return
	}
	if session == nil || h.Session != session.ID() {
		in.unknown = h.Session
		a.e.stats.UnknownSession.Add(1)
		return
	}
	if h.Type == frame.CreditRequest {
		if len(payload) != 0 || h.Seq != 0 {
			a.e.stats.Malformed.Add(1)
			return
		}
		a.e.stats.CreditAnswers.Add(1)
		session.Floor(h.Ack, now)
		in.owes, in.owesAll = true, true
		return
	}
	name, msg, err := frame.DecodeRaw(payload, true)
	if err != nil {
		a.e.stats.Malformed.Add(1)
		return
	}
	switch verdict := session.Take(h, int(a.proto.Load()), now, func() inbox.Verdict {
		return ep.enqueue(in, Stamp{in.from.Incarnation, h.Session, h.Seq}, name, msg)
	}); verdict {
	case inbox.Entered:
		in.owes = a.acks()
		in.entered++
	case inbox.Duplicate:
		a.e.stats.Duplicates.Add(1)
		in.owes, in.owesAll = a.acks(), a.acks()
	case inbox.NoRoom, inbox.PartFull:
		in.owes = a.acks()
		switch {
		case !a.acks():
			a.e.stats.dropped[dropLost].Add(1)
		case verdict == inbox.PartFull:
			a.e.stats.dropped[dropPart].Add(1)
		default:
			a.e.stats.dropped[dropFull].Add(1)
		}
	case inbox.TooLate:
		a.e.stats.dropped[dropLate].Add(1)
	case inbox.OutOfRange:
		a.e.stats.OutOfRange.Add(1)
	case inbox.Ended:
		a.e.stats.UnknownSession.Add(1)
	}
}

// applyLocked does what a read of frames led to.
func (ep *endpoint) applyLocked(in *intake) {
	a, now := ep.a, in.now
	if a.dead != nil || a.successor != nil {
		return
	}
	for _, x := range in.acks {
		ep.ackLocked(x, now)
	}
	if in.owes {
		ep.oweLocked()
	}
	if in.owesAll {
		for _, p := range a.order {
			if p.up() {
				p.ep.oweLocked()
			}
		}
	}
	if in.unknown != 0 && a.mayRefuseLocked(now) {
		a.refusals = append(a.refusals, refusal{ep, in.unknown, int(a.proto.Load())})
	}
}

func (ep *endpoint) oweLocked() {
	if !ep.owes && ep.a.acks() {
		ep.owes = true
		ep.a.owed = append(ep.a.owed, ep)
	}
}

// ackLocked takes in a CTRL_ACK or SESSION_CLOSE. Either counts only for the
// session in use towards this peer and with this peer's epoch.
func (ep *endpoint) ackLocked(x inAck, now time.Time) {
	if ep.a.answeredLocked(x, now) > 0 {
		ep.p.shuns = 0
	}
}

// answeredLocked is ackLocked whichever way the answer came. It returns how
// many notifications it settled.
func (a *association) answeredLocked(x inAck, now time.Time) int {
	if a.node.Load() == nil || x.h.Session == 0 || x.h.Session != a.box.Session() || x.h.Epoch != a.epochThereLocked() ||
		!a.acks() && (x.h.Type == frame.CtrlAck || !a.stamps()) {
		a.e.stats.ForeignAcks.Add(1)
		return 0
	}
	if x.h.Type == frame.SessionClose {
		if x.h.Seq == 0 && x.h.Ack == 0 {
			a.reopenLocked()
		}
		return 0
	}
	ack, err := frame.DecodeAck(x.h.Ack, x.body, a.ranges)
	if err != nil {
		a.e.stats.Malformed.Add(1)
		return 0
	}
	a.ranges = ack.Ranges
	hadRoom := a.box.HasRoom()
	a.settled = a.box.Ack(x.h.Seq, ack, now, a.settled)
	if hadRoom && !a.box.HasRoom() {
		a.e.stats.RoomLost.Add(1)
	}
	a.e.stats.AcksReceived.Add(1)
	if n := a.box.TakeFastResends(); n > 0 {
		a.e.stats.FastResends.Add(n)
	}
	a.countAcksLocked(now, a.settled...)
	for i, e := range a.settled {
		a.ackedLocked(e, now)
		a.settle(e, func(d *Delivery) { d.finish(Acknowledged, nil) })
		a.settled[i] = nil
	}
	return len(a.settled)
}

// countAcksLocked counts entries that are about to end as acknowledged.
func (a *association) countAcksLocked(now time.Time, xs ...*outbox.Entry) {
	var sum time.Duration
	for _, x := range xs {
		age := x.Owner.(*Delivery).age(a.e, now)
		a.e.stats.latency.observe(age)
		sum += age
	}
	a.e.stats.latency.sum.Add(int64(sum))
	a.e.stats.Acked.Add(uint64(len(xs)))
}

// slot is a frame without an outcome.
type slot struct {
	entry *outbox.Entry
	copy  int
	size  int
	ack   bool
	used  bool
}

// inflight is the frames given to an endpoint that have no outcome, by id. Ids
// grow by one, so it is a ring.
type inflight struct {
	ring   []slot
	base   uint64 // the id of the oldest one kept
	next   uint64
	frames int // that count against the limits
	bytes  int
}

func newInflight() inflight { return inflight{base: 1, next: 1} }

func (f *inflight) add(s slot) uint64 {
	if f.next-f.base == uint64(len(f.ring)) {
		ring := make([]slot, max(16, 2*len(f.ring)))
		for id := f.base; id < f.next; id++ {
			ring[id&uint64(len(ring)-1)] = f.ring[id&uint64(len(f.ring)-1)]
		}
		f.ring = ring
	}
	s.used = true
	id := f.next
	f.ring[id&uint64(len(f.ring)-1)] = s
	f.next++
	if s.entry != nil {
		f.frames++
		f.bytes += s.size
	}
	return id
}

// take removes a frame. It reports false for one that is not there: an id that
// was never given out, or completed before.
func (f *inflight) take(id uint64) (slot, bool) {
	if id < f.base || id >= f.next {
		return slot{}, false
	}
	p := &f.ring[id&uint64(len(f.ring)-1)]
	s := *p
	if !s.used {
		return slot{}, false
	}
	*p = slot{}
	if s.entry != nil {
		f.frames--
		f.bytes -= s.size
	}
	for f.base < f.next && !f.ring[f.base&uint64(len(f.ring)-1)].used {
		f.base++
	}
	return s, true
}
