//go:build linux

package transfer

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

func (r request) bytes() []byte { return r.append(nil) }

func TestPassiveCarriesOut(t *testing.T) {
	g := newGround(t, thereCap)
	g.fill(t, '.')
	_, f := newPassive(t, g)
	f.write(append(request{sdk.Write, 5, 1, thereCap, 10}.bytes(), "hello"...))
	if got := f.read(replyLen); !bytes.Equal(got, (&reply{0, 0, 1}).append(nil)) {
		t.Errorf("a write's reply: %x", got)
	}
	if b := g.bytes(t); !bytes.Equal(b[9:16], []byte(".hello.")) {
		t.Errorf("%q", b[9:16])
	}
	// Two at a time, one of them to a region that may only be read.
	f.write(append(request{sdk.Read, 7, 2, thereCap, 9}.bytes(), request{sdk.Read, 3, 3, constantCap, 997}.bytes()...))
	want := append((&reply{0, 7, 2}).append(nil), ".hello."...)
	want = append((&reply{0, 3, 3}).append(want), 0, 0, 0)
	if got := f.read(len(want)); !bytes.Equal(got, want) {
		t.Errorf("reads' replies: %x", got)
	}
}

// What must not be is refused, with nothing touched, and what follows works.
func TestPassiveRefuses(t *testing.T) {
	g := newGround(t, thereCap)
	g.fill(t, '.')
	_, f := newPassive(t, g)
	id := uint64(0)
	for _, c := range []struct {
		kind   sdk.OpKind
		region sdk.Capability
		offset uint64
		length uint32
		code   sdk.Code
	}{
		{sdk.Write, thereCap, 501, 500, sdk.InvalidArgument}, {sdk.Read, thereCap, 501, 500, sdk.InvalidArgument},
		{sdk.Write, thereCap, 1<<64 - 1, 2, sdk.InvalidArgument}, {sdk.Read, thereCap, 1 << 63, mostOp, sdk.InvalidArgument},
		{sdk.Write, constantCap, 0, 1, sdk.Refused}, {sdk.Write, hereCap, 0, 100, sdk.StaleCapability},
		{sdk.Read, sdk.Capability{}, 0, 100, sdk.StaleCapability}, {sdk.Write, thereCap, 0, 1, 0},
	} {
		id++
		b := request{c.kind, c.length, id, c.region, c.offset}.bytes()
		if c.kind == sdk.Write {
			b = append(b, bytes.Repeat([]byte{'!'}, int(c.length))...)
		}
		f.write(b)
		if got := f.read(replyLen); !bytes.Equal(got, (&reply{c.code, 0, id}).append(nil)) {
			t.Errorf("%+v: %x", c, got)
		}
	}
	if b := g.bytes(t); b[0] != '!' || bytes.IndexByte(b[1:], '!') >= 0 {
		t.Errorf("written: %q", b)
	}
}

// Whoever breaks the protocol loses the connection, and has touched nothing.
func TestPassiveEndsWithABrokenPeer(t *testing.T) {
	good := request{sdk.Write, 10, 1, thereCap, 0}
	for name, edit := range map[string]func(b []byte){
		"no kind":         func(b []byte) { b[0] = 0 },
		"a flush":         func(b []byte) { b[0] = 3 },
		"reserved":        func(b []byte) { b[3] = 1 },
		"no length":       func(b []byte) { b[4] = 0 },
		"over the limit":  func(b []byte) { b[4], b[5] = 0x21, 3 }, // 801
		"a length of all": func(b []byte) { copy(b[4:8], "\xff\xff\xff\xff") },
		"id 0":            func(b []byte) { b[8] = 0 },
		"an id too far":   func(b []byte) { b[8] = 2 },
	} {
		g := newGround(t, thereCap)
		_, f := newPassive(t, g)
		b := good.bytes()
		edit(b)
		go f.Conn.Write(append(b, "0123456789"...)) //nolint:errcheck // nobody may read it
		if err := f.rec.WaitEnded(); !errors.Is(err, sdk.Unavailable) || !strings.Contains(err.Error(), "broke the protocol") {
			t.Errorf("%s: ended with %v", name, err)
		}
		if b := g.bytes(t); bytes.Count(b, []byte{0}) != len(b) {
			t.Errorf("%s: written: %q", name, b)
		}
	}
}

