package simverbs

import (
	"hash/crc32"
	"syscall"
	"time"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// A queue pair keeps at most this on the wire, so that a retransmission is bounded.
const (
	windowSends = 64
	windowBytes = 4 << 20
)

// send is a posted work request.
type send struct {
	wr   verbs.SendWR
	psn  uint32
	data []byte // where the bytes are: the region's, or a copy of inline ones
	m    *mr
	sum  uint32 // of the bytes when posted
	bad  verbs.Status
	done bool // a read whose response came
}

// letGo ends the device's use of the memory.
func (s *send) letGo() {
	if s.m != nil {
		s.m.sends--
	}
}

func (s *send) reads() bool { return s.wr.Op == verbs.Read }

func (q *qp) Post(wrs []verbs.SendWR) (int, error) {
	const call = "ibv_post_send"
	d := q.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin(call); err != nil {
		return 0, err
	}
	if q.isClosed {
		d.p.fault("%s after the queue pair was closed", call)
		return 0, refuse(call, d.n.name, syscall.EINVAL)
	}
	if q.state != verbs.RTS && q.state != verbs.Err {
		return 0, refuse(call, d.n.name, syscall.EINVAL)
	}
	defer q.pump()
	for i, wr := range wrs {
		if wr.Op > verbs.Read || wr.Inline && (wr.Length > uint32(q.init.MaxInline) || wr.Op == verbs.Read) {
			return i, refuse(call, d.n.name, syscall.EINVAL)
		}
		if err := d.p.inject(call+"(WR)", d.n.name); err != nil {
			return i, err
		}
		if q.free == 0 {
			return i, refuse(call, d.n.name, syscall.ENOMEM)
		}
		s, ok := q.prepare(wr)
		if !ok {
			d.p.fault("inline bytes outside of registered memory: the simulation cannot read them")
			return i, refuse(call, d.n.name, syscall.EFAULT)
		}
		q.free--
		q.sends = append(q.sends, s)
		if q.state == verbs.Err {
			q.complete(verbs.Flushed)
		}
	}
	return len(wrs), nil
}

// prepare takes a work request. Wrong keys show when it is executed, as on a
// device; only inline bytes are looked at by the caller.
func (q *qp) prepare(wr verbs.SendWR) (*send, bool) {
	s := &send{wr: wr, psn: q.nextPSN}
	switch {
	case wr.Length > maxMessage:
		s.bad = verbs.LocalLength
	case s.reads() && q.rts.MaxRD == 0:
		s.bad = verbs.LocalQPOp
	case wr.Length == 0:
	case wr.Inline:
		at := q.pd.d.inlineBytes(wr.Addr, wr.Length)
		if at == nil {
			return nil, false
		}
		s.data = append([]byte(nil), at...)
	default:
		m, at := q.pd.region(wr.LKey, wr.Addr, wr.Length)
		if m == nil || s.reads() && m.access&verbs.LocalWrite == 0 {
			s.bad = verbs.LocalProtection
			break
		}
		s.m, s.data = m, at
		m.sends++
	}
	if !s.reads() {
		s.sum = crc32.ChecksumIEEE(s.data)
	}
	q.nextPSN = (q.nextPSN + 1) & psnMask
	return s, true
}

// inlineBytes finds inline bytes, which need no key but lie in registered
// memory all the same: the simulation follows no other address.
func (d *device) inlineBytes(at uint64, length uint32) []byte {
	for _, m := range d.mrs {
		if _, b := m.pd.region(m.key, at, length); b != nil {
			return b
		}
	}
	return nil
}

// pump puts on the wire what may go.
func (q *qp) pump() {
	var bytes, reads int
	for _, s := range q.sends[:q.sent] {
		bytes += len(s.data)
		if s.reads() {
			reads++
		}
	}
	for q.state == verbs.RTS && !q.isRNR && q.sent < len(q.sends) {
		s := q.sends[q.sent]
		if s.bad == 0 && s.m != nil && s.m.isClosed {
			s.bad = verbs.LocalProtection
		}
		if s.bad != 0 {
			// What is before it completes first.
			if q.sent == 0 {
				q.die(s.bad)
			}
			return
		}
		if q.sent == windowSends || q.sent > 0 && bytes+len(s.data) > windowBytes ||
			reads > 0 && (s.wr.Fenced || s.reads() && reads >= q.rts.MaxRD) {
			return
		}
		bytes += len(s.data)
		if s.reads() {
			reads++
		}
		q.put(s)
		q.sent++
		if q.timer == nil {
			q.startTimer()
		}
	}
}

// put sends a work request's packet, for the first time or again.
func (q *qp) put(s *send) {
	h := header{PSN: s.psn, Length: s.wr.Length, Imm: s.wr.Imm, RKey: s.wr.RKey, At: s.wr.RemoteAt}
	switch s.wr.Op {
	case verbs.Send:
		h.Kind = packetSend
	case verbs.SendImm:
		h.Kind = packetSendImm
	case verbs.Write:
		h.Kind = packetWrite
	case verbs.Read:
		h.Kind, h.Reads = packetRead, q.reading(s)
		q.emit(h, nil)
		return
	}
	q.checkBytes(s)
	q.emit(h, s.data)
}

// reading is how many reads have no response, up to this one.
func (q *qp) reading(last *send) (n uint8) {
	for _, s := range q.sends {
		if s.reads() && !s.done {
			n++
		}
		if s == last {
			break
		}
	}
	return n
}

func (q *qp) checkBytes(s *send) {
	if crc32.ChecksumIEEE(s.data) != s.sum {
		q.d.p.fault("the bytes of send %d of queue pair %d changed before it completed", s.wr.ID, q.num)
	}
}

// complete ends the first send.
func (q *qp) complete(status verbs.Status) {
	s := q.sends[0]
	q.sends[0] = nil
	q.sends = q.sends[1:]
	if q.sent > 0 {
		q.sent--
	}
	s.letGo()
	if status == verbs.Success && !s.wr.Signaled {
		q.carried++
		return
	}
	wc := verbs.WC{ID: s.wr.ID, QP: q.num, Status: status}
	if s.reads() && status == verbs.Success {
		wc.Length = s.wr.Length
	}
	slots := q.carried + 1
	q.carried = 0
	q.sendCQ.add(entry{WC: wc, of: q, slots: slots})
}

// die ends the first send with an error, and with it the queue pair.
func (q *qp) die(status verbs.Status) {
	q.complete(status)
	q.toError()
}

// answered handles what the responder said.
func (q *qp) answered(pkt *packet) {
	h := pkt.Header
	// A place in the window; an answer to anything else is a late one.
	if len(q.sends) == 0 {
		return
	}
	at := int((h.PSN - q.sends[0].psn) & psnMask)
	if at >= q.sent {
		return
	}
	switch h.Kind {
	case packetAck:
		q.acknowledged(at + 1)
	case packetReadResponse:
		s := q.sends[at]
		if !s.reads() || int(h.Length) != len(s.data) || len(pkt.Payload) != len(s.data) {
			return
		}
		if s.m != nil && s.m.isClosed {
			s.bad = verbs.LocalProtection
		} else if !s.done {
			copy(s.data, pkt.Payload)
		}
		s.done = true
		q.acknowledged(at + 1)
	case packetNak:
		if q.acknowledged(at) {
			q.die(h.Status)
		}
	case packetRNR:
		if q.isRNR || !q.acknowledged(at) {
			return
		}
		q.notReady(h.Timer)
	}
}

// acknowledged completes the first n sends, up to a read that has no response
// yet. It reports whether it could complete them all.
func (q *qp) acknowledged(n int) bool {
	all := true
	for ; n > 0; n-- {
		s := q.sends[0]
		if s.reads() && !s.done {
			all = false
			break
		}
		if s.bad != 0 {
			q.die(s.bad)
			return false
		}
		if !s.reads() {
			q.checkBytes(s)
		}
		q.complete(verbs.Success)
		if q.state != verbs.RTS {
			return false // its queue overran
		}
		q.tries, q.rnrTries = 0, 0
		q.stopTimer()
	}
	if q.sent > 0 && q.timer == nil {
		q.startTimer()
	}
	q.pump()
	return all && q.state == verbs.RTS
}

// notReady waits and sends again from the first send on.
func (q *qp) notReady(timer uint8) {
	if q.rts.RNRRetry != 7 {
		if q.rnrTries++; q.rnrTries > q.rts.RNRRetry {
			q.die(verbs.RNRExceeded)
			return
		}
	}
	q.tries = 0 // the path is alive
	q.stopTimer()
	q.isRNR = true
	q.after(rnrWait(timer), func() {
		q.isRNR = false
		q.again()
	})
}

// startTimer starts the wait for an acknowledgement of the first send.
func (q *qp) startTimer() {
	if q.rts.Timeout == 0 {
		return
	}
	wait := 4096 * time.Nanosecond << q.rts.Timeout
	due := time.Now().Add(wait)
	q.after(wait, func() {
		// Of a process that did not get to run the answer may lie in its socket.
		if starved := time.Since(due) > max(wait/4, 10*time.Millisecond); !starved {
			q.tries++
		}
		if q.tries > q.rts.RetryCnt && !q.d.n.config.NoRetryLimit {
			q.die(verbs.RetryExceeded)
			return
		}
		q.again()
	})
}

// again sends the window again.
func (q *qp) again() {
	for _, s := range q.sends[:q.sent] {
		if s.m != nil && s.m.isClosed {
			q.sent = 0 // pump finds it
			break
		}
		q.put(s)
	}
	if q.sent > 0 && q.timer == nil {
		q.startTimer()
	}
	q.pump()
}

func (q *qp) after(wait time.Duration, do func()) {
	q.timerSeq++
	seq := q.timerSeq
	q.timer = time.AfterFunc(wait, func() {
		q.d.mu.Lock()
		defer q.d.mu.Unlock()
		if seq == q.timerSeq {
			q.timer = nil
			do()
		}
	})
}

func (q *qp) stopTimer() {
	q.timerSeq++
	q.isRNR = false
	if q.timer != nil {
		q.timer.Stop()
		q.timer = nil
	}
}

// rnrWait is verbs' table of codes.
func rnrWait(code uint8) time.Duration {
	hundredths := [32]int{
		65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
		1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
	}
	return time.Duration(hundredths[code%32]) * 10 * time.Microsecond
}
