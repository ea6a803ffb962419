package simverbs

import (
	"errors"
	"syscall"
	"time"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// qp is a reliable-connected queue pair.
type qp struct {
	pd             *pd
	d              *device
	num            uint32
	init           verbs.QPInit
	sendCQ, recvCQ *cq
	srq            *srq
	isClosed       bool
	isMuted        bool // its completions are swallowed

	state  verbs.QPState
	port   int
	access verbs.Access
	rtr    verbs.RTRAttr
	rts    verbs.RTSAttr

	// The requester: sends are posted and not completed, the first sent of
	// them are on the wire.
	sends    []*send
	sent     int
	free     int // slots
	carried  int // slots of completed sends that no completion stands for yet
	nextPSN  uint32
	tries    int // timeouts since the last progress
	rnrTries int
	timer    *time.Timer
	timerSeq int // tells a timer that fires from one that was stopped
	isRNR    bool

	// The responder.
	expected      uint32 // PSN
	readySince    int64
	isEstablished bool
}

const psnMask = 1<<24 - 1

func (p *pd) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	const call = "ibv_create_qp"
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := p.begin(call); err != nil {
		return nil, err
	}
	scq, _ := init.SendCQ.(*cq)
	rcq, _ := init.RecvCQ.(*cq)
	s, _ := init.SRQ.(*srq)
	lim := d.n.config.Limits
	switch {
	case scq == nil || rcq == nil || scq.d != d || rcq.d != d || scq.isClosed || rcq.isClosed,
		init.SRQ != nil && (s == nil || s.pd.d != d || s.isClosed),
		init.SendWRs < 1 || init.SendWRs > lim.QPWRs,
		init.MaxSGE < 0 || init.MaxSGE > 32 || init.MaxInline < 0 || init.MaxInline > 1024:
		return nil, refuse(call, d.n.name, syscall.EINVAL)
	case len(d.n.qps) >= lim.QPs:
		return nil, refuse(call, d.n.name, syscall.ENOMEM)
	}
	o := d.p.options
	num, err := takeNumber(o.Dir, o.Host, d.n.name, d.p.process, o.FirstQP)
	if err != nil {
		return nil, &verbs.CallError{Call: call, Object: d.n.name, Err: errors.Join(syscall.EIO, err)}
	}
	q := &qp{pd: p, d: d, num: num, init: init, sendCQ: scq, recvCQ: rcq, srq: s, free: init.SendWRs}
	d.n.qps[num] = q
	d.qps[q] = true
	p.users++
	scq.users++
	rcq.users++
	if s != nil {
		s.users++
	}
	return q, nil
}

func (q *qp) Num() uint32 { return q.num }

func (q *qp) State() (verbs.QPState, error) {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	if q.isClosed {
		q.d.p.fault("ibv_query_qp after the queue pair was closed")
		return 0, refuse("ibv_query_qp", q.d.n.name, syscall.EINVAL)
	}
	return q.state, q.d.p.inject("ibv_query_qp", q.d.n.name)
}

// modify checks what all moves have in common, then moves.
func (q *qp) modify(to verbs.QPState, move func() error) error {
	const call = "ibv_modify_qp"
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	if err := q.d.p.inject(call, q.d.n.name, call+"("+to.String()+")"); err != nil {
		return err
	}
	if q.isClosed {
		q.d.p.fault("%s after the queue pair was closed", call)
		return refuse(call, q.d.n.name, syscall.EINVAL)
	}
	if q.d.isLost {
		return refuse(call, q.d.n.name, syscall.EIO)
	}
	if err := move(); err != nil {
		return &verbs.CallError{Call: call + "(" + to.String() + ")", Object: q.d.n.name, Err: err}
	}
	return nil
}

func (q *qp) ToInit(a verbs.InitAttr) error {
	return q.modify(verbs.Init, func() error {
		if q.state != verbs.Reset && q.state != verbs.Init ||
			a.Port < 1 || a.Port > len(q.d.n.config.Ports) || a.PkeyIndex != 0 {
			return syscall.EINVAL
		}
		q.state, q.port, q.access = verbs.Init, a.Port, a.Access
		return nil
	})
}

func (q *qp) ToRTR(a verbs.RTRAttr) error {
	return q.modify(verbs.RTR, func() error {
		if q.state != verbs.Init || a.Port != q.port {
			return syscall.EINVAL
		}
		port := q.d.n.config.Ports[a.Port-1]
		at := q.d.p.fabric.Ports[q.d.n.port(a.Port)]
		switch {
		case !a.MTU.Valid() || a.MTU > port.MTU,
			a.PeerQP > psnMask || a.PeerPSN > psnMask,
			a.MaxDestRD < 0 || a.MaxDestRD > q.d.n.config.Limits.RDAtomic,
			a.MinRNRTimer < 0 || a.MinRNRTimer > 31,
			a.HopLimit < 0 || a.HopLimit > 255 || a.TrafficClass < 0 || a.TrafficClass > 255,
			a.ServiceLevel < 0 || a.ServiceLevel > 15 || a.FlowLabel >= 1<<20,
			port.Link == verbs.Ethernet && !a.Global,
			!a.Global && a.PeerLID == 0,
			a.Global && !hasIndex(at.GIDs, a.SGIDIndex):
			return syscall.EINVAL
		}
		q.rtr = a
		if port.Link == verbs.Ethernet && q.peer() == nil {
			return syscall.EHOSTUNREACH // the kernel asks for the neighbour
		}
		q.state, q.expected, q.readySince, q.isEstablished = verbs.RTR, a.PeerPSN, now(), false
		return nil
	})
}