// A region is held while a write to it is under way, and is free, and left
// alone, once the endpoint has ended.
func TestPassiveHoldsTheRegion(t *testing.T) {
	for _, how := range []string{"done", "closed", "cut"} {
		g := newGround(t, thereCap)
		p, f := newPassive(t, g)
		f.write(append(request{sdk.Write, 10, 1, thereCap, 0}.bytes(), "01234"...))
		if err := g.Deregister(over(), thereCap); !errors.Is(err, sdk.Busy) {
			t.Errorf("%s: in the middle of a write: %v", how, err)
		}
		switch how {
		case "done":
			f.write([]byte("56789"))
			f.read(replyLen)
		case "closed":
			p.Close()
			if err := f.rec.WaitEnded(); !errors.Is(err, sdk.Closed) {
				t.Errorf("ended with %v", err)
			}
		case "cut":
			_ = f.Close()
			if err := f.rec.WaitEnded(); !errors.Is(err, sdk.Unavailable) || !strings.Contains(err.Error(), "the peer closed the connection") {
				t.Errorf("ended with %v", err)
			}
		}
		if err := g.Deregister(context.Background(), thereCap); err != nil {
			t.Errorf("%s: %v", how, err)
		}
		if b := g.bytes(t); how == "done" && string(b[:10]) != "0123456789" || how != "done" && bytes.ContainsAny(b[5:], "56789") {
			t.Errorf("%s: %q", how, b[:10])
		}
		if how == "done" {
			f.write(append(request{sdk.Write, 1, 2, thereCap, 0}.bytes(), '!'))
			if got := f.read(replyLen); sdk.Code(got[0]) != sdk.StaleCapability {
				t.Errorf("a write to what is no more: %x", got)
			}
		}
	}
}

// A peer that stops in the middle of an op, or as good as stops, does not keep
// the region for ever; one that has nothing to say keeps its connection.
func TestPassiveGivesUpAPeerThatStops(t *testing.T) {
	for _, kind := range []sdk.OpKind{sdk.Write, sdk.Read} {
		synctest.Test(t, func(t *testing.T) {
			g := newGround(t, thereCap)
			_, f := newPassive(t, g)
			time.Sleep(10 * Stall)
			at := time.Now()
			f.write(request{kind, 5, 1, thereCap, 0}.bytes())
			if kind == sdk.Write {
				time.Sleep(Stall - time.Second)
				f.write([]byte("x"))
			}
			synctest.Wait() // the op has the region
			if err := g.Deregister(over(), thereCap); !errors.Is(err, sdk.Busy) {
				t.Fatalf("%v: the region is free: %v", kind, err)
			}
			if err := f.rec.WaitEnded(); !errors.Is(err, sdk.Unavailable) || !strings.Contains(err.Error(), "has stopped in the middle of an op") {
				t.Errorf("%v: ended with %v", kind, err)
			}
			if waited := time.Since(at); waited < Stall || waited > Stall+Stall/2 {
				t.Errorf("%v: waited %v", kind, waited)
			}
			if err := g.Deregister(over(), thereCap); err != nil {
				t.Errorf("%v: %v", kind, err)
			}
		})
	}
}

// One that is slow keeps its connection, too.
func TestPassiveLetsAPeerBeSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGround(t, thereCap)
		large, c := sdktest.HostMemory(t, 3*stride), sdk.Capability{4}
		r, err := large.Export(true)
		if err != nil {
			t.Fatal(err)
		}
		r.Capability, r.Base = c, 1<<50
		if _, err := g.Register(context.Background(), r); err != nil {
			t.Fatal(err)
		}
		near, theirs := net.Pipe()
		f := &far{Conn: theirs, t: t, rec: rigtest.NewRecorder(t)}
		p := NewPassive(&g.Regions, sdk.MoveLimits{MaxOp: 3 * stride}, "the peer", f.rec)
		p.Arrive(near)
		f.start(func() { p.Run(time.Hour, nil, func() {}) })
		f.write(request{sdk.Write, 3 * stride, 1, c, 0}.bytes())
		for range 3 {
			time.Sleep(Stall - time.Second)
			f.write(make([]byte, stride))
		}
		if got := f.read(replyLen); got[0] != 0 {
			t.Errorf("%x", got)
		}
	})
}

func TestPassiveWithoutAPeer(t *testing.T) {
	for _, how := range []string{"late", "closed", "claimed"} {
		synctest.Test(t, func(t *testing.T) {
			g := newGround(t, thereCap)
			near, theirs := net.Pipe()
			f := &far{Conn: theirs, t: t, rec: rigtest.NewRecorder(t)}
			p := NewPassive(&g.Regions, limits, "the peer", f.rec)
			forgotten := false
			f.start(func() {
				p.Run(time.Second, func() bool { return how != "claimed" }, func() { forgotten = true })
			})
			want := sdk.Closed
			if how == "late" {
				want = sdk.Unavailable
			} else {
				p.Close()
			}
			if how == "claimed" {
				synctest.Wait()
				p.Arrive(near)
			}
			if err := f.rec.WaitEnded(); !errors.Is(err, want) || !forgotten {
				t.Errorf("%s: ended with %v, forgotten %t", how, err, forgotten)
			}
			if how == "claimed" {
				if _, err := near.Write([]byte("x")); err == nil {
					t.Error("what came too late is open")
				}
			}
		})
	}
}

func TestPassiveSendsNothing(t *testing.T) {
	p, _ := newPassive(t, newGround(t, thereCap))
	if n, err := p.Send([]sdk.Frame{{ID: 1}}, false); n != 0 || !errors.Is(err, sdk.InvalidArgument) {
		t.Errorf("%d, %v", n, err)
	}
}
