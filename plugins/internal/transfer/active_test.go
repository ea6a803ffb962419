//go:build linux

package transfer

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
)

func TestActiveSends(t *testing.T) {
	g := newGround(t, hereCap)
	g.fill(t, 'h')
	a := newActive(t, g)
	a.mustPost(sdk.Write, 7, 100)
	a.want(sdk.Write, 1, 7, 100)
	if b := a.f.read(100); bytes.Count(b, []byte("h")) != 100 {
		t.Errorf("sent %q", b)
	}
	a.mustPost(sdk.Read, 200, 3)
	a.want(sdk.Read, 2, 200, 3)
	if _, done, _ := a.f.rec.Counts(); done != 0 {
		t.Error("done without a reply")
	}
	a.f.write((&reply{0, 0, 1}).append(nil))
	a.f.write(append((&reply{0, 3, 2}).append(nil), "abc"...))
	a.f.rec.WaitDone(2)
	if b := g.bytes(t); string(b[198:205]) != "hhabchh" {
		t.Errorf("%q", b[198:205])
	}
	for i, code := range []sdk.Code{sdk.StaleCapability, sdk.Refused} {
		id := uint64(3 + i)
		a.mustPost(sdk.Read, 0, 1)
		a.f.read(requestLen)
		a.f.write((&reply{code, 0, id}).append(nil))
		a.f.rec.WaitOutcome(id, sdk.Completion{ID: id, Outcome: sdk.NotPosted, Code: code})
	}
}

