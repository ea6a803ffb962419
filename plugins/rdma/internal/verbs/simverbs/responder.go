package simverbs

import "github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"

// respond executes a request, once, in order.
func (q *qp) respond(pkt *packet) {
	h := pkt.Header
	switch ahead := (h.PSN - q.expected) & psnMask; {
	case ahead == 0:
	case ahead < 1<<23:
		return // a gap: the requester sends again
	case h.Kind == packetRead:
		q.readOut(h) // again, its response may be lost
		return
	default:
		q.acknowledge()
		return
	}
	if q.state == verbs.RTR && !q.isEstablished {
		q.isEstablished = true
		q.raise(verbs.CommEstablished)
	}
	// Ends that cut messages into different packets do not understand each other.
	if least := min(uint32(h.MTU), uint32(q.rtr.MTU)); h.MTU != uint16(q.rtr.MTU) && h.Length > least {
		q.refuse(h, verbs.RemoteInvalidReq, verbs.QPRequestError)
		return
	}
	switch h.Kind {
	case packetSend, packetSendImm:
		q.receive(pkt)
	case packetWrite:
		q.write(pkt)
	case packetRead:
		if q.readOut(h) {
			q.expected = (q.expected + 1) & psnMask
		}
	}
}

func (q *qp) acknowledge() {
	q.emit(header{Kind: packetAck, PSN: (q.expected - 1) & psnMask}, nil)
}

func (q *qp) executed() {
	q.expected = (q.expected + 1) & psnMask
	q.acknowledge()
}

// refuse answers with an error, which ends the queue pair on both sides.
func (q *qp) refuse(h header, status verbs.Status, why verbs.EventType) {
	q.emit(header{Kind: packetNak, PSN: h.PSN, Status: status}, nil)
	q.fail(why)
}

func (q *qp) receive(pkt *packet) {
	h := pkt.Header
	r := q.srq.take()
	if r == nil {
		q.emit(header{Kind: packetRNR, PSN: h.PSN, Timer: uint8(q.rtr.MinRNRTimer)}, nil)
		return
	}
	wc := verbs.WC{ID: r.wr.ID, QP: q.num, Recv: true, Length: h.Length}
	at := q.bytes(r)
	switch {
	case h.Length > r.wr.Length:
		wc.Status, wc.Length = verbs.LocalLength, 0
	case h.Length > 0 && at == nil:
		wc.Status, wc.Length = verbs.LocalProtection, 0
	default:
		copy(at, pkt.Payload)
		if h.Kind == packetSendImm {
			wc.Imm, wc.HasImm = h.Imm, true
		}
		// The completion may overrun the queue, so acknowledge first.
		q.executed()
		q.recvCQ.add(entry{WC: wc, of: q, receive: r})
		return
	}
	q.recvCQ.add(entry{WC: wc, of: q, receive: r})
	told := verbs.RemoteInvalidReq
	if wc.Status == verbs.LocalProtection {
		told = verbs.RemoteOp
	}
	q.emit(header{Kind: packetNak, PSN: h.PSN, Status: told}, nil)
	q.toError() // the completion says why
}

// bytes returns the memory of a receive, nil if it may not be written.
func (q *qp) bytes(r *receive) []byte {
	m, at := r.q.pd.region(r.wr.LKey, r.wr.Addr, r.wr.Length)
	if m == nil || m.access&verbs.LocalWrite == 0 {
		return nil
	}
	return at
}

func (q *qp) write(pkt *packet) {
	h := pkt.Header
	if h.Length > 0 {
		m, at := q.pd.region(h.RKey, h.At, h.Length)
		if m == nil || m.access&q.access&verbs.RemoteWrite == 0 {
			q.refuse(h, verbs.RemoteAccess, verbs.QPAccessError)
			return
		}
		copy(at, pkt.Payload)
	}
	q.executed()
}

// readOut answers a read, and reports whether it could.
func (q *qp) readOut(h header) bool {
	if int(h.Reads) > q.rtr.MaxDestRD {
		q.refuse(h, verbs.RemoteInvalidReq, verbs.QPRequestError)
		return false
	}
	var at []byte
	if h.Length > 0 {
		var m *mr
		if m, at = q.pd.region(h.RKey, h.At, h.Length); m == nil || m.access&q.access&verbs.RemoteRead == 0 {
			q.refuse(h, verbs.RemoteAccess, verbs.QPAccessError)
			return false
		}
	}
	q.emit(header{Kind: packetReadResponse, PSN: h.PSN, Length: h.Length}, at)
	return true
}
