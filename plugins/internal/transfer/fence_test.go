//go:build linux

package transfer

import (
	"errors"
	"net"
	"testing"
	"testing/synctest"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/sdk"
)

// late is a connection whose reads of a body, or whose writes, take until after
// it was closed, as a system call under way may.
type late struct {
	net.Conn
	size    int // of the reads that are late; 0: the writes are
	release chan struct{}
}

func (l *late) Read(b []byte) (int, error) {
	if l.size == 0 || len(b) != l.size {
		return l.Conn.Read(b)
	}
	<-l.release
	clear(b)
	return len(b), nil
}

func (l *late) Write(b []byte) (int, error) {
	if l.size == 0 {
		<-l.release
	}
	return l.Conn.Write(b)
}

// Ended comes only after the last touch, however late that is.
func TestEndedIsAFence(t *testing.T) {
	const size = 100
	for name, c := range map[string]struct {
		active bool
		kind   sdk.OpKind
	}{
		"passive, a write": {false, sdk.Write}, "passive, a read": {false, sdk.Read},
		"active, a write": {true, sdk.Write}, "active, a read": {true, sdk.Read},
	} {
		synctest.Test(t, func(t *testing.T) {
			near, theirs := net.Pipe()
			f := &far{Conn: theirs, t: t, rec: rigtest.NewRecorder(t)}
			conn := &late{Conn: near, release: make(chan struct{})}
			if c.active == (c.kind == sdk.Read) {
				conn.size = size // what it reads is late
			}
			region := thereCap
			if c.active {
				region = hereCap
			}
			g := newGround(t, region)
			var e Endpoint
			if c.active {
				a := NewActive(&g.Table, limits, sdk.Target{Peer: peerInc}, "the peer", f.rec)
				e = a
				f.start(func() { a.Run(func() {}) })
			} else {
				p := NewPassive(&g.Regions, limits, "the peer", f.rec)
				e = p
				f.start(func() { p.Run(Stall, nil, func() {}) })
			}
			e.Arrive(conn)
			if c.active {
				if err := (&activeEnd{Active: e.(*Active), f: f}).post(c.kind, 0, size); err != nil {
					t.Fatal(err)
				}
				if c.kind == sdk.Read {
					f.read(requestLen)
					f.write((&reply{0, size, 1}).append(nil))
				}
			} else {
				f.write(request{c.kind, size, 1, thereCap, 0}.bytes())
			}
			synctest.Wait()
			e.Close()
			synctest.Wait()
			if f.rec.Ends() != 0 {
				t.Errorf("%s: Ended was called while memory is touched", name)
			}
			if err := g.Deregister(over(), region); !errors.Is(err, sdk.Busy) {
				t.Errorf("%s: the region is free: %v", name, err)
			}
			close(conn.release)
			f.rec.WaitEnded()
			if err := g.Deregister(over(), region); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}