// Whoever breaks the protocol loses the connection. What he has not written by
// then stays as it is, and the op has no outcome: it is Unknown.
func TestActiveEndsWithABrokenPeer(t *testing.T) {
	for name, c := range map[string]struct {
		kind sdk.OpKind // 0: nothing is asked
		r    []byte
	}{
		"nobody asked":           {0, (&reply{0, 0, 1}).append(nil)},
		"an older request":       {sdk.Read, (&reply{0, 10, 0}).append(nil)},
		"a request to come":      {sdk.Read, (&reply{0, 10, 2}).append(nil)},
		"fewer bytes":            {sdk.Read, (&reply{0, 9, 1}).append(nil)},
		"more bytes":             {sdk.Read, (&reply{0, 11, 1}).append(nil)},
		"bytes after a refusal":  {sdk.Read, (&reply{sdk.Refused, 10, 1}).append(nil)},
		"bytes for a write":      {sdk.Write, (&reply{0, 10, 1}).append(nil)},
		"an unknown code":        {sdk.Read, (&reply{17, 0, 1}).append(nil)},
		"reserved bytes":         {sdk.Read, append([]byte{0, 0, 1, 0}, (&reply{0, 10, 1}).append(nil)[4:]...)},
		"a length of everything": {sdk.Read, (&reply{0, 1<<32 - 1, 1}).append(nil)},
	} {
		g := newGround(t, hereCap)
		a := newActive(t, g)
		if c.kind != 0 {
			a.mustPost(c.kind, 0, 10)
			a.f.read(requestLen)
		}
		if c.kind == sdk.Write {
			a.f.read(10)
		}
		go a.f.Conn.Write(append(c.r, "0123456789"...)) //nolint:errcheck // nobody may read it
		if err := a.f.rec.WaitEnded(); !errors.Is(err, sdk.Unavailable) || !strings.Contains(err.Error(), "broke the protocol") {
			t.Errorf("%s: ended with %v", name, err)
		}
		if c, ok := a.f.rec.Outcome(1); ok {
			t.Errorf("%s: the op has an outcome: %+v", name, c)
		}
		if b := g.bytes(t); bytes.Count(b, []byte{0}) != len(b) {
			t.Errorf("%s: written: %q", name, b)
		}
		if err := g.Deregister(over(), hereCap); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A peer that answers what it has not got does not make the region free while
// it is read.
func TestActiveHoldsWhatIsBeingWritten(t *testing.T) {
	g := newGround(t, hereCap)
	a := newActive(t, g)
	a.mustPost(sdk.Write, 0, 100)
	a.want(sdk.Write, 1, 0, 100)
	a.f.write((&reply{0, 0, 1}).append(nil))
	// The next one is read only once that has been handled.
	second := make(chan error, 1)
	go func() {
		_, err := a.f.Conn.Write((&reply{0, 0, 2}).append(nil))
		second <- err
	}()
	for range 100 {
		runtime.Gosched()
		if err := g.Deregister(over(), hereCap); !errors.Is(err, sdk.Busy) {
			t.Fatalf("it is being read: %v", err)
		}
	}
	a.f.read(100)
	a.f.rec.WaitDone(1)
	if err := a.f.rec.WaitEnded(); !strings.Contains(err.Error(), "broke the protocol") {
		t.Errorf("ended with %v", err) // by the second one
	}
	<-second
	if err := g.Deregister(over(), hereCap); err != nil {
		t.Error(err)
	}
}

// When the connection breaks in the middle of a write, its outcome is unknown,
// and what has not begun was not posted.
func TestActiveIsCut(t *testing.T) {
	g := newGround(t, hereCap)
	a := newActive(t, g)
	a.mustPost(sdk.Write, 0, 100)
	a.want(sdk.Write, 1, 0, 100)
	a.f.read(40)
	a.mustPost(sdk.Write, 100, 100)
	a.mustPost(sdk.Read, 100, 100)
	for _, err := range []error{g.Deregister(over(), hereCap), g.Withdraw(over(), peerInc, thereCap)} {
		if !errors.Is(err, sdk.Busy) {
			t.Errorf("in use: %v", err)
		}
	}
	_ = a.f.Close()
	if err := a.f.rec.WaitEnded(); !errors.Is(err, sdk.Unavailable) {
		t.Errorf("ended with %v", err)
	}
	if c, ok := a.f.rec.Outcome(1); ok {
		t.Errorf("the op that was under way: %+v", c)
	}
	for id := uint64(2); id <= 3; id++ {
		if c, _ := a.f.rec.Outcome(id); c.Outcome != sdk.NotPosted || c.Code != sdk.Unavailable {
			t.Errorf("op %d: %+v", id, c)
		}
	}
	if err := a.post(sdk.Read, 0, 1); !errors.Is(err, sdk.Closed) {
		t.Errorf("after the end: %v", err)
	}
	for _, err := range []error{g.Deregister(over(), hereCap), g.Withdraw(over(), peerInc, sdk.Capability{})} {
		if err != nil {
			t.Error(err)
		}
	}
}

// An end in the middle of a read has the region alone at once, whatever the
// peer still sends.
func TestActiveCloses(t *testing.T) {
	g := newGround(t, hereCap)
	a := newActive(t, g)
	a.mustPost(sdk.Read, 0, 100)
	a.want(sdk.Read, 1, 0, 100)
	a.f.write(append((&reply{0, 100, 1}).append(nil), "some"...))
	a.Close()
	if err := a.f.rec.WaitEnded(); !errors.Is(err, sdk.Closed) {
		t.Errorf("ended with %v", err)
	}
	if _, ok := a.f.rec.Outcome(1); ok {
		t.Error("the read has an outcome")
	}
	if err := g.Deregister(over(), hereCap); err != nil {
		t.Error(err)
	}
	if b := g.bytes(t); string(b[:5]) != "some\x00" {
		t.Errorf("%q", b[:5])
	}
}

func TestActiveBounds(t *testing.T) {
	g := newGround(t, hereCap)
	a := newActive(t, g)
	for range 5 {
		a.mustPost(sdk.Read, 0, mostOp)
	}
	if err := a.post(sdk.Read, 0, 1); !errors.Is(err, sdk.Backpressure) {
		t.Errorf("more bytes than may be in flight: %v", err)
	}
	for id := uint64(1); id <= 5; id++ {
		a.want(sdk.Read, id, 0, mostOp)
		a.f.write(append((&reply{0, mostOp, id}).append(nil), make([]byte, mostOp)...))
	}
	a.f.rec.WaitDone(5)
	for range limits.Inflight {
		a.mustPost(sdk.Read, 0, 1)
	}
	if err := a.post(sdk.Read, 0, 1); !errors.Is(err, sdk.Backpressure) {
		t.Errorf("more ops than may be in flight: %v", err)
	}
}

// What cannot be done is not posted, and the peer hears nothing of it.
func TestActiveRefuses(t *testing.T) {
	g := newGround(t, hereCap)
	a := newActive(t, g)
	good := sdk.Op{Kind: sdk.Write, Local: hereCap, Remote: thereCap, Length: 10}
	for name, c := range map[string]struct {
		edit func(o *sdk.Op)
		code sdk.Code
	}{
		"an event":               {func(o *sdk.Op) { o.Event = new([sdk.EventBytes]byte) }, sdk.Unsupported},
		"a flush":                {func(o *sdk.Op) { o.Kind = sdk.Flush }, sdk.InvalidArgument},
		"over MaxOp":             {func(o *sdk.Op) { o.Length = mostOp + 1 }, sdk.InvalidArgument},
		"beyond the region here": {func(o *sdk.Op) { o.LocalOffset = 991 }, sdk.InvalidArgument},
		"beyond that there":      {func(o *sdk.Op) { o.RemoteOffset = 991 }, sdk.InvalidArgument},
		"no region here":         {func(o *sdk.Op) { o.Local[5]++ }, sdk.StaleCapability},
		"no region there":        {func(o *sdk.Op) { o.Remote[5]++ }, sdk.StaleCapability},
		"read-only here":         {func(o *sdk.Op) { o.Kind, o.Local = sdk.Read, constantCap }, sdk.Refused},
		"read-only there":        {func(o *sdk.Op) { o.Remote = constantCap }, sdk.Refused},
	} {
		o := good
		c.edit(&o)
		a.lastID++
		if n, err := a.Send([]sdk.Frame{{ID: a.lastID, Data: o.Append(nil)}}, false); n != 1 || err != nil {
			t.Fatalf("%s: %d, %v", name, n, err)
		}
		a.f.rec.WaitOutcome(a.lastID, sdk.Completion{ID: a.lastID, Outcome: sdk.NotPosted, Code: c.code})
	}
	a.mustPost(sdk.Read, 0, 1)
	a.want(sdk.Read, 1, 0, 1)
	a.Close()
	a.f.rec.WaitEnded()
	if err := g.Close(context.Background()); err != nil {
		t.Error(err)
	}
}
