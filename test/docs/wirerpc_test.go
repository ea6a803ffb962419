package docs

import (
	"bytes"
	"context"
	"encoding/binary"

	"fmt"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/hawser-transport/hawser/plugins/rpcfallback/rpctransport"
	"github.com/hawser-transport/hawser/sdk"
)

// rawCodec leaves messages as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (rawCodec) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(b)
	return nil
}

// rpcPeer is a peer of an rpcfallback transport that knows only what
// docs/protocol.md says: an endpoint to it, what comes from there, and what
// goes there.
func rpcPeer(t *testing.T, ctx context.Context, tr sdk.Transport, use sdk.Use, method, join string, h sdk.Handler) (sdk.Endpoint, <-chan []byte, chan<- []byte) {
	t.Helper()
	bytesOf := bytesIn(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	joins, packets, answers := make(chan []byte, 1), make(chan []byte), make(chan []byte)
	peer := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		if m, _ := grpc.MethodFromServerStream(s); m != "/hawser.rpcfallback.v1.Fallback/"+method {
			return fmt.Errorf("called %s", m)
		}
		md, _ := metadata.FromIncomingContext(s.Context())
		joins <- []byte(md.Get("hawser-join-bin")[0])
		if err := s.SendHeader(metadata.Pairs("hawser-verdict-bin", string(bytesOf("verdict")))); err != nil {
			return err
		}
		go func() {
			defer close(packets)
			for {
				var p []byte
				if s.RecvMsg(&p) != nil {
					return
				}
				packets <- p
			}
		}()
		for {
			select {
			case p := <-answers:
				if err := s.SendMsg(&p); err != nil {
					return err
				}
			case <-s.Context().Done():
				return nil
			}
		}
	}))
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = peer.Serve(ln)
	}()
	t.Cleanup(func() {
		peer.Stop()
		<-served
	})
	local, remote := sdk.Incarnation{15: 1}, sdk.Incarnation{15: 2}
	if _, err := tr.Configure(ctx, sdk.Config{Instance: 2, Incarnation: local, Settings: []byte("{}")}); err != nil {
		t.Fatal(err)
	}
	tokenB := bytes.Repeat([]byte{0xb2}, 16)
	var tokenA []byte
	exchange := func(_ context.Context, offer []byte) ([]byte, error) {
		tokenA = bytes.Clone(offer[1:17])
		answer := append([]byte{1}, tokenB...)
		answer = binary.LittleEndian.AppendUint64(answer, 7)
		answer = binary.LittleEndian.AppendUint64(answer, 3)
		answer = append(answer, byte(len(ln.Addr().String())))
		return append(answer, ln.Addr().String()...), nil
	}
	end, err := tr.(sdk.Notifier).Connect(ctx, sdk.Target{
		Local: local, Peer: remote, Path: sdk.MainPath, Generation: 7, Use: use,
		Remote: sdk.Attributes{"address": ln.Addr().String()},
	}, exchange, h)
	if err != nil {
		t.Fatal(err)
	}
	want := append(append(bytes.Clone(bytesOf(join)[:24]), tokenB...), tokenA...)
	if got := <-joins; !bytes.Equal(got, want) {
		t.Errorf("join %x, want %x", got, want)
	}
	return end, packets, answers
}

func TestWireOfRPCFallback(t *testing.T) {
	bytesOf := bytesIn(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	tr := rpctransport.New()
	defer tr.Close(ctx)
	h := newSink()
	end, packets, answers := rpcPeer(t, ctx, tr, sdk.UseFrames, "Carry", "join", h)

	send := func(id uint64, data []byte) {
		t.Helper()
		if n, err := end.Send([]sdk.Frame{{ID: id, Data: data}}, false); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	send(1, []byte("abc"))
	if p := <-packets; !bytes.Equal(p, bytesOf("rpc-frame")) {
		t.Errorf("a frame is %x", p)
	}
	answers <- bytesOf("rpc-receipt")
	if c := <-h.completed; c != (sdk.Completion{ID: 1, Outcome: sdk.Done}) {
		t.Errorf("the receipt made %v", c)
	}
	answers <- bytesOf("rpc-frame")
	if f := <-h.received; f != "abc" {
		t.Errorf("received %q", f)
	}
	if p := <-packets; !bytes.Equal(p, bytesOf("rpc-receipt")) {
		t.Errorf("a receipt is %x", p)
	}

	data := make([]byte, 200_000)
	for i := range data {
		data[i] = byte(i >> 8)
	}
	send(2, data)
	first, second := append(bytesOf("rpc-large"), data[:131072]...), append(bytesOf("rpc-chunk"), data[131072:]...)
	if p := <-packets; !bytes.Equal(p, first) {
		t.Errorf("the first chunk is %.16x, %d bytes", p, len(p))
	}
	if p := <-packets; !bytes.Equal(p, second) {
		t.Errorf("the second chunk is %.16x, %d bytes", p, len(p))
	}
	answers <- first
	answers <- bytesOf("rpc-frame") // between the chunks
	if f := <-h.received; f != "abc" {
		t.Errorf("received %d bytes instead of what came between the chunks", len(f))
	}
	answers <- second
	if f := <-h.received; f != string(data) {
		t.Errorf("received %d bytes", len(f))
	}
	end.Close()
	for range packets { // receipts
	}
	<-h.ended
}
