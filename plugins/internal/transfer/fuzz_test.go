//go:build linux

package transfer

import (
	"bytes"
	"slices"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
)

// FuzzPassive is a peer that says anything: only what is well-formed, and names
// the region, changes it, and only there.
func FuzzPassive(f *testing.F) {
	write := request{sdk.Write, 4, 1, thereCap, 10}.bytes()
	f.Add(append(slices.Clone(write), "abcd"...))
	f.Add(append(append(slices.Clone(write), "abcd"...), request{sdk.Read, 9, 2, thereCap, 8}.bytes()...))
	f.Add(request{sdk.Read, mostOp, 1, constantCap, 200}.bytes())
	f.Add(append(request{sdk.Write, 4, 1, constantCap, 10}.bytes(), "abcd"...))
	f.Add(write[:20])
	g := newGround(f, thereCap)
	f.Fuzz(func(t *testing.T, b []byte) {
		g.fill(t, 0)
		want := model(b)
		p, far := newPassive(t, g)
		go func() {
			_, _ = far.Conn.Write(b)
			_ = far.Close()
		}()
		far.rec.WaitEnded()
		p.Close()
		got := g.bytes(t)
		if !bytes.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// model is what a region of zeros holds after a peer has said b.
func model(b []byte) []byte {
	m := make([]byte, regionSize)
	for id := uint64(1); len(b) >= requestLen; id++ {
		r, err := parseRequest(b, id, mostOp)
		if err != nil {
			break
		}
		b = b[requestLen:]
		if r.kind == sdk.Read {
			continue
		}
		n := min(len(b), int(r.length))
		if r.region == thereCap && r.offset+uint64(r.length) <= regionSize && r.offset < regionSize {
			copy(m[r.offset:], b[:n])
		}
		b = b[n:]
	}
	return m
}

// FuzzActive is a peer that answers anything to a read and a write.
func FuzzActive(f *testing.F) {
	f.Add(append((&reply{0, 10, 1}).append(nil), "0123456789"...))
	f.Add((&reply{0, 0, 2}).append(append((&reply{0, 10, 1}).append(nil), "0123456789"...)))
	f.Add((&reply{sdk.StaleCapability, 0, 1}).append(nil))
	f.Add((&reply{99, 0, 1}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		g := newGround(t, hereCap)
		a := newActive(t, g)
		a.mustPost(sdk.Read, 100, 10)
		a.mustPost(sdk.Write, 100, 10)
		go func() {
			a.f.read(requestLen + requestLen + 10)
			_, _ = a.f.Conn.Write(b)
			_ = a.f.Close()
		}()
		a.f.rec.WaitEnded()
		got := g.bytes(t)
		if n := len(bytes.TrimRight(got[:100], "\x00")) + len(bytes.Trim(got[110:], "\x00")); n > 0 {
			t.Errorf("written beside the range: %q", got)
		}
		for id := uint64(1); id <= 2; id++ {
			c, ok := a.f.rec.Outcome(id)
			if ok && (!c.Outcome.Valid() || c.Outcome == sdk.Done != (c.Code == 0) || c.Code != 0 && !c.Code.Valid()) {
				t.Errorf("%+v", c)
			}
		}
		if err := g.Deregister(over(), hereCap); err != nil {
			t.Error(err)
		}
	})
}