func hasIndex(gids []verbs.GID, index int) bool {
	for _, g := range gids {
		if g.Index == index {
			return true
		}
	}
	return false
}

func (q *qp) ToRTS(a verbs.RTSAttr) error {
	return q.modify(verbs.RTS, func() error {
		if q.state != verbs.RTR || a.Timeout < 0 || a.Timeout > 31 || a.RetryCnt < 0 || a.RetryCnt > 7 ||
			a.RNRRetry < 0 || a.RNRRetry > 7 || a.PSN > psnMask ||
			a.MaxRD < 0 || a.MaxRD > q.d.n.config.Limits.InitRDAtomic {
			return syscall.EINVAL
		}
		q.state, q.rts, q.nextPSN = verbs.RTS, a, a.PSN
		return nil
	})
}

func (q *qp) ToError() error {
	return q.modify(verbs.Err, func() error { q.toError(); return nil })
}

func (q *qp) ToReset() error {
	return q.modify(verbs.Reset, func() error { q.toReset(); return nil })
}

// toError flushes. It says nothing of why; see fail.
func (q *qp) toError() {
	if q.state == verbs.Err {
		return
	}
	q.stopTimer()
	q.state = verbs.Err
	for len(q.sends) > 0 {
		q.complete(verbs.Flushed)
	}
	if q.srq != nil && !q.d.n.config.NoLastWQE {
		q.raise(verbs.LastWQEReached)
	}
}

// fail moves to the error state for a reason that has an event of its own.
func (q *qp) fail(why verbs.EventType) {
	if q.state != verbs.Err {
		q.raise(why)
		q.toError()
	}
}

func (q *qp) raise(t verbs.EventType) {
	q.d.raise(event{Event: verbs.Event{Type: t, QP: q.num}, of: q})
}

// toReset forgets everything posted, and what was not polled.
func (q *qp) toReset() {
	q.forget()
	q.state = verbs.Reset
}

// forget drops what the queue pair still has to do or to tell.
func (q *qp) forget() {
	q.stopTimer()
	for _, s := range q.sends {
		s.letGo()
		q.free++
	}
	q.sends = nil
	q.free += q.carried
	q.carried, q.sent, q.tries, q.rnrTries = 0, 0, 0, 0
	if !q.d.n.config.KeepsCompletions {
		q.sendCQ.drop(q)
		q.recvCQ.drop(q)
	}
}

func (q *qp) Close() error {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	return q.d.closing("ibv_destroy_qp", &q.isClosed, 0, q.destroy)
}

func (q *qp) destroy() {
	q.isClosed = true
	q.forget()
	q.state = verbs.Reset
	kept := q.d.events[:0:0]
	for _, e := range q.d.events {
		if e.of != q {
			kept = append(kept, e)
		}
	}
	q.d.events = kept
	delete(q.d.qps, q)
	delete(q.d.n.qps, q.num)
	q.pd.users--
	q.sendCQ.users--
	q.recvCQ.users--
	if q.srq != nil {
		q.srq.users--
	}
	freeNumber(q.d.p.options.Dir, q.d.p.options.Host, q.d.n.name, q.num)
}

// peer returns the port that the queue pair is connected to.
func (q *qp) peer() *fabricPort {
	return q.d.p.find(func(f *fabric) *fabricPort {
		if q.rtr.Global {
			return f.byGID(q.rtr.PeerGID)
		}
		return f.byLID(q.rtr.PeerLID)
	})
}

// emit sends a packet to the peer, if there is a way.
func (q *qp) emit(h header, payload []byte) {
	p := q.d.p
	to := q.peer()
	from := q.d.n.port(q.port)
	if to == nil || !p.fabric.carries(from, to.Name.String()) ||
		q.rtr.Global && !hasIndex(p.fabric.Ports[from].GIDs, q.rtr.SGIDIndex) {
		return
	}
	owner := ownerOf(p.options.Dir, to.Name.Host, to.Name.Device, q.rtr.PeerQP)
	if owner == "" {
		return
	}
	h.QP, h.Sent, h.MTU = q.rtr.PeerQP, now(), uint16(q.rtr.MTU)
	p.transmit(owner, &packet{Header: h, From: from, To: to.Name.String(), Payload: payload})
}

// comesFrom reports whether a packet's port has the address of the queue pair's peer.
func (q *qp) comesFrom(port string) bool {
	at := q.d.p.fabric.Ports[port]
	if at == nil {
		return false
	}
	if q.rtr.Global {
		return at.hasGID(q.rtr.PeerGID)
	}
	return at.LID == q.rtr.PeerLID
}

// deliver hands a packet to its queue pair. Called with the lock.
func (p *Provider) deliver(pkt *packet) {
	if p.isClosed {
		return
	}
	if p.fabric.Ports[pkt.From] == nil && p.refresh() != nil || !p.fabric.carries(pkt.From, pkt.To) {
		return
	}
	n := p.nics[p.fabric.Ports[pkt.To].Name.Device]
	if n == nil {
		return
	}
	q := n.qps[pkt.Header.QP]
	if q == nil || q.d.isLost || q.state != verbs.RTR && q.state != verbs.RTS || n.port(q.port) != pkt.To ||
		pkt.Header.Sent < q.readySince || !q.comesFrom(pkt.From) {
		return
	}
	if pkt.Header.Kind.isRequest() {
		q.respond(pkt)
	} else if q.state == verbs.RTS {
		q.answered(pkt)
	}
}
