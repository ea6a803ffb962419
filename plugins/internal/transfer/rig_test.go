//go:build linux

package transfer

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/plugins/internal/memory"
	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	regionSize = 1000
	mostOp     = 800
)

var (
	hereCap, thereCap, constantCap = sdk.Capability{1, 15: 1}, sdk.Capability{2, 15: 2}, sdk.Capability{3, 15: 3}
	peerInc                        = sdk.Incarnation{9}
	limits                         = sdk.MoveLimits{MaxOp: mostOp, Inflight: 8, InflightBytes: 4000, TargetWrites: true}
)

// ground is an instance's memory: a region, and one that is read-only.
type ground struct {
	memory.Table
	m, constant sdktest.Memory
}

func newGround(t testing.TB, c sdk.Capability) *ground {
	t.Helper()
	g := &ground{m: sdktest.HostMemory(t, regionSize), constant: sdktest.HostMemory(t, regionSize)}
	for _, k := range []struct {
		m        sdktest.Memory
		c        sdk.Capability
		writable bool
	}{{g.m, c, true}, {g.constant, constantCap, false}} {
		r, err := k.m.Export(k.writable)
		if err != nil {
			t.Fatal(err)
		}
		r.Capability, r.Base = k.c, 1<<40
		if _, err := g.Register(context.Background(), r); err != nil {
			t.Fatal(err)
		}
	}
	for c, writable := range map[sdk.Capability]bool{thereCap: true, constantCap: false} {
		if err := g.Announce(context.Background(), sdk.RemoteRegion{
			Provider: peerInc, Capability: c, Kind: sdk.HostMemory, Base: uint64(c[0]) << 40, Length: regionSize, Writable: writable,
		}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := g.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return g
}

// bytes are all of the region's.
func (g *ground) bytes(t testing.TB) []byte {
	t.Helper()
	b := make([]byte, regionSize)
	if _, err := g.m.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

func (g *ground) fill(t testing.TB, b byte) {
	t.Helper()
	if _, err := g.m.WriteAt(bytes.Repeat([]byte{b}, regionSize), 0); err != nil {
		t.Fatal(err)
	}
}

// far is the other side of an endpoint's connection, in a test's hands.
type far struct {
	net.Conn
	t   testing.TB
	rec *rigtest.Recorder
	all sync.WaitGroup
}

func (f *far) start(run func()) *far {
	f.all.Go(run)
	f.t.Cleanup(func() {
		_ = f.Close()
		f.all.Wait()
	})
	return f
}

func (f *far) write(b []byte) {
	f.t.Helper()
	if _, err := f.Conn.Write(b); err != nil {
		f.t.Fatal(err)
	}
}

func (f *far) read(n int) []byte {
	f.t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(f, b); err != nil {
		f.t.Fatal(err)
	}
	return b
}

func newPassive(t testing.TB, g *ground) (*Passive, *far) {
	t.Helper()
	near, theirs := net.Pipe()
	f := &far{Conn: theirs, t: t, rec: rigtest.NewRecorder(t)}
	p := NewPassive(&g.Regions, limits, "the peer", f.rec)
	p.Arrive(near)
	return p, f.start(func() { p.Run(time.Hour, func() bool { return false }, func() {}) })
}

type activeEnd struct {
	*Active
	f      *far
	lastID uint64
}

func newActive(t testing.TB, g *ground) *activeEnd {
	t.Helper()
	near, theirs := net.Pipe()
	f := &far{Conn: theirs, t: t, rec: rigtest.NewRecorder(t)}
	a := NewActive(&g.Table, limits, sdk.Target{Peer: peerInc}, "the peer", f.rec)
	a.Arrive(near)
	return &activeEnd{Active: a, f: f.start(func() { a.Run(func() {}) })}
}

// post sends an op of n bytes, and returns what Send says.
func (a *activeEnd) post(kind sdk.OpKind, offset, n int) error {
	o := sdk.Op{Kind: kind, Local: hereCap, LocalOffset: uint64(offset), Remote: thereCap, RemoteOffset: uint64(offset), Length: uint64(n)}
	a.lastID++
	_, err := a.Send([]sdk.Frame{{ID: a.lastID, Data: o.Append(nil)}}, false)
	if err != nil {
		a.lastID--
	}
	return err
}

func (a *activeEnd) mustPost(kind sdk.OpKind, offset, n int) {
	a.f.t.Helper()
	if err := a.post(kind, offset, n); err != nil {
		a.f.t.Fatal(err)
	}
}

// want is the next request.
func (a *activeEnd) want(kind sdk.OpKind, id uint64, offset, n int) {
	a.f.t.Helper()
	want := request{kind, uint32(n), id, thereCap, uint64(offset)}
	if r, err := parseRequest(a.f.read(requestLen), id, mostOp); err != nil || r != want {
		a.f.t.Fatalf("request %+v, %v; want %+v", r, err, want)
	}
}

func over() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
