//go:build linux

package mnnvltransport

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// side is one end of a pair: an instance with the regions of its application.
type side struct {
	*rigtest.Node
	mover    sdk.Mover
	instance uint64
}

func (l *lab) start(t testing.TB, tr sdk.Transport, instance uint64) *side {
	t.Helper()
	n := rigtest.Start(t, tr, sdk.Config{Instance: instance, Settings: json.RawMessage(`{"mapping_idle_secs": 60}`)})
	return &side{n, tr.(sdk.Mover), instance}
}

// published is a region as its descriptor says.
type publishedRegion struct {
	sdk.RemoteRegion
	at *side
}

func (s *side) register(t testing.TB, m sdktest.Memory, writable bool, base, version uint64) publishedRegion {
	t.Helper()
	r, err := m.Export(writable)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = rand.Read(r.Capability[:])
	r.Base = base
	a, err := s.mover.Register(rigtest.Context(t), r)
	if err != nil {
		t.Fatalf("Register: %v", err)
	}
	return publishedRegion{sdk.RemoteRegion{
		Provider: s.Inc, Instance: s.instance, Capability: r.Capability, Kind: r.Kind, Base: base,
		Length: r.Length, Writable: writable, Attributes: a, Version: version,
	}, s}
}

func (p publishedRegion) deregister(t testing.TB) {
	t.Helper()
	if err := p.at.mover.Deregister(rigtest.Context(t), p.Capability); err != nil {
		t.Fatalf("Deregister: %v", err)
	}
}

func (s *side) announce(t testing.TB, r publishedRegion) {
	t.Helper()
	if err := s.mover.Announce(rigtest.Context(t), r.RemoteRegion); err != nil {
		t.Fatalf("Announce: %v", err)
	}
}

// line is an endpoint of s to a peer, whose ops are awaited.
type line struct {
	t  testing.TB
	ep sdk.Endpoint

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]waiting
	bytes   int       // of those that wait
	room    sync.Cond // something has its outcome
	ended   chan error
	told    func() // called in Completed, if not nil
}

// waiting is an op without an outcome.
type waiting struct {
	size int
	done chan sdk.Completion
}

func (l *line) Completed(cs []sdk.Completion) {
	if l.told != nil {
		l.told()
	}
	for _, c := range cs {
		l.mu.Lock()
		w := l.waiting[c.ID]
		delete(l.waiting, c.ID)
		l.bytes -= w.size
		l.mu.Unlock()
		w.done <- c
	}
	l.room.Broadcast()
}
func (l *line) Received([][]byte) {}
func (l *line) Ended(err error)   { l.ended <- err }

var generations struct {
	sync.Mutex
	n uint64
}

func connect(t testing.TB, from, to *side) *line {
	t.Helper()
	generations.Lock()
	generations.n++
	target := rigtest.Target(from.Node, to.Node, generations.n)
	generations.Unlock()
	target.Use = sdk.UseMemory
	l := &line{t: t, waiting: map[uint64]waiting{}, ended: make(chan error, 1)}
	l.room.L = &l.mu
	var err error
	l.ep, err = from.Notifier().Connect(rigtest.Context(t), target, func(ctx context.Context, offer []byte) ([]byte, error) {
		back := target
		back.Local, back.Peer, back.Remote = to.Inc, from.Inc, from.Setup.Attributes
		_, answer, err := to.Notifier().Accept(ctx, back, offer, rigtest.NewRecorder(t))
		return answer, err
	}, l)
	if err != nil {
		t.Fatalf("Connect: %v", err)
	}
	return l
}

// post sends an op, once the limits allow it; its outcome comes.
func (l *line) post(o sdk.Op) <-chan sdk.Completion {
	size := int(o.Length)
	w := waiting{size, make(chan sdk.Completion, 1)}
	l.mu.Lock()
	for n := len(l.waiting); n >= limits.Inflight || n > 0 && l.bytes+size > limits.InflightBytes; n = len(l.waiting) {
		l.room.Wait()
	}
	l.next++
	id := l.next
	l.waiting[id] = w
	l.bytes += size
	l.mu.Unlock()
	if _, err := l.ep.Send([]sdk.Frame{{ID: id, Data: o.Append(nil)}}, false); err != nil {
		l.Completed([]sdk.Completion{{ID: id, Outcome: sdk.NotPosted, Code: sdk.CodeOf(err)}})
	}
	return w.done
}

// do sends an op and waits for its outcome.
func (l *line) do(o sdk.Op) sdk.Completion {
	select {
	case c := <-l.post(o):
		return c
	case <-time.After(rigtest.Patience):
		l.t.Error("an op has no outcome")
		return sdk.Completion{}
	}
}

// must is do of an op that has to succeed.
func (l *line) must(o sdk.Op) {
	l.t.Helper()
	if c := l.do(o); c.Outcome != sdk.Done {
		l.t.Errorf("%v of %d bytes: %v (%v)", o.Kind, o.Length, c.Outcome, c.Code)
	}
}

func opOf(kind sdk.OpKind, here, there publishedRegion, length uint64) sdk.Op {
	return sdk.Op{Kind: kind, Local: here.Capability, Remote: there.Capability, RemoteBase: there.Base, Length: length}
}

func fill(t testing.TB, m sdktest.Memory, value byte, n int) {
	t.Helper()
	if _, err := m.WriteAt(bytes.Repeat([]byte{value}, n), 0); err != nil {
		t.Fatal(err)
	}
}

// bytesOf reads the first and the last byte of n.
func bytesOf(t testing.TB, m sdktest.Memory, n int) (first, last byte) {
	t.Helper()
	b := make([]byte, n)
	if _, err := m.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b[0], b[n-1]
}
