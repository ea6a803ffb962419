package demo

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
)

// receiverAt makes the receiver speak an older protocol.
func receiverAt(proto int) func(*stage, string, *setup) {
	return func(_ *stage, node string, x *setup) {
		if node == receiverName {
			x.Proto = new(proto)
		}
	}
}

// setupRaw has everything that tcp sends pass where it can be looked at.
func setupRaw(s *stage, node string, x *setup) {
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
	s.require(r.Resent == 0, "%d were sent again", r.Resent)
	judgeTaken(s, l, r)
}

// judgeTaken checks that notifications ended as those of older protocols do.
func judgeTaken(s *stage, l *ledger, r *Result) {
	s.require(r.Taken == r.Expected, "%d of %d ended when the peer's transport had them", r.Taken, r.Expected)
	copies := 0
	for _, e := range l.ended {
		copies = max(copies, e.Copies)
	}
	s.note("%d ended when the peer's transport had them; at most %d copies of one", r.Taken, copies)
}

// compatKills is how often a plugin is killed at protocol 1.
const compatKills = 4

// killCompat kills a tcp plugin while a burst is on its way: what the sender was
// not told about is sent again, and some of that had arrived.
func killCompat(ctx context.Context, s *stage) error {
	var last time.Duration
	for i := range compatKills {
		n := []*peer{s.sender, s.receiver}[i%2]
		var t *target
		ready := func() (err error) {
			if err = s.flowing(ctx, last, first); err == nil {
				t, err = n.aim(ctx, first)
			}
			return err
		}
		err := s.mid(ctx, (i+1)*900/compatKills, ready, func() (err error) {
			defer t.Close()
			if last, err = t.kill(ctx); err != nil {
				return err
			}
			f := s.record(last, "SIGKILL %s (pid %d)", t.name(), t.PID())
			now, err := t.replaced(ctx)
			f.Proof = fmt.Sprintf("gone; instance %d replaced %d after %s", now.Instance, t.plugin.Instance, lap(lab.Now()-last))
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
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
	judgeTaken(s, l, r)
}
