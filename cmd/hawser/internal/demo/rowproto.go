package demo

import (
	"bytes"
	"context"
	"encoding/binary"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
	"github.com/hawser-transport/hawser/engine"
)

// receiverAt makes the receiver speak an older protocol.
func receiverAt(proto int) func(*stage, string, *lab.Setup) {
	return func(_ *stage, node string, x *lab.Setup) {
		if node == receiverName {
			x.Proto = new(proto)
		}
	}
}

// setupRaw has everything that tcp sends pass where it can be looked at.
func setupRaw(s *stage, node string, x *lab.Setup) {
	setupProxies(s, node, x)
	receiverAt(0)(s, node, x)
}

func prepareRaw(s *stage) error {
	if err := prepareProxies(s); err != nil {
		return err
	}
	for _, l := range s.towards(receiverName) {
		l.sniff(256 << 10)
	}
	return nil
}

// raw is a notification as protocol 0 has it on the wire: name and message,
// each behind its length, and nothing else.
func raw(name string, msg []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(name)))
	b = append(b, name...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(msg)))
	return append(b, msg...)
}

// tcpHeader is what tcp puts before each frame.
const tcpHeader = 4

// judgeRaw looks for notifications that follow each other on the wire with
// nothing between them but tcp's header.
func judgeRaw(s *stage, l *ledger, r *Result) {
	var wire []byte
	for _, w := range s.towards(receiverName) {
		wire = append(wire, w.sniffed()...)
	}
	seen, headed := 0, 0
	for i := range min(s.o.Count-1, 1000) {
		one := raw(name(i, s.o.Count), s.sizes().payload(name(i, s.o.Count)))
		other := raw(name(i+1, s.o.Count), s.sizes().payload(name(i+1, s.o.Count)))
		at := bytes.Index(wire, one)
		if at < 0 {
			continue
		}
		next := bytes.Index(wire, other)
		switch {
		case next == at+len(one)+tcpHeader:
			seen++
		case next >= 0:
			headed++
		}
	}
	s.require(seen > 0, "no raw bytes were seen in the %d that tcp sent first", len(wire))
	s.note("raw bytes on the wire: %d pairs of notifications with nothing but tcp's %d bytes between them, %d with more", seen, tcpHeader, headed)
	for _, a := range l.arrived {
		if a.Session != 0 || a.Seq != 0 {
			s.require(false, "%s has a stamp", a.Name)
			break
		}
	}
	s.judgeOnce(l, r)
}

// judgeOnce checks that nothing that may have left was sent again, and that what
// was on its way when a plugin died ended as such, whether it arrived or not.
func (s *stage) judgeOnce(l *ledger, r *Result) {
	arrived := map[string]bool{}
	for _, a := range l.arrived {
		arrived[a.Name] = true
	}
	kept, strays := 0, 0
	for _, e := range l.ended {
		name := name(e.Index, s.o.Count)
		switch here := arrived[name]; {
		case e.Index == s.o.Count:
		case e.Acked && here:
			kept++
		case here && e.Code == engine.NotSent.Error():
			s.require(false, "%s ended as not sent, and arrived", name)
		case here:
			strays++
		}
	}
	unsent := r.Stats[senderName].NotPosted // given back by a transport: they never left
	s.require(r.Resent <= unsent, "%d were sent again, and only %d of them had never left", r.Resent, unsent)
	s.require(r.Failed[engine.DeliveryUnknown.Error()] > 0, "nothing was on its way when a plugin was killed")
	s.require(r.Taken == r.Acked, "%d of %d ended when the peer's transport had them", r.Taken, r.Acked)
	r.Received, r.Expected = kept, r.Taken
	s.require(kept == r.Taken, "%d of %d that the peer's transport had never arrived", r.Taken-kept, r.Taken)
	s.note("%d ended when the peer's transport had them, %d as failed (%s), of which %d arrived",
		r.Taken, r.failed(), codes(r.Failed), strays)
	s.note("%d went another way, since a transport gave %d back that had never left", r.Resent, unsent)
}

// compatKills is how often a plugin is killed at protocol 1, rawKills at 0.
const (
	compatKills = 4
	rawKills    = 4
)

// killRaw kills the sender's tcp plugin while a burst is on its way. The
// receiver's lives: what it said it had must arrive.
func killRaw(ctx context.Context, s *stage) error { return s.killTCP(ctx, rawKills, s.sender) }

// killCompat kills both nodes' tcp plugins in turn: what the sender was not told
// about is sent again, and some of that had arrived.
func killCompat(ctx context.Context, s *stage) error {
	return s.killTCP(ctx, compatKills, s.sender, s.receiver)
}

func judgeCompat(s *stage, l *ledger, r *Result) {
	s.require(r.Resent > 0, "nothing was resent: nothing was on its way")
	s.require(r.Suppressed > 0, "no copy was recognised")
	for _, a := range l.arrived {
		if a.Session == 0 || a.Seq == 0 {
			s.require(false, "%s has no stamp", a.Name)
			break
		}
	}
	s.require(r.Taken == r.Expected, "%d of %d ended when the peer's transport had them", r.Taken, r.Expected)
	copies := 0
	for _, e := range l.ended {
		copies = max(copies, e.Copies)
	}
	s.note("%d ended when the peer's transport had them; at most %d copies of one", r.Taken, copies)
}
