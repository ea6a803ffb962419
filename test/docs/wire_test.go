package docs

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/plugins/tcp/tcptransport"
	"github.com/hawser-transport/hawser/sdk"
)

// sink is a Handler that reports the first of each.
type sink struct {
	completed chan sdk.Completion
	received  chan string
	ended     chan error
}

func newSink() sink {
	return sink{make(chan sdk.Completion, 1), make(chan string, 1), make(chan error, 1)}
}

func (s sink) Completed(cs []sdk.Completion) { s.completed <- cs[0] }
func (s sink) Received(frames [][]byte)      { s.received <- string(frames[0]) }
func (s sink) Ended(err error)               { s.ended <- err }

// bytesIn returns what the documentation shows under a name.
func bytesIn(t *testing.T) func(name string) []byte {
	t.Helper()
	doc := documented(t)
	return func(name string) []byte {
		t.Helper()
		b, err := hex.DecodeString(doc[name])
		if err != nil || len(b) == 0 {
			t.Fatalf("%s: %v", name, err)
		}
		return b
	}
}

// tcpPeer is a peer of a tcp transport that knows only what docs/protocol.md
// says: an endpoint to it, and its side of the connection.
func tcpPeer(t *testing.T, ctx context.Context, tr sdk.Transport, use sdk.Use, join string, h sdk.Handler) (sdk.Endpoint, net.Conn) {
	t.Helper()
	bytesOf := bytesIn(t)
	peer, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	local, remote := sdk.Incarnation{15: 1}, sdk.Incarnation{15: 2}
	if _, err := tr.Configure(ctx, sdk.Config{Instance: 2, Incarnation: local, Settings: []byte("{}")}); err != nil {
		t.Fatal(err)
	}

	tokenB := bytes.Repeat([]byte{0xb2}, 16)
	var tokenA []byte
	exchange := func(_ context.Context, offer []byte) ([]byte, error) {
		if len(offer) != 65 || offer[0] != 1 || binary.LittleEndian.Uint64(offer[17:]) != 7 ||
			binary.LittleEndian.Uint64(offer[25:]) != 2 || !bytes.Equal(offer[33:49], local[:]) || !bytes.Equal(offer[49:], remote[:]) {
			t.Errorf("offer %x", offer)
		}
		tokenA = bytes.Clone(offer[1:17])
		answer := append([]byte{1}, tokenB...)
		answer = binary.LittleEndian.AppendUint64(answer, 7)
		answer = binary.LittleEndian.AppendUint64(answer, 3)
		answer = append(answer, byte(len(peer.Addr().String())))
		return append(answer, peer.Addr().String()...), nil
	}
	conns := make(chan net.Conn, 1)
	go func() {
		conn, err := peer.Accept()
		if err != nil {
			t.Error(err)
			close(conns)
			return
		}
		got := make([]byte, 56)
		_, _ = io.ReadFull(conn, got)
		want := append(bytes.Clone(bytesOf(join)[:24]), tokenB...)
		if want = append(want, tokenA...); !bytes.Equal(got, want) {
			t.Errorf("join %x, want %x", got, want)
		}
		_, _ = conn.Write(bytesOf("verdict"))
		conns <- conn
	}()
	end, err := tr.(sdk.Notifier).Connect(ctx, sdk.Target{
		Local: local, Peer: remote, Path: sdk.MainPath, Generation: 7, Use: use,
		Remote: sdk.Attributes{"address": peer.Addr().String()},
	}, exchange, h)
	if err != nil {
		t.Fatal(err)
	}
	conn := <-conns
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	return end, conn
}

func TestWireOfTCP(t *testing.T) {
	bytesOf := bytesIn(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	tr := tcptransport.New()
	defer tr.Close(ctx)
	h := newSink()
	end, conn := tcpPeer(t, ctx, tr, sdk.UseFrames, "join", h)

	if n, err := end.Send([]sdk.Frame{{ID: 1, Data: []byte("abc")}}, false); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	got := make([]byte, len(bytesOf("tcp-frame")))
	if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, bytesOf("tcp-frame")) {
		t.Errorf("a frame is %x, %v", got, err)
	}
	_, _ = conn.Write(bytesOf("tcp-receipt"))
	if c := <-h.completed; c != (sdk.Completion{ID: 1, Outcome: sdk.Done}) {
		t.Errorf("the receipt made %v", c)
	}
	_, _ = conn.Write(bytesOf("tcp-frame"))
	if f := <-h.received; f != "abc" {
		t.Errorf("received %q", f)
	}
	got = make([]byte, len(bytesOf("tcp-receipt")))
	if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, bytesOf("tcp-receipt")) {
		t.Errorf("a receipt is %x, %v", got, err)
	}
	end.Close()
	<-h.ended
}
