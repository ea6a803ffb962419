//go:build linux

package docs

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/plugins/rpcfallback/rpctransport"
	"github.com/hawser-transport/hawser/plugins/tcp/tcptransport"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// mover is a transport with a region here and one of the peer's, as the bytes
// in the documentation name it.
type mover struct {
	sdk.Transport
	memory sdktest.Memory
	id     uint64
}

var hereCap, thereCap = sdk.Capability{1}, sdk.Capability(bytes.Repeat([]byte{0xc3}, 16))

func (m *mover) prepare(t *testing.T, ctx context.Context) {
	t.Helper()
	m.memory = sdktest.HostMemory(t, 64)
	r, err := m.memory.Export(true)
	if err != nil {
		t.Fatal(err)
	}
	r.Capability, r.Base = hereCap, 1<<40
	attrs, err := m.Transport.(sdk.Mover).Register(ctx, r)
	if err != nil || attrs["capability"] != "01000000000000000000000000000000" {
		t.Fatalf("%v, %v", attrs, err)
	}
	if err := m.Transport.(sdk.Mover).Announce(ctx, sdk.RemoteRegion{
		Provider: sdk.Incarnation{15: 2}, Capability: thereCap, Kind: sdk.HostMemory, Base: 1 << 40, Length: 8192, Writable: true,
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.memory.WriteAt([]byte("abc"), 0); err != nil {
		t.Fatal(err)
	}
}

func (m *mover) post(t *testing.T, end sdk.Endpoint, kind sdk.OpKind, here uint64) {
	t.Helper()
	m.id++
	o := sdk.Op{Kind: kind, Local: hereCap, LocalOffset: here, Remote: thereCap, RemoteOffset: 4096, Length: 3}
	if n, err := end.Send([]sdk.Frame{{ID: m.id, Data: o.Append(nil)}}, false); n != 1 || err != nil {
		t.Fatal(n, err)
	}
}

func TestWireOfTransfers(t *testing.T) {
	bytesOf := bytesIn(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	m := &mover{Transport: tcptransport.New()}
	defer m.Close(ctx)
	h := newSink()
	end, conn := tcpPeer(t, ctx, m.Transport, sdk.UseMemory, "join-memory", h)
	m.prepare(t, ctx)
	for i, c := range []struct {
		kind           sdk.OpKind
		request, reply string
		want           sdk.Completion
	}{
		{sdk.Write, "tcp-write", "tcp-written", sdk.Completion{ID: 1, Outcome: sdk.Done}},
		{sdk.Read, "tcp-read", "tcp-was-read", sdk.Completion{ID: 2, Outcome: sdk.Done}},
		{sdk.Read, "tcp-read", "tcp-refused", sdk.Completion{ID: 3, Outcome: sdk.NotPosted, Code: sdk.StaleCapability}},
	} {
		m.post(t, end, c.kind, uint64(10*i))
		want := bytesOf(c.request)
		want[8] = byte(i + 1)
		got := make([]byte, len(want))
		if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is %x, %v", c.request, got, err)
		}
		if _, err := conn.Write(bytesOf(c.reply)); err != nil {
			t.Fatal(err)
		}
		if got := <-h.completed; got != c.want {
			t.Errorf("%s made %+v", c.reply, got)
		}
	}
	got := make([]byte, 14)
	if _, err := m.memory.ReadAt(got, 0); err != nil || string(got) != "abc\x00\x00\x00\x00\x00\x00\x00xyz\x00" {
		t.Errorf("%q, %v", got, err)
	}
	end.Close()
	<-h.ended
}

func TestWireOfTransfersOverRPCFallback(t *testing.T) {
	bytesOf := bytesIn(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	m := &mover{Transport: rpctransport.New()}
	defer m.Close(ctx)
	h := newSink()
	end, segments, answers := rpcPeer(t, ctx, m.Transport, sdk.UseMemory, "Move", "join-memory", h)
	m.prepare(t, ctx)
	m.post(t, end, sdk.Write, 0)
	want, got := bytesOf("rpc-write"), []byte(nil)
	for len(got) < len(want) {
		got = append(got, <-segments...)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("a write is %x", got)
	}
	answers <- bytesOf("rpc-written")
	if c := <-h.completed; c != (sdk.Completion{ID: 1, Outcome: sdk.Done}) {
		t.Errorf("the reply made %v", c)
	}
	end.Close()
	for range segments { // none
	}
	<-h.ended
}
